"""Images as InternVL reads them: square tiles of one size, and a thumbnail of the whole where there are several.

transformers' GotOcr2ImageProcessor, which InternVLProcessor uses; the rule is the dynamic preprocessing of
OpenGVLab/InternVL.
"""

import numpy as np
from jaxtyping import UInt8
from PIL import Image


def grid(height: int, width: int, side_px: int, min_tiles: int, max_tiles: int) -> tuple[int, int]:
    """Rows and columns of tiles whose aspect ratio is nearest the image's, `min_tiles` to `max_tiles` of them.

    Of equally near grids the one with more tiles, as long as the image fills over half of their area.
    Raises ValueError where the bounds leave no grid.
    """
    if not 1 <= min_tiles <= max_tiles:
        raise ValueError(f"tiles: {min_tiles} to {max_tiles} leaves no grid; set 1 <= min_tiles <= max_tiles")
    best, nearest = (1, 1), float("inf")
    for rows, columns in _grids(min_tiles, max_tiles):
        distance = abs(width / height - columns / rows)
        fills_half = 2 * height * width > side_px**2 * rows * columns
        if distance < nearest or (distance == nearest and fills_half):
            best, nearest = (rows, columns), distance
    return best


def _grids(min_tiles: int, max_tiles: int) -> list[tuple[int, int]]:
    """Every (rows, columns) within the bounds, fewest tiles first, then by columns."""
    possible = range(1, max_tiles + 1)
    grids = [(rows, columns) for columns in possible for rows in possible if min_tiles <= rows * columns <= max_tiles]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])


def most(max_tiles: int) -> int:
    """Tiles of an image at the most, the thumbnail included."""
    return max_tiles + (max_tiles > 1)


def cut(
    image: UInt8[np.ndarray, "height width 3"], side_px: int, min_tiles: int, max_tiles: int
) -> UInt8[np.ndarray, "I side side 3"]:
    """Tiles row by row of the image stretched to its grid, then the thumbnail if there is more than one tile."""
    rows, columns = grid(image.shape[0], image.shape[1], side_px, min_tiles, max_tiles)
    canvas = stretch(image, (rows * side_px, columns * side_px))
    tiles = canvas.reshape(rows, side_px, columns, side_px, 3).swapaxes(1, 2).reshape(-1, side_px, side_px, 3)
    return tiles if len(tiles) == 1 else np.concatenate([tiles, stretch(image, (side_px, side_px))[None]])


def stretch(image: UInt8[np.ndarray, "height width 3"], size_px: tuple[int, int]) -> UInt8[np.ndarray, "h2 w2 3"]:
    """Bicubic with antialiasing to (height, width), rounded to uint8, as Pillow does."""
    if image.shape[:2] == size_px:
        return image
    height, width = size_px
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))
