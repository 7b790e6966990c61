"""What the referee sees of a claim: the frame with the claimed box drawn on it, and the content of the box."""

import numpy as np
from jaxtyping import UInt8

from vlrl.data import boxes
from vlrl.types import Box

LINE_SHARE = 56
"""A line is 1/56 of the frame's shorter side wide: two pixels after a resize to 112."""
MAX_CROP_ASPECT = 4
"""A sliver is shown with what is around it: enlarged alone it would outgrow the patch budget."""


def boxed_frame(frame: UInt8[np.ndarray, "height width 3"], box: Box) -> UInt8[np.ndarray, "height width 3"]:
    """The frame with a black and white rectangle just outside `box`: two tones show on any background."""
    height, width = frame.shape[:2]
    x1, y1, x2, y2 = _pixels(box, height, width)
    line = max(2, round(min(height, width) / LINE_SHARE))
    drawn = frame.copy()
    for inset, tone in ((line, 0), (line // 2, 255)):
        left, top = max(x1 - inset, 0), max(y1 - inset, 0)
        right, bottom = min(x2 + inset, width), min(y2 + inset, height)
        drawn[top:bottom, left:right] = tone
    drawn[y1:y2, x1:x2] = frame[y1:y2, x1:x2]
    return drawn


def crop(frame: UInt8[np.ndarray, "height width 3"], box: Box) -> UInt8[np.ndarray, "h w 3"]:
    """The pixels inside `crop_px(box)`."""
    x1, y1, x2, y2 = crop_px(box, *frame.shape[:2])
    return frame[y1:y2, x1:x2]


def crop_px(box: Box, height: int, width: int) -> tuple[int, int, int, int]:
    """Corners (x1, y1, x2, y2) in pixels of what is cut out for a box: at least one pixel, a sliver is widened."""
    x1, y1, x2, y2 = _pixels(box, height, width)
    x1, x2 = _widened(x1, x2, -(-(y2 - y1) // MAX_CROP_ASPECT), width)
    y1, y2 = _widened(y1, y2, -(-(x2 - x1) // MAX_CROP_ASPECT), height)
    return x1, y1, x2, y2


def _pixels(box: Box, height: int, width: int) -> tuple[int, int, int, int]:
    x1, y1, x2, y2 = (int(side + 0.5) for side in boxes.to_pixels(box, (height, width)))
    left, top = min(x1, width - 1), min(y1, height - 1)
    return left, top, max(x2, left + 1), max(y2, top + 1)


def _widened(start: int, stop: int, least: int, limit: int) -> tuple[int, int]:
    missing = max(least - (stop - start), 0)
    start = max(min(start - missing // 2, limit - (stop - start) - missing), 0)
    return start, min(max(stop, start + least), limit)
