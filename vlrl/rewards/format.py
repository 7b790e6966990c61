"""R_fmt: whether the completion has the parts that the other rewards read."""

from collections.abc import Sequence

from vlrl.config import RewardsConfig
from vlrl.types import Example, Parsed, Score, Verdict


def score(example: Example, parsed: Parsed, verdicts: Sequence[Verdict], cfg: RewardsConfig) -> Score:
    """1 with rationale, answer and a parseable claim; 0.5 with an answer but no parseable claim; 0 without an answer.

    Every task asks for a claim (SER, C.2). Claims are only found in a closed rationale, so one implies the other."""
    if not parsed.answer:
        return Score(0.0)
    return Score(1.0 if parsed.rationale and parsed.claims else 0.5)
