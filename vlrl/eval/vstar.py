"""The V-STaR protocol (arXiv 2503.11495): what, when and where of one question, in two orders of asking.

Chain 1 asks what, when, where; chain 2 what, where, when. A row is the annotation (`timestamps`, `bboxes`, `width`,
`height`, `fps`, `frame_count`, `domain`) with the model's `answer_vqa`, `answer_temporal`, `answer_spatial`,
`answer_temporal_2`, `answer_spatial_2` and the judge's `score` (0 to 3, right from 2 on).

`official=True` does what V-STaR-Bench/V-STaR eval.py does: rows without `answer_vqa` are in no list but in the overall
denominators; a score must be a bare integer; boxes are looked up by `str(timestamp)` and taken as they are. The default
counts every row once in everything, leaves out a row whose `failure` field says that its video could not be read and an
unreadable score, reads keys as numbers and converts boxes to pixels of the video.
"""

import ast
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vlrl import claims, geometry
from vlrl.data import boxes
from vlrl.eval import grounding, metrics
from vlrl.types import Box

AP_THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
RIGHT_SCORE, HIGHEST_SCORE = 2, 3
JOINT_TIOU, JOINT_VIOU = 0.3, 0.1
SUFFIXES = ("", "_2")
LENGTHS = ("Short", "Medium", "Long")
"""Below 60 s, below 180 s, longer (the published code; SER's caption of table 13 says otherwise)."""

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Scored:
    """What one row got right; two entries are the two chains."""

    answered: bool
    score: float
    """Of the judge; NaN where it is unreadable, 0 where there was nothing to judge."""
    tiou: tuple[float, float]
    viou: tuple[float, float]
    """Mean over the true boxes."""
    recall: tuple[tuple[float, ...], tuple[float, ...]]
    """Share of the true boxes found at each of AP_THRESHOLDS."""
    parsed: tuple[bool, bool, bool, bool]
    """Whether when and where of chain 1, when and where of chain 2 could be read."""


def score(row: Row, official: bool = False, box_space: str = "original") -> Scored:
    """Scores one row with its prediction.

    `box_space` says what the row's boxes are in, where they are not pixels of the original video: norm1, norm1000, or
    abs_resized (pixels of the frame that the model saw; the row's `box_size_px` [height, width] says its size).
    """
    answered = bool(row.get("answer_vqa"))
    spans = [_span(row.get(f"answer_temporal{suffix}")) for suffix in SUFFIXES]
    found = [_boxes(row.get(f"answer_spatial{suffix}"), official) for suffix in SUFFIXES]
    to_pixels = _identity if official else _to_pixels(row, box_space)
    ious = [_box_ious(row["bboxes"], by_time, official, to_pixels) for by_time in found]
    true_s = (float(row["timestamps"][0]), float(row["timestamps"][1]))
    one, two = (tuple(float(np.mean([i >= t for i in each])) if each else 0.0 for t in AP_THRESHOLDS) for each in ious)
    return Scored(
        answered=answered,
        score=_judged(row.get("score"), official) if answered else 0.0,
        tiou=(grounding.iou(spans[0], true_s), grounding.iou(spans[1], true_s)),
        viou=(float(np.mean(ious[0])) if ious[0] else 0.0, float(np.mean(ious[1])) if ious[1] else 0.0),
        recall=(one, two),
        parsed=(spans[0] is not None, bool(found[0]), spans[1] is not None, bool(found[1])),
    )


def report(rows: Sequence[Row], official: bool = False, box_space: str = "original") -> dict[str, Any]:
    """Overall metrics, the length and domain splits, and how much could not be read; all shares in [0, 1].

    {"overall": {...}, "length": {"Short": {...}, ...}, "domain": {...}, "rows", "failed_videos", "unread": {...}};
    each part as `aggregate`.
    """
    kept = [row for row in rows if official or not row.get("failure")]
    scored = [score(row, official, box_space) for row in kept]
    splits: dict[str, dict[str, Any]] = {}
    for name, of in (("length", length), ("domain", lambda row: str(row.get("domain", "unknown")))):
        groups: dict[str, list[Scored]] = {}
        for row, one in zip(kept, scored, strict=True):
            groups.setdefault(of(row), []).append(one)
        order = sorted(groups, key=lambda g: (LENGTHS.index(g) if g in LENGTHS else len(LENGTHS), g))
        splits[name] = {
            group: aggregate(groups[group], official, sum(one.answered for one in groups[group]) if official else None)
            for group in order
        }
    return {
        "overall": aggregate(scored, official),
        **splits,
        "rows": len(rows),
        "failed_videos": len(rows) - len(kept),
        "unread": unread(scored),
    }


