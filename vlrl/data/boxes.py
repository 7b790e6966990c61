"""Boxes in text and out of it: inside vlrl a box is 0..1 of the shown frame, models write other conventions.

norm1: 0..1 with two decimals. norm1000: thousandths, whole numbers (Qwen3-VL). abs_resized: pixels of the resized frame
that the model was shown, whole numbers (Qwen2.5-VL, QwenLM/Qwen3-VL issues 866 and 940).
"""

from collections.abc import Sequence

from vlrl.types import Box

SPACES = ("norm1", "norm1000", "abs_resized")


def to_text(box: Box, space: str, size_px: tuple[int, int]) -> str:
    """`[x1,y1,x2,y2]` of a 0..1 box; size_px is (height, width) of the resized frame."""
    scaled = [value * scale for value, scale in zip(box, _scale(space, size_px), strict=True)]
    numbers = [f"{value:.2f}" for value in scaled] if space == "norm1" else [str(round(value)) for value in scaled]
    return f"[{','.join(numbers)}]"


def from_numbers(numbers: Sequence[int | float], space: str, size_px: tuple[int, int]) -> Box:
    """The 0..1 box that four numbers of the space mean, neither clipped nor reordered: claims.py judges that."""
    if len(numbers) != 4:
        raise ValueError(f"{list(numbers)}: a box has 4 numbers, got {len(numbers)}; write [x1,y1,x2,y2]")
    x1, y1, x2, y2 = (float(value) / scale for value, scale in zip(numbers, _scale(space, size_px), strict=True))
    return x1, y1, x2, y2


def describe(space: str, size_px: tuple[int, int]) -> str:
    """The convention as the prompt tells it: a phrase that follows "the box"."""
    _scale(space, size_px)
    height, width = size_px
    return {
        "norm1": "is given in fractions of the frame's width and height, from 0 to 1",
        "norm1000": "is given in thousandths of the frame's width and height, from 0 to 1000",
        "abs_resized": f"is given in pixels of the {width}x{height} frame",
    }[space]


def _scale(space: str, size_px: tuple[int, int]) -> tuple[float, float, float, float]:
    height, width = size_px
    scales = {"norm1": (1.0, 1.0), "norm1000": (1000.0, 1000.0), "abs_resized": (float(width), float(height))}
    if space not in scales:
        raise ValueError(f"prompt.box_space: {space!r} is no coordinate convention; choose one of {', '.join(SPACES)}")
    x, y = scales[space]
    return x, y, x, y
