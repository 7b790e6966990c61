"""Weighted sum of the rewards of a step, with validity."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vlrl.config import RewardsConfig
from vlrl.types import Batch, Example, Parsed, Rollouts, Score, Scores, Verdict

Reward = Callable[[Example, Parsed, Sequence[Verdict], RewardsConfig], Score]


def score(
    batch: Batch,
    rollouts: Rollouts,
    parsed: Sequence[Sequence[Parsed]],
    verdicts: Sequence[Sequence[Sequence[Verdict]]],
    cfg: RewardsConfig,
    rewards: Mapping[str, Reward],
) -> Scores:
    """Scores [P, G]: total = sum of cfg.<name> * component.

    A completion is invalid where a reward of non-zero weight abstains or is not finite, and where its prompt has no
    video. Raises ValueError where parsed or verdicts are not [P][G]."""
    shape = (len(batch.examples), len(rollouts.text[0]) if rollouts.text else 0)
    _check_shape(parsed, shape, "parsed")
    _check_shape(verdicts, shape, "verdicts")
    components = {name: np.zeros(shape) for name in rewards}
    reasons = np.full(shape, "", dtype=object)
    for p, g in np.ndindex(*shape):
        failure = batch.failures[p]
        if failure is not None:
            reasons[p, g] = failure.reason
            continue
        for name, reward in rewards.items():
            value, reason = _checked(reward(batch.examples[p], parsed[p][g], verdicts[p][g], cfg), name)
            components[name][p, g] = value
            if reason and getattr(cfg, name) != 0 and not reasons[p, g]:
                reasons[p, g] = reason
    valid = reasons == ""
    total = sum((getattr(cfg, name) * values for name, values in components.items()), np.zeros(shape))
    return Scores(
        total=np.where(valid, total, 0.0),
        valid=valid.astype(bool),
        components={name: np.where(valid, values, 0.0) for name, values in components.items()},
        reasons=tuple(tuple(row) for row in reasons),
    )


def _checked(result: Score, name: str) -> tuple[float, str]:
    """Value and why it is invalid ("" where it is not); an invalid value is 0."""
    if not result.valid:
        return 0.0, result.reason or f"{name}_abstained"
    if not math.isfinite(result.value):
        return 0.0, f"{name}_not_finite"
    return result.value, ""


def _check_shape(rows: Sequence[Sequence[object]], shape: tuple[int, int], name: str) -> None:
    found = [len(row) for row in rows]
    if found != [shape[1]] * shape[0]:
        raise ValueError(
            f"rewards.score: {name} has {len(found)} groups of sizes {sorted(set(found))}, rollouts have {shape[0]} "
            f"groups of {shape[1]}; pass one entry for each completion, in the order of rollouts.text"
        )
