"""R_ans: how right the final answer is."""

from collections.abc import Sequence

from vlrl import geometry
from vlrl.config import RewardsConfig
from vlrl.types import Box, Example, Parsed, Score, TimedBox, Verdict


def score(example: Example, parsed: Parsed, verdicts: Sequence[Verdict], cfg: RewardsConfig) -> Score:
    """Sum or mean of the signals that the example has an answer for, each in [0, 1]; 0 where it has none.

    The example itself says which are active, row by row: exact option, tIoU of the span, vIoU of the boxes.
    """
    values = []
    if example.answer_option is not None:
        values.append(float(parsed.option == example.answer_option.upper()))
    if example.answer_span_s is not None:
        values.append(geometry.tiou(parsed.span_s, example.answer_span_s) if parsed.span_s is not None else 0.0)
    if example.answer_boxes:
        values.append(visual_iou(parsed.boxes, example.answer_boxes, cfg.answer_box_tolerance_s))
    match cfg.answer_combine:
        case "sum":
            return Score(sum(values, 0.0))
        case "mean":
            return Score(sum(values, 0.0) / max(len(values), 1))
    raise ValueError(f"rewards.answer_combine: no rule {cfg.answer_combine!r}; choose sum or mean")


def visual_iou(answered: Sequence[TimedBox | Box], true: Sequence[TimedBox], tolerance_s: float) -> float:
    """Mean over the true boxes of the IoU with the answered box for that moment, 0 where there is none.

    That is the box nearest in time (tie: stated first), not the best one, so spraying boxes gains nothing; boxes
    without a time are taken in the order of the true boxes."""
    timed = [box for box in answered if isinstance(box, TimedBox)]
    untimed = [box for box in answered if not isinstance(box, TimedBox)]
    total = 0.0
    for i, target in enumerate(true):
        nearest = min(timed, key=lambda box: abs(box.time_s - target.time_s), default=None)
        if nearest is not None and abs(nearest.time_s - target.time_s) <= tolerance_s:
            total += geometry.iou(nearest.box, target.box)
        elif i < len(untimed):
            total += geometry.iou(untimed[i], target.box)
    return total / len(true)
