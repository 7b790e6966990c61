"""The command: one file, quickly, from runs of any size, also while they train."""

import json
import os
import subprocess
import sys
import time

import made
import numpy as np
import PIL.Image
import pytest
import tiny_run

from vlrl import report
from vlrl.reporting import curves, plots, runs


def data_of(file):
    text = file.read_text()
    return json.loads(text.split('<script id="data" type="application/json">')[1].split("</script>")[0])


def large(directory, steps=157, prompts=8, group=8):
    """10,048 rollouts with completions as long as those of a 7B model."""
    rng = np.random.default_rng(0)
    thought = "The red circle stands left of the table. " * 45
    verdicts = (made.verdict(), made.verdict(object="blue square"), made.verdict(time_s=3.0))
    rows = [
        [
            made.row(
                step,
                f"train-{prompt:05}",
                g,
                verdicts,
                completion=f"<think>{thought}</think><answer>{'ABCD'[g % 4]}</answer>",
                reward=float(rng.normal()),
                valid=bool(rng.random() > 0.02),
            )
            for prompt in range(prompts)
            for g in range(group)
        ]
        for step in range(steps)
    ]
    names = [f"metric_{number}/x" for number in range(50)]
    return made.run(directory, rows, {step: dict.fromkeys(names, 0.1 + step) for step in range(steps)})


def test_report_goes_beside_the_run_unless_told_otherwise(tmp_path, capsys):
    directory = made.run(tmp_path / "run", [[made.row()]])
    report.main(["report", str(directory)])
    report.main(["report", str(directory), "--out", str(tmp_path / "elsewhere.html")])
    assert (directory / "report.html").read_bytes() == (tmp_path / "elsewhere.html").read_bytes()
    assert capsys.readouterr().out.startswith(f"{directory / 'report.html'}: 0.0 MiB\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere.html", "run"]


def test_ten_thousand_rollouts_make_a_bounded_report_in_seconds(tmp_path):
    directory = large(tmp_path / "run")
    started = time.process_time()
    report.main(["report", str(directory)])
    assert time.process_time() - started < 15
    data = data_of(directory / "report.html")
    assert sum(len(group["rollouts"]) for group in data["groups"]) == 10_000
    assert (directory / "report.html").stat().st_size < 33 * 2**20
    report.main(["report", str(directory), "--max-mb", "4"])
    assert 3 * 2**20 < (directory / "report.html").stat().st_size < 5 * 2**20
    steps = [group["step"] for group in data_of(directory / "report.html")["groups"]]
    assert (steps[0], steps[-1]) == (156, 0)


def test_steps_and_number_of_rollouts_can_be_chosen(tmp_path):
    directory = made.run(tmp_path / "run", [[made.row(step, rollout=g) for g in range(2)] for step in range(9)])
    report.main(["report", str(directory), "--steps", "2:5", "--rollouts", "4"])
    assert [group["step"] for group in data_of(directory / "report.html")["groups"]] == [5, 2]


def test_watching_ends_with_the_run(tmp_path, monkeypatch):
    directory = made.run(tmp_path / "run", [[made.row()]])
    waits = []

    def sleep(seconds):
        waits.append((seconds, data_of(directory / "report.html")["reload_s"]))
        if len(waits) == 2:
            (directory / "results.json").write_text('{"examples": 1}')

    monkeypatch.setattr(time, "sleep", sleep)
    report.main(["report", str(directory), "--watch", "30"])
    assert waits == [(30.0, 30.0)] * 2
    assert data_of(directory / "report.html")["runs"][0]["state"] == "1 of 4 steps, finished"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], r"nowhere: no run there \(config.json is missing\); name the directory of a run"),
        (["run"] * 9, "9 runs: more than 8 cannot be told apart; name fewer"),
        (["run", "--steps", "a:b"], "--steps a:b: expected FIRST:LAST, such as 100:120"),
        (["run", "--out", "missing/report.html"], "--out missing/report.html: cannot be written .*; name another file"),
    ],
)
def test_bad_arguments_are_named_with_their_cure(tmp_path, monkeypatch, arguments, message):
    made.run(tmp_path / "run", [[made.row()]])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        report.main(["report", *arguments])


def test_plots_without_matplotlib_name_the_extra(tmp_path, monkeypatch):
    directory = made.run(tmp_path / "run", [[made.row()]])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match=r"--plots needs matplotlib; pip install 'vlrl\[report\]'"):
        report.main(["report", str(directory), "--plots", str(tmp_path / "plots")])
    assert plots.DPI >= 300  # what journals ask for


def test_plots_are_a_picture_of_each_chart_in_the_width_of_a_column(tmp_path):
    directory = made.run(tmp_path / "run", [[made.row()], [made.row(1)]])
    report.main(["report", str(directory), "--plots", str(tmp_path / "plots")])
    charts = curves.charts([runs.read(directory)])
    files = sorted((tmp_path / "plots").iterdir())
    assert len(files) == len(charts) > 0
    for file in files:
        picture = np.asarray(PIL.Image.open(file).convert("L"))
        assert picture.shape == (720, 1020)  # 2.4 x 3.4 inches of 300 dots
        assert picture.min() < 100 < 250 < picture.max()  # neither blank nor black


def test_report_of_a_real_run_names_no_path(tiny, finished, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "vlrl.report", str(finished), "--out", str(tmp_path / "report.html")],
        cwd=tiny_run.REPOSITORY,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    data = data_of(tmp_path / "report.html")
    assert len(data["groups"]) == tiny_run.STEPS * tiny_run.PROMPTS
    paid = [
        (rollout, claim["pay"])
        for group in data["groups"]
        for rollout in group["rollouts"]
        for claim in rollout["claims"]
    ]
    assert all(
        0.5 * rollout["parts"]["evidence"] == pytest.approx(pay, abs=1e-4) for rollout, pay in paid
    )  # one claim each
    text = (tmp_path / "report.html").read_text().replace("\\/", "/")
    assert str(tiny.root) not in text
    assert str(finished) not in text
    assert data["media"] == []


def test_run_that_keeps_media_shows_every_claim_on_its_frame(tiny, tmp_path):
    with tiny_run.claiming():
        overrides = ["--config.steps=1", "--config.log.log_media=true", "--config.eval.sampled=false"]
        tiny.run(tmp_path / "run", *overrides)
    report.main(["report", str(tmp_path / "run")])
    data = data_of(tmp_path / "run" / "report.html")
    claims = [c for group in data["groups"] for rollout in group["rollouts"] for c in rollout["claims"]]
    assert len(claims) == tiny_run.PROMPTS * tiny_run.GROUP
    assert {claim["frame"] for claim in claims} == set(range(len(data["media"])))
