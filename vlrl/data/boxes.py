"""Boxes in text and out of it: inside vlrl a box is 0..1 of the shown frame, models write other conventions.

norm1: 0..1 with two decimals. norm1000: thousandths, whole numbers. abs_resized: pixels of the resized frame that the
model was shown, whole numbers. family: the one that the model's family was trained with.
"""

from collections.abc import Sequence

from vlrl.models.config import Family
from vlrl.types import Box

SPACES = ("norm1", "norm1000", "abs_resized")
FAMILY = "family"
FAMILY_SPACE: dict[Family, str] = {
    "qwen2_5_vl": "abs_resized",  # QwenLM/Qwen3-VL issues 866 and 940
    "qwen3_vl": "norm1000",  # QwenLM/Qwen3-VL issues 1486 and 1741
    "internvl": "norm1000",  # OpenGVLab/InternVL eval/refcoco: boxes of 0 to 1000
}


def of_family(space: str, family: Family) -> str:
    """The convention that `space` means for a model of `family`: itself, unless it is "family"."""
    return FAMILY_SPACE[family] if space == FAMILY else space


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


def to_pixels(box: Box, size_px: tuple[int, int]) -> Box:
    """Corners in pixels of a frame of (height, width), such as the original one; not rounded."""
    height, width = size_px
    x1, y1, x2, y2 = box
    return x1 * width, y1 * height, x2 * width, y2 * height


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
        raise ValueError(f"box_space: {space!r} is no coordinate convention; choose one of {', '.join(SPACES)}")
    x, y = scales[space]
    return x, y, x, y
