"""Rewards: pure functions of (example, parsed completion, verdicts), one a file, and their weighted total."""

from collections.abc import Sequence

from vlrl.config import RewardsConfig
from vlrl.rewards import answer, evidence, format, total
from vlrl.types import Batch, Parsed, Rollouts, Scores, Verdict

REWARDS = {"answer": answer.score, "format": format.score, "evidence": evidence.score}
"""Each name is also the field of RewardsConfig that weighs it."""


def score(
    batch: Batch,
    rollouts: Rollouts,
    parsed: Sequence[Sequence[Parsed]],
    verdicts: Sequence[Sequence[Sequence[Verdict]]],
    cfg: RewardsConfig,
) -> Scores:
    """Weighted total and components [P, G] of every completion; see `total.score`."""
    return total.score(batch, rollouts, parsed, verdicts, cfg, REWARDS)
