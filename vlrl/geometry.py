"""Overlap of boxes and of time spans."""

from vlrl.types import Box


def iou(a: Box, b: Box) -> float:
    """Intersection over union in [0, 1]; boxes without area overlap nothing."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    intersection = width * height
    return intersection / (area(a) + area(b) - intersection)


def area(box: Box) -> float:
    """Share of the frame, for a box in 0..1."""
    return max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)


def tiou(a_s: tuple[float, float], b_s: tuple[float, float]) -> float:
    """Intersection over union in [0, 1] of two (start, end) in seconds; spans without length overlap nothing."""
    intersection = min(a_s[1], b_s[1]) - max(a_s[0], b_s[0])
    if intersection <= 0:
        return 0.0
    return intersection / (a_s[1] - a_s[0] + b_s[1] - b_s[0] - intersection)
