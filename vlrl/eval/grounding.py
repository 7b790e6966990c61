"""Temporal grounding: mIoU and the share of examples at or above an overlap (R@0.3, R@0.5, R@0.7)."""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from vlrl import claims, geometry

THRESHOLDS = (0.3, 0.5, 0.7)

# Time-R1's rule: the last "a to b" or "a and b" of the last answer; single spaces, no clock times, no units.
_TIME_R1 = re.compile(r"(\d+\.?\d*) (?:to|and) (\d+\.?\d*)")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def summary(ious: Float[np.ndarray, " B"], strict: bool = False) -> dict[str, float]:
    """`mIoU` and `R@t`, NaN entries (failed videos) left out; `strict` counts IoU > t as Time-R1's script does."""
    ious = np.asarray(ious, np.float64)
    ious = ious[~np.isnan(ious)]
    if not ious.size:
        return dict.fromkeys(["mIoU", *(f"R@{t}" for t in THRESHOLDS)], float("nan"))
    recalls = {f"R@{t}": float(np.mean(ious > t if strict else ious >= t)) for t in THRESHOLDS}
    return {"mIoU": float(ious.mean()), **recalls}


def span(text: str, official: bool = False) -> tuple[float, float] | None:
    """The interval that a response states in its last answer, in seconds; None where it states none.

    By default everything claims.span reads, within the answer tags where there are any."""
    if official:
        answers = _ANSWER.findall(text)
        found = _TIME_R1.findall(answers[-1]) if answers else []
        return (float(found[-1][0]), float(found[-1][1])) if found else None
    parsed = claims.parse(text, lambda _: None)
    return claims.span(text if parsed.answer is None else parsed.answer)


def iou(answered: Sequence[float] | None, true_s: tuple[float, float]) -> float:
    """Temporal IoU, 0 without an answer or with one that ends before it starts."""
    return 0.0 if answered is None else geometry.tiou((answered[0], answered[1]), true_s)
