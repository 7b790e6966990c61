"""What ends a run by itself, what only warns, and the update made again from what the run wrote."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_run
import tiny_vlm

from vlrl import config, guard, replay
from vlrl.io import checkpoint, metric_log
from vlrl.rl import advantages, update
from vlrl.types import Branches

WELL = {
    **{"skipped_updates": 0.0, "grad_norm": 1.0, "learning_rate": 1e-3, "sampling/logp_difference": 1e-6},
    **{"frac_reward_zero_std": 0.0, "completions/clipped_ratio": 0.0, "claims/parse_rate": 1.0, "invalid/rate": 0.0},
}


def state(adapter, start):
    return update.TrainState(jnp.int32(1), {"a": jnp.array(adapter)}, {"a": jnp.array(start)}, ())


def experience():
    prefix = tiny_vlm.collate(tiny_vlm.CFG, [tiny_vlm.row(tiny_vlm.CFG, tiny_vlm.text(1))], 2).without_patches()
    branches = Branches(np.zeros((1, 2, 3), np.int32), np.full((1, 2), 3, np.int32))
    logp, pay = np.zeros((1, 2, 3), np.float32), np.zeros((1, 2), np.float32)
    return update.Experience(prefix, np.zeros((1, 1, 4), np.float32), branches, logp, pay, pay == 0)


MOVED = state([1.0, 2.0], [1.0, 1.0])


def watched(tmp_path, lines, state=MOVED, **settings):
    watchman = guard.Guard(config.GuardConfig(**settings), tmp_path)
    for step, line in enumerate(lines):
        watchman.check(step, state, experience(), WELL | line)


@pytest.mark.parametrize(
    ("metric", "good", "bad", "field"),
    [
        ("sampling/logp_difference", 0.1, 0.11, "max_logp_difference"),
        ("frac_reward_zero_std", 0.8, 0.81, "max_zero_std"),
        ("completions/clipped_ratio", 0.5, 0.51, "max_clipped_ratio"),
        ("claims/parse_rate", 0.5, 0.49, "min_parse_rate"),
        ("invalid/rate", 0.3, 0.31, "max_invalid_rate"),
    ],
)
def test_metric_past_its_limit_is_named_with_limit_and_cure(metric, good, bad, field):
    assert guard.exceeded([WELL | {metric: good}], config.GuardConfig()) == {}
    (found,) = guard.exceeded([WELL | {metric: bad}], config.GuardConfig()).items()
    assert found[0] == field
    assert metric in found[1]
    assert f"guard.{field}" in found[1]


def test_mean_over_the_window_counts_and_steps_without_the_metric_do_not():
    lines = [WELL | {"claims/parse_rate": value} for value in (0.2, float("nan"), 0.7)]
    assert list(guard.exceeded(lines, config.GuardConfig(min_parse_rate=0.46))) == ["min_parse_rate"]
    assert guard.exceeded(lines, config.GuardConfig(min_parse_rate=0.44)) == {}


def test_limit_is_warned_of_once_until_it_was_well_again(tmp_path, capsys):
    bad, well = {"invalid/rate": 0.9}, {}
    watched(tmp_path, [bad, bad, well, well, bad, bad], window=1)
    assert capsys.readouterr().err.count("warning: invalid/rate is 0.9") == 2


def test_nothing_is_said_before_a_whole_window(tmp_path, capsys):
    watched(tmp_path, [{"invalid/rate": 0.9}] * 3, window=4)
    assert capsys.readouterr().err == ""


def test_first_update_must_move_the_adapter(tmp_path):
    still = state([1.0, 1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="the first update changed no weight"):
        watched(tmp_path, [{}], still)
    watched(tmp_path, [{"grad_norm": 0.0}], still)  # nothing to learn from is no fault of the optimizer
    watched(tmp_path, [{"skipped_updates": 1.0}], still)


def test_only_updates_in_a_row_count(tmp_path):
    skipped = {"skipped_updates": 1.0, "grad_norm": float("nan")}
    watched(tmp_path, [skipped, {}, skipped, {}, skipped], max_skipped_updates=2)
    assert not (tmp_path / "replay").exists()
    with pytest.raises(ValueError, match="2 updates in a row were not finite, the last at step 2"):
        watched(tmp_path, [{}, skipped, skipped], max_skipped_updates=2)
    assert checkpoint.steps(tmp_path / "replay") == [2]


def test_adapter_of_nothing_is_refused(tiny, tmp_path):
    with pytest.raises(ValueError, match=r"lora\.targets: empty"):
        tiny.run(tmp_path / "run", "--config.lora.targets=")


@pytest.fixture
def ended(tiny, tmp_path, monkeypatch):
    """A run whose advantages are not finite from its second step on."""
    normalised, calls = advantages.group_normalized, []

    def broken(*args):
        calls.append(args)
        return normalised(*args) * (1.0 if len(calls) == 1 else np.float32("nan"))

    monkeypatch.setattr(advantages, "group_normalized", broken)
    workdir = tmp_path / "run"
    with tiny_run.claiming(), pytest.raises(ValueError, match="2 updates in a row were not finite, the last at step 2"):
        tiny.run(workdir, "--config.guard.max_skipped_updates=2")
    return workdir


def test_run_of_not_finite_updates_ends_saved_and_its_update_can_be_made_again(ended, capsys):
    assert [line["skipped_updates"] for line in metric_log.read(ended)] == [0, 1, 1]
    assert checkpoint.steps(ended / "checkpoints")[-1] == 3
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(tiny_run.state_of(ended)))
    replay.main(["replay", str(ended), "2"])
    out = capsys.readouterr().out
    assert "not finite before the update: experience/advantages" in out
    shown = dict(line.split() for line in out.splitlines() if line.startswith(("loss", "skipped_updates", "entropy")))
    assert shown["loss"] == "nan"
    assert shown["skipped_updates"] == "1"
    assert float(shown["entropy"]) == pytest.approx(metric_log.read(ended)[-1]["entropy"], rel=1e-5)
    with pytest.raises(ValueError, match=r"holds no step 7, only \[2\]"):
        replay.main(["replay", str(ended), "7"])
    with pytest.raises(ValueError, match="expected the number of a step"):
        replay.main(["replay", str(ended), "last"])
