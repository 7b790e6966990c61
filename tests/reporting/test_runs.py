"""A directory is read whatever state its run is in."""

import json

import made
import pytest

from vlrl.reporting import runs


def test_finished_run(tmp_path):
    run = runs.read(made.run(tmp_path / "a", [[made.row(0)], [made.row(1)]], files={"results": {"examples": 3}}))
    assert (run.name, run.steps, run.total_steps, run.notes) == ("a", (0, 1), 4, [])
    assert run.metrics == [{"step": 0, "reward": 1.0, "kl": 0.5}, {"step": 1, "reward": 2.0, "kl": 0.5}]
    assert run.rows(1)[0]["step"] == 1


def test_run_cut_while_writing_shows_what_is_whole(tmp_path):
    directory = made.run(tmp_path / "a", [[made.row(0)], [made.row(1)]])
    with (directory / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "rew')
    (directory / "rollouts" / ".step_000002.tmp").write_bytes(b"PAR1 half")
    run = runs.read(directory)
    assert [line["step"] for line in run.metrics] == [0, 1]
    assert (run.steps, run.notes) == ((0, 1), [])


@pytest.mark.parametrize("line", ["{", "[1]", '{"reward": 1}', '{"step": "x"}', "\udcff", '{"step": true}', "[" * 5000])
def test_damaged_line_costs_its_step_and_a_note(tmp_path, line):
    directory = made.run(tmp_path / "a", [[made.row(0)], [made.row(1)]])
    lines = (directory / "metrics.jsonl").read_bytes().splitlines()
    damaged = line.encode("utf-8", "surrogateescape")
    (directory / "metrics.jsonl").write_bytes(b"\n".join([lines[0], damaged, lines[1], b""]))
    run = runs.read(directory)
    assert [entry["step"] for entry in run.metrics] == [0, 1]
    assert run.notes == ["metrics.jsonl: line 2 is damaged and left out"]


def test_damaged_files_are_noted_without_the_path_of_the_run(tmp_path):
    directory = made.run(tmp_path / "a", [[made.row(0)]], files={"before": {}})
    (directory / "rollouts" / "step_000000.parquet").write_bytes(b"PAR1 half")
    (directory / "before.json").write_text("{")
    run = runs.read(directory)
    assert run.rows(0) == []
    assert len(run.notes) == 2
    assert not any(str(tmp_path) in note for note in run.notes)


def test_run_that_has_just_begun(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    run = runs.read(tmp_path)
    assert (run.metrics, run.steps, run.notes) == ([], (), ["no step is finished yet"])


def test_directory_without_a_run_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nothing: no run there \(config.json is missing\); name"):
        runs.read(tmp_path / "nothing")


def test_values_that_are_no_numbers_are_absent():
    assert [runs.number(value) for value in (float("nan"), float("inf"), "1", True, None, 10**400)] == [None] * 6
    assert runs.number(0.123456789) == 0.12346


@pytest.mark.parametrize("value", ["/data/children/a.jsonl", "children/a", "C:\\children", ["x", "/children"]])
def test_paths_are_shown_only_with_media_but_can_be_told_apart(value):
    assert "children" not in runs.setting(value, log_media=False)
    assert runs.setting(value, log_media=False) == runs.setting(value, log_media=False)
    assert runs.setting(value, log_media=False) != runs.setting("/other", log_media=False)
    assert "children" in runs.setting(value, log_media=True)


def test_settings_are_named_by_their_place():
    assert dict(runs.settings({"a": 1, "b": {"c": {"d": 2}}})) == {"a": 1, "b.c.d": 2}


def test_config_is_read_as_data(tmp_path):
    directory = made.run(tmp_path / "a", [])
    (directory / "config.py").write_text("raise SystemExit")
    (directory / "config.json").write_text(json.dumps({"log": "text", "steps": "many", "rewards": None}))
    run = runs.read(directory)
    assert (run.log_media, run.total_steps) == (False, 0)
