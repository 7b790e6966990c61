"""R_SER: what the referee thinks of the cited evidence."""

from collections.abc import Sequence

from vlrl.config import RewardsConfig
from vlrl.types import Example, Parsed, Score, Verdict


def score(example: Example, parsed: Parsed, verdicts: Sequence[Verdict], cfg: RewardsConfig) -> Score:
    """Mean of omega * relevance * localization over the graded claims, in [0, 1]; 0 without a valid claim.

    A verdict that failed says nothing about its claim and is left out; when no verdict is left the reward abstains."""
    if not parsed.claims:
        return Score(0.0)
    graded = [verdict for verdict in verdicts if verdict.failure is None]
    if not graded:
        failures = [verdict.failure for verdict in verdicts if verdict.failure is not None]
        return Score(0.0, valid=False, reason=failures[0].reason if failures else "claims_not_graded")
    return Score(sum(v.omega * v.relevance * v.localization for v in graded) / len(graded))
