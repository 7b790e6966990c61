import io
import json

import jax.numpy as jnp
import numpy as np
import pyarrow.parquet
import pytest

from vlrl.io import metric_log


class Terminal(io.StringIO):
    def isatty(self):
        return True


def open_log(directory, **kwargs):
    return metric_log.MetricLog(directory, **({"tensorboard": False, "screen": io.StringIO()} | kwargs))


def lines(directory):
    return (directory / "metrics.jsonl").read_text().splitlines()


def test_one_line_a_step_with_plain_numbers(tmp_path):
    with open_log(tmp_path) as log:
        log.write(0, {"reward": jnp.float32(0.5), "n": np.int64(3), "kl": 0.25, "ok": np.bool_(True)})
        assert lines(tmp_path) == ['{"step": 0, "reward": 0.5, "n": 3, "kl": 0.25, "ok": true}']  # before close


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -np.inf, jnp.nan])
def test_values_that_json_lacks_become_null(tmp_path, value):
    with open_log(tmp_path) as log:
        log.write(0, {"loss": value})
    assert lines(tmp_path) == ['{"step": 0, "loss": null}']


@pytest.mark.parametrize("value", ["0.5", np.ones(2), None])
def test_metric_that_is_no_number_is_named(tmp_path, value):
    with open_log(tmp_path) as log, pytest.raises(ValueError, match="metric loss"):
        log.write(0, {"loss": value})


def test_resume_keeps_earlier_steps_byte_for_byte_and_drops_later_ones(tmp_path):
    with open_log(tmp_path) as log:
        for step in range(5):
            log.write(step, {"x": step / 3})
            log.write_rollouts(step, [{"text": str(step)}])
    before = lines(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "x"')  # killed while writing
    (tmp_path / "rollouts" / ".step_000005.tmp").write_text("half")
    with open_log(tmp_path, first_step=3) as log:
        assert lines(tmp_path) == before[:3]
        log.write(3, {"x": 9.0})
    assert lines(tmp_path) == [*before[:3], '{"step": 3, "x": 9.0}']
    names = sorted(path.name for path in (tmp_path / "rollouts").iterdir())
    assert names == [f"step_{i:06d}.parquet" for i in range(3)]


def test_frames_of_later_steps_are_dropped_with_their_rollouts(tmp_path):
    with open_log(tmp_path) as log:
        for step in range(3):
            log.write_media(step, [{"example_id": "a", "jpeg": b"\xff\xd8"}])
    open_log(tmp_path, first_step=1).close()
    (path,) = (tmp_path / "rollouts" / "media").iterdir()
    assert path.name == "step_000000.parquet"
    assert pyarrow.parquet.read_table(path).to_pylist() == [{"example_id": "a", "jpeg": b"\xff\xd8"}]


def test_several_lines_of_a_step_survive_until_that_step(tmp_path):
    with open_log(tmp_path) as log:
        log.write(0, {"x": 1})
        log.write(0, {"eval/x": 2})
        log.write(1, {"x": 3})
    open_log(tmp_path, first_step=1).close()
    assert metric_log.read(tmp_path) == [{"step": 0, "x": 1}, {"step": 0, "eval/x": 2}]


def test_damaged_line_is_an_error_with_its_number(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"x": 1}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2"):
        open_log(tmp_path)


def test_reading_passes_over_an_unfinished_last_line(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1')
    assert metric_log.read(tmp_path) == [{"step": 0}]


def test_rollouts_keep_text_as_data(tmp_path):
    text = "\x1b[2J\x00[/think]\r\n<script>\u202e é"
    with open_log(tmp_path) as log:
        log.write_rollouts(3, [{"completion": text, "reward": 0.5}, {"completion": "\ud800", "valid": False}])
    rows = pyarrow.parquet.read_table(tmp_path / "rollouts" / "step_000003.parquet").to_pylist()
    assert rows == [
        {"completion": text, "reward": 0.5, "valid": None},
        {"completion": "\\ud800", "reward": None, "valid": False},
    ]


def test_no_rollouts_make_an_empty_table(tmp_path):
    with open_log(tmp_path) as log:
        log.write_rollouts(0, [])
    assert pyarrow.parquet.read_table(tmp_path / "rollouts" / "step_000000.parquet").num_rows == 0


def test_rollout_column_of_mixed_kinds_is_an_error(tmp_path):
    with open_log(tmp_path) as log, pytest.raises(ValueError, match="rollouts of step 2: a column mixes"):
        log.write_rollouts(2, [{"x": 1}, {"x": "one"}])


def test_progress_is_a_plain_line_when_the_screen_is_no_terminal(tmp_path):
    screen = io.StringIO()
    with open_log(tmp_path, screen=screen, total_steps=2, shown=("reward", "absent")) as log:
        log.write(0, {"reward": 0.123456, "kl": 1.0})
        log.write(1, {"kl": 1.0})
    assert screen.getvalue() == "step 1/2 reward=0.1235\nstep 2/2\n"


def test_progress_is_a_bar_on_a_terminal(tmp_path):
    screen = Terminal()
    with open_log(tmp_path, screen=screen, first_step=1, total_steps=4) as log:
        log.write(1, {"reward": 0.5})
    assert "2/4" in screen.getvalue()
    assert "reward=0.5" in screen.getvalue()
    assert "step 2/4" not in screen.getvalue()


def test_tensorboard_gets_event_files(tmp_path):
    with open_log(tmp_path, tensorboard=True) as log:
        log.write(0, {"reward": 0.5, "loss": float("nan")})
    (file,) = (tmp_path / "tensorboard").glob("events.*")
    assert b"reward" in file.read_bytes()
    assert b"loss" not in file.read_bytes()  # no number, no point
    assert json.loads(lines(tmp_path)[0])["loss"] is None