def aggregate(scored: Sequence[Scored], official: bool = False, official_total: int | None = None) -> dict[str, Any]:
    """Means over rows: {"rows", "what", "chain1": {"when", "where", "AM", "LGM", "joint"}, "chain2", "mAM", "mLGM"}.

    `official_total` is the denominator of accuracy and joint rates in official mode, all rows by default. LGM is
    infinite where a part is perfect.
    """
    listed = [one for one in scored if one.answered] if official else list(scored)
    judged = [one.score for one in listed if not math.isnan(one.score)]
    total = len(judged) if not official else len(scored) if official_total is None else official_total
    what = {
        "acc": _share(sum(s >= RIGHT_SCORE for s in judged), total),
        "avg_all_score": _mean([0.0 if math.isnan(one.score) else one.score for one in listed]),
        "avg_valid_score": _mean(judged),
    }
    result: dict[str, Any] = {"rows": len(scored), "what": what}
    for k, name in enumerate(("chain1", "chain2")):
        when = grounding.summary(np.array([one.tiou[k] for one in listed]))
        where = {f"AP@{t}": _mean([one.recall[k][i] for one in listed]) for i, t in enumerate(AP_THRESHOLDS)}
        where["mIoU"] = _mean([one.viou[k] for one in listed])
        three = (what["acc"], when["mIoU"], where["mIoU"])
        joint = {
            group: _share(count, len(listed) if group == "when_where" and not official else total)
            for group, count in _joint(listed, k).items()
        }
        result[name] = {"when": when, "where": where, "AM": am(*three), "LGM": lgm(*three), "joint": joint}
    for metric in ("AM", "LGM"):
        result[f"m{metric}"] = (result["chain1"][metric] + result["chain2"][metric]) / 2
    return result


def am(acc: float, m_tiou: float, m_viou: float) -> float:
    """Arithmetic mean of what, when and where, each in [0, 1]."""
    return (acc + m_tiou + m_viou) / 3


def lgm(acc: float, m_tiou: float, m_viou: float) -> float:
    """Logarithmic geometric mean: -mean(ln(1 - x)); infinite for a perfect part, where the published script stops."""
    parts = (acc, m_tiou, m_viou)
    return math.inf if max(parts) >= 1 else -sum(math.log1p(-x) for x in parts) / 3


def unread(scored: Sequence[Scored]) -> dict[str, float]:
    """Share of rows of which a part could not be read: parse failures, never to be hidden in the means."""
    names = ("when", "where", "when_2", "where_2")
    return {
        "what": _mean([not one.answered for one in scored]),
        "judge": _mean([math.isnan(one.score) for one in scored if one.answered]),
        **{name: _mean([not one.parsed[i] for one in scored]) for i, name in enumerate(names)},
    }


def duration_s(row: Row) -> float:
    """Of the video, as the prompts and the splits have it."""
    return round(row["frame_count"] / row["fps"], 2)


def length(row: Row) -> str:
    """Short, Medium or Long."""
    seconds = duration_s(row)
    return "Short" if seconds < 60 else "Medium" if seconds < 180 else "Long"


def _joint(listed: Sequence[Scored], k: int) -> dict[str, int]:
    what = [one.score >= RIGHT_SCORE for one in listed]
    when = [one.tiou[k] >= JOINT_TIOU for one in listed]
    where = [one.viou[k] >= JOINT_VIOU for one in listed]
    together = {"what_when": (what, when), "what_where": (what, where), "when_where": (when, where)}
    every = {**together, "what_when_where": (what, when, where)}
    return {name: sum(all(parts) for parts in zip(*lists, strict=True)) for name, lists in every.items()}


def _judged(value: Any, official: bool) -> float:
    """The judge's score; NaN where it cannot be read."""
    if isinstance(value, bool) or value is None:
        return math.nan
    if isinstance(value, (int, float)):
        return float(value) if 0 <= value <= HIGHEST_SCORE else math.nan
    if not official:
        return metrics.judge_score(str(value), HIGHEST_SCORE)
    try:
        return float(int(str(value)))
    except ValueError:
        return math.nan


def _span(value: Any) -> tuple[float, float] | None:
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value[:200])
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(_is_number(v) for v in value):
        return None
    return float(value[0]), float(value[1])


def _boxes(value: Any, official: bool) -> Mapping[Any, Any]:
    """Boxes by second; by default the keys become numbers."""
    if not isinstance(value, dict):
        return {}
    if official:
        return value
    return {time_s: box for key, box in value.items() if (time_s := claims.seconds(str(key).rstrip("s "))) is not None}


def _box_ious(
    true: Sequence[Row], found: Mapping[Any, Any], official: bool, to_pixels: Callable[[Sequence[Any]], Box | None]
) -> list[float]:
    """IoU of each true box with the best of the boxes given for its time (several are allowed), 0 where none is."""
    ious = []
    for entry in true:
        target = (float(entry["xmin"]), float(entry["ymin"]), float(entry["xmax"]), float(entry["ymax"]))
        given = found.get(str(entry["timestamp"]) if official else float(entry["timestamp"]))
        if isinstance(given, (list, tuple)) and len(given) == 4 and all(_is_number(side) for side in given):
            given = [given]
        candidates = [to_pixels(box) for box in given if _is_box(box)] if isinstance(given, (list, tuple)) else []
        ious.append(max((geometry.iou(target, box) for box in candidates if box is not None), default=0.0))
    return ious


def _to_pixels(row: Row, box_space: str) -> Callable[[Sequence[Any]], Box | None]:
    if box_space == "original":
        return _identity
    size_px = row.get("box_size_px")
    if box_space == "abs_resized" and not size_px:
        raise ValueError(f"{row.get('vid')}: box_space abs_resized needs the field box_size_px, [height, width]")
    height, width = size_px or (1, 1)

    def convert(box: Sequence[Any]) -> Box:
        return boxes.to_pixels(boxes.from_numbers(box, box_space, (height, width)), (row["height"], row["width"]))

    return convert


def _identity(box: Sequence[Any]) -> Box:
    x1, y1, x2, y2 = (float(side) for side in box)
    return x1, y1, x2, y2


def _is_box(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 4 and all(_is_number(side) for side in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _share(count: int, total: int) -> float:
    return count / total if total else math.nan


def _mean(values: Sequence[float | bool]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
