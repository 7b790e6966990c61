"""The main job as a whole: what it leaves behind, that it can be stopped anywhere, what it refuses."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pyarrow.parquet
import pytest
import tiny_run

from vlrl import evaluate, flops, main
from vlrl.io import checkpoint, metric_log, run_directory
from vlrl.rollout import decode

METRICS = (
    *("reward", "reward_std", "frac_reward_zero_std", "rewards/answer/mean", "rewards/format/mean"),
    *("rewards/evidence/mean", "completions/mean_length", "completions/clipped_ratio", "kl", "entropy"),
    *("clip_ratio/low_mean", "clip_ratio/high_mean", "num_tokens", "step_time", "time/data", "time/rollout"),
    *(
        "time/referee",
        "time/update",
        "tokens_per_s/rollout",
        "tokens_per_s/update",
        "tflops_per_s",
        "mfu",
        "referee/relevance",
    ),
    *("referee/localization", "claims/per_rollout", "claims/box_area", "invalid/total", "sampling/logp_difference"),
    *("compile/count", "learning_rate", "grad_norm", "loss"),
)
# Not Python's defaults: a shell without job control starts its jobs with SIGINT ignored.
HANDLERS_BEFORE = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
RESULTS = ("what_acc", "tiou", "viou", "parse_rate", "reward")


@pytest.fixture(autouse=True)
def claims_in_completions():
    with tiny_run.claiming():
        yield


def extra_of(workdir):
    newest = max((workdir / "checkpoints").iterdir())
    return json.loads((newest / "state.json").read_text())


def tables(workdir):
    return [pyarrow.parquet.read_table(path).to_pylist() for path in sorted((workdir / "rollouts").iterdir())]


def assert_same_run(workdir, other):
    assert tiny_run.lasting(workdir) == tiny_run.lasting(other)
    states = tiny_run.state_of(workdir), tiny_run.state_of(other)
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    for mine, theirs in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert extra_of(workdir)["loader"] == extra_of(other)["loader"]
    assert extra_of(workdir)["num_tokens"] == extra_of(other)["num_tokens"]
    assert tables(workdir) == tables(other)
    for name in ("before.json", "after.json"):
        assert (workdir / name).read_bytes() == (other / name).read_bytes()


def test_run_directory_holds_everything_and_nothing_half_written(finished):
    assert sorted(path.name for path in finished.iterdir()) == [
        *("after.json", "before.json", "checkpoints", "config.json", "metrics.jsonl", "results.json", "rollouts"),
        *("run_manifest.json", "tensorboard"),
    ]
    assert checkpoint.steps(finished / "checkpoints") == [2, 4]
    assert [path.name for path in sorted((finished / "rollouts").iterdir())] == [
        f"step_{step:06d}.parquet" for step in range(tiny_run.STEPS)
    ]


def test_metrics_have_the_documented_names_and_finite_values(finished):
    lines = metric_log.read(finished)
    unknown = [] if jax.devices()[0].device_kind in flops.PEAK_FLOPS else ["mfu"]  # NaN, null in JSON
    assert [line["step"] for line in lines] == list(range(tiny_run.STEPS))
    for line in lines:
        assert [name for name in METRICS if name not in line] == []
        assert [name for name in METRICS if line[name] is None] == unknown


def test_referee_grades_the_claims_of_a_run(finished):
    for line in metric_log.read(finished):
        assert line["referee/claims"] > 0
        assert line["claims/per_rollout"] == 1.0
        assert 0.0 <= line["referee/relevance"] <= 1.0
        assert line["invalid/total"] == 0


def test_first_step_is_on_policy_and_at_the_reference(finished):
    first, *later = metric_log.read(finished)
    assert abs(first["kl"]) < 1e-6
    assert all(line["kl"] > 1e-6 for line in later)
    assert all(line["sampling/logp_difference"] < 1e-4 for line in [first, *later])
    assert all(line["clip_ratio/low_mean"] == line["clip_ratio/high_mean"] == 0.0 for line in [first, *later])


def test_nothing_is_compiled_after_the_second_step(finished):
    counts = [line["compile/count"] for line in metric_log.read(finished)]
    assert counts[1:] == counts[1:2] * (tiny_run.STEPS - 1)


def test_tokens_are_those_of_prompts_and_completions_so_far(finished):
    lines = metric_log.read(finished)
    tokens = [line["num_tokens"] for line in lines]
    new = np.diff([0, *tokens]) - [
        line["completions/mean_length"] * tiny_run.PROMPTS * tiny_run.GROUP for line in lines
    ]
    # What is left are the prompts: 4 slices of 16 tokens and more each, at most the bucket of 128.
    assert all(tiny_run.PROMPTS * 64 < prompts <= tiny_run.PROMPTS * 128 for prompts in new)


def test_results_hold_interval_of_every_figure(finished):
    results = json.loads((finished / "results.json").read_text())
    for part in ("before", "after", "paired_difference"):
        for name in RESULTS:
            assert set(results[part][name]) == {"mean", "low", "high"}
        assert set(results["sampled"][part]) == set(results[part])
    reward = results["paired_difference"]["reward"]
    assert reward["low"] <= reward["mean"] <= reward["high"]
    expected = results["after"]["reward"]["mean"] - results["before"]["reward"]["mean"]
    assert reward["mean"] == pytest.approx(expected, abs=1e-9)
    assert results["wall_s"] > 0
    assert results["peak_rss_bytes"] > 2**27
    assert (results["examples"], results["failed_videos"]) == (tiny_run.EVAL, 0)
    assert sum(row["examples"] for row in results["by_task"]["after"].values()) == tiny_run.EVAL


def test_results_are_printed(finished):
    printed = (finished.parent / "printed.txt").read_text()
    assert f"{tiny_run.EVAL} held-out videos" in printed
    for name in RESULTS:
        assert re.search(rf"^{name} .*\[", printed, re.MULTILINE)


def test_rollouts_hold_every_completion_with_what_decided_its_pay(finished):
    for line, rows in zip(metric_log.read(finished), tables(finished), strict=True):
        assert len(rows) == tiny_run.PROMPTS * tiny_run.GROUP
        assert np.mean([row["reward"] for row in rows]) == pytest.approx(line["reward"], abs=1e-6)
        for row in rows:
            parts = (row["rewards/answer"], row["rewards/format"], row["rewards/evidence"])
            assert row["reward"] == pytest.approx(np.dot(parts, (2.0, 1.0, 0.5)), abs=1e-5)
            assert "<think>" in row["completion"]
            (verdict,) = json.loads(row["verdicts"])
            assert verdict["relevance"] in "ABCDE"
            assert row["prompt"].count("<|video_pad|>") == 4
        for first, second in zip(rows[::2], rows[1::2], strict=True):
            # The mean of two rewards is rounded once; the group's spread scales that up.
            rounding = np.spacing(np.float32(first["reward"])) / (abs(first["reward"] - second["reward"]) + 1e-4)
            assert first["advantage"] == pytest.approx(-second["advantage"], abs=1e-5 + 2 * float(rounding))


def test_evaluate_repeats_the_figures_of_the_run(finished, tmp_path):
    evaluate.main(["evaluate", f"--workdir={finished}", f"--json={tmp_path / 'new' / 'figures.json'}"])
    again = json.loads((tmp_path / "new" / "figures.json").read_text())
    results = json.loads((finished / "results.json").read_text())
    assert again["step"] == tiny_run.STEPS
    assert again["greedy"] == results["after"]
    assert again["sampled"] == results["sampled"]["after"]
    assert again["failed_videos"] == 0


# After the first step, within an epoch; after the third, where the second epoch ends; after each of two.
@pytest.mark.parametrize("stops", [(0,), (2,), (0, 1)], ids=["within an epoch", "at its end", "twice"])
def test_stopped_and_resumed_run_equals_the_run_that_was_not_stopped(tiny, finished, tmp_path, capsys, stops):
    for number, step in enumerate(stops):
        with tiny_run.signal_after(step):
            tiny.run(tmp_path / "run", *(["--resume"] if number else []))
        assert f"stopped after {step + 1} of {tiny_run.STEPS} steps" in capsys.readouterr().out
        assert checkpoint.steps(tmp_path / "run" / "checkpoints")[-1] == step + 1
        assert not (tmp_path / "run" / "results.json").exists()
    tiny.run(tmp_path / "run", "--resume")
    assert_same_run(tmp_path / "run", finished)


def test_interrupt_during_the_evaluation_before_step_0_is_resumable(tiny, finished, tmp_path, monkeypatch):
    sample, calls = decode.sample, []

    def interrupted(*args):
        if not calls:
            signal.raise_signal(signal.SIGINT)
        calls.append(args)
        return sample(*args)

    with monkeypatch.context() as patch:
        patch.setattr(decode, "sample", interrupted)
        tiny.run(tmp_path / "run")
    assert not (tmp_path / "run" / "before.json").exists()
    assert metric_log.read(tmp_path / "run") == []
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [0]
    tiny.run(tmp_path / "run", "--resume")
    assert_same_run(tmp_path / "run", finished)


def test_signal_during_the_last_evaluation_keeps_every_step(tiny, finished, tmp_path, capsys):
    with tiny_run.signal_after(tiny_run.STEPS - 1):
        tiny.run(tmp_path / "run")
    assert "the evaluation is not finished" in capsys.readouterr().out
    assert not (tmp_path / "run" / "after.json").exists()
    tiny.run(tmp_path / "run", "--resume")
    assert_same_run(tmp_path / "run", finished)


def test_second_interrupt_ends_at_once(tiny, tmp_path):
    with (
        tiny_run.signal_after(0, signal.SIGINT),
        tiny_run.signal_after(0, signal.SIGINT),
        pytest.raises(KeyboardInterrupt),
    ):
        tiny.run(tmp_path / "run")


def test_handlers_of_before_are_back_after_a_run(tiny, finished):
    assert signal.getsignal(signal.SIGINT) is HANDLERS_BEFORE[signal.SIGINT]
    assert signal.getsignal(signal.SIGTERM) == HANDLERS_BEFORE[signal.SIGTERM]


def test_resume_with_another_config_lists_every_difference(tiny, finished):
    with pytest.raises(ValueError, match="not the run that was begun here") as error:
        tiny.run(finished, "--resume", "--config.opt.lr=5e-3", "--config.seed=3")
    assert "config.opt.lr: 0.01 -> 0.005" in str(error.value)
    assert "config.seed: 0 -> 3" in str(error.value)


def test_logging_and_checkpoints_may_change_on_resume(tiny, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    tiny.run(tmp_path / "run", "--resume", "--config.checkpoint.keep=1", "--config.log.tensorboard=false")
    assert run_directory.read_config(tmp_path / "run").checkpoint.keep == 1


def test_directory_of_another_run_is_left_alone(tiny, finished):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"holds another run; add --resume"):
        tiny.run(finished)
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_resume_needs_a_run(tiny, tmp_path):
    with pytest.raises(ValueError, match="no run to resume here; leave --resume out"):
        tiny.run(tmp_path / "nothing", "--resume")
    assert not (tmp_path / "nothing").exists()


def test_run_without_workdir_goes_to_a_dated_folder(tiny, monkeypatch):
    chosen = []
    monkeypatch.setattr(main, "train", lambda cfg, workdir, resume: chosen.append((str(workdir), resume)))
    main.main(tiny.argv(None))
    ((workdir, resume),) = chosen
    assert re.fullmatch(r"runs/20\d\d-\d\d-\d\d_\d\d-\d\d-\d\d", workdir)
    assert not resume


def test_adapter_moves_and_the_reference_does_not(finished):
    state = tiny_run.state_of(finished)
    assert int(state.step) == tiny_run.STEPS
    moved = jax.tree.leaves(jax.tree.map(lambda a, b: float(np.abs(a - b).max()), state.adapter, state.start_adapter))
    assert all(math.isfinite(change) and change > 0 for change in moved)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_process_that_is_signalled_saves_and_exits_with_status_0(tiny, tmp_path, number):
    workdir = tmp_path / "run"
    overrides = ["--config.steps=400", "--config.checkpoint.every=400", "--config.eval.sampled=false"]
    process = subprocess.Popen(
        [sys.executable, "-m", "vlrl.main", *tiny.argv(workdir, *overrides)[1:]],
        cwd=tiny_run.REPOSITORY,
        env={**os.environ, **tiny.compilation_cache()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 300
    while not ((workdir / "metrics.jsonl").exists() and metric_log.read(workdir)):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    done = len(metric_log.read(workdir))
    assert done < 400
    assert checkpoint.steps(workdir / "checkpoints") == [done]
    assert f"stopped after {done} of 400 steps, saved; go on with --resume" in out
    assert f"{number.name}: saving after this step" in err
    assert "Traceback" not in err
    assert re.search(r"^step 1/400 reward=\S+ reward_std=\S+ kl=\S+ step_time=\S+$", err, re.MULTILINE)


def test_typo_on_the_command_line_is_one_line_and_status_2(tiny, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "vlrl.main", *tiny.argv(tmp_path / "run", "--config.opt.lrr=1e-3")[1:]],
        cwd=tiny_run.REPOSITORY,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == "error: --config.opt.lrr: no field 'lrr'; did you mean lr?"
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
