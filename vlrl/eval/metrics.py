"""What one completion got right, measured against ground truth that no reward sees."""

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float

from vlrl import geometry
from vlrl.types import Claim, Example, Parsed, Score, TimedBox

TRACK_TOLERANCE_S = 0.51
"""Tracks are dense: one box for each video frame that shows the object, and no video is below 2 frames a second. No box
within a frame's length of the claimed time therefore means: not visible then."""

# Not the scale's end in "2/3" and "2 out of 3", no decimals, no signs.
_JUDGED = re.compile(r"(?<![0-9./\-])(?<!out of )([0-9]{1,3})(?![0-9]|\.[0-9])")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One row of the results; NaN where the example does not ask for it."""

    what_acc: float
    """Multiple choice: 1 for the right option."""
    tiou: float
    """Examples with a span: temporal IoU of the answer, 0 where it has none."""
    viou: float
    """Mean over all claims of the IoU with the true box of the claimed object at the claimed time. A claim of an object
    that the question is not about, or of a moment that does not show it, counts 0, and so does a rationale without
    claims."""
    viou_any_name: float
    """The same whatever object is named: the best IoU over the question's objects."""
    parse_rate: float
    """1 where the answer has every asked kind and at least one claim parses."""
    reward: float


NOT_EVALUATED = Evaluation(*[math.nan] * len(dataclasses.fields(Evaluation)))
"""Row of an example whose video failed: left out of every mean."""


def evaluate_completion(example: Example, parsed: Parsed, reward: Score) -> Evaluation:
    """Metrics of one completion; `reward` is its weighted total."""
    what_acc = tiou = math.nan
    answered = []
    if example.answer_option is not None:
        what_acc = float(parsed.option == example.answer_option.upper())
        answered.append(parsed.option is not None)
    if example.answer_span_s is not None:
        tiou = geometry.tiou(parsed.span_s, example.answer_span_s) if parsed.span_s is not None else 0.0
        answered.append(parsed.span_s is not None)
    if example.answer_boxes:
        answered.append(bool(parsed.boxes))
    if not answered:
        answered.append(bool(parsed.answer))
    return Evaluation(
        what_acc=what_acc,
        tiou=tiou,
        viou=_mean(claim_iou(example, claim) for claim in parsed.claims),
        viou_any_name=_mean(
            max((_iou_at(track, claim) for track in _subject_tracks(example).values()), default=0.0)
            for claim in parsed.claims
        ),
        parse_rate=float(all(answered) and bool(parsed.claims)),
        reward=reward.value if reward.valid else math.nan,
    )


def claim_iou(example: Example, claim: Claim) -> float:
    """IoU of a claim with the true box of the object it names, 0 where that is not one the question is about."""
    track = _subject_tracks(example).get(_normal(claim.phrase))
    return 0.0 if track is None else _iou_at(track, claim)


def judge_score(text: str, highest: int) -> float:
    """The whole number 0..highest that a judge wrote ("3", "Score: 3", "2/3"); NaN where it is none or several.

    Averages leave NaN out, so their share is to be reported beside them: `unread_rate`."""
    numbers = {int(digits) for digits in _JUDGED.findall(text)}
    return float(min(numbers)) if len(numbers) == 1 and min(numbers) <= highest else math.nan


def unread_rate(values: Float[np.ndarray, " B"]) -> float:
    """Share of NaN entries; NaN where there are no entries."""
    return float(np.isnan(values).mean()) if values.size else math.nan


def columns(rows: Sequence[Evaluation]) -> dict[str, Float[np.ndarray, " B"]]:
    """The rows as one array for each metric."""
    return {
        field.name: np.array([getattr(row, field.name) for row in rows], np.float64)
        for field in dataclasses.fields(Evaluation)
    }


def _subject_tracks(example: Example) -> dict[str, tuple[TimedBox, ...]]:
    subjects = {_normal(phrase) for phrase in example.subjects}
    return {_normal(phrase): track for phrase, track in example.tracks.items() if _normal(phrase) in subjects}


def _iou_at(track: Sequence[TimedBox], claim: Claim) -> float:
    nearest = min(track, key=lambda point: abs(point.time_s - claim.time_s), default=None)
    if nearest is None or abs(nearest.time_s - claim.time_s) > TRACK_TOLERANCE_S:
        return 0.0
    return geometry.iou(claim.box, nearest.box)


def _normal(phrase: str) -> str:
    return " ".join(phrase.casefold().split())


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
