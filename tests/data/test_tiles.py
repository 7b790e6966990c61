"""Grids by hand from the rule of OpenGVLab/InternVL: nearest aspect, then more tiles while over half filled."""

import numpy as np
import pytest

from vlrl.data import tiles, vision
from vlrl.models.config import InternVision

CFG = InternVision(depth=1, hidden_size=16, num_heads=1, intermediate_size=16, out_hidden_size=16, image_size=56)


@pytest.mark.parametrize(
    ("size", "max_tiles", "expected"),
    [
        ((448, 448), 12, (1, 1)),
        ((896, 896), 12, (2, 2)),  # 3 x 3 would be less than half filled
        ((2000, 2000), 12, (3, 3)),
        ((720, 1280), 12, (2, 4)),  # 16:9 is as near to 2 x 4 as to 1 x 2, and fills over half of the larger
        ((360, 640), 12, (1, 2)),
        ((720, 1280), 4, (1, 2)),
        ((1280, 720), 6, (2, 1)),
        ((720, 1280), 1, (1, 1)),
        ((10, 2000), 12, (1, 12)),
        ((2000, 10), 12, (12, 1)),
    ],
)
def test_grid_has_the_nearest_aspect(size, max_tiles, expected):
    assert tiles.grid(*size, 448, 1, max_tiles) == expected


def test_at_least_the_least_number_of_tiles():
    assert tiles.grid(448, 448, 448, 2, 12) == (2, 2)


@pytest.mark.parametrize("bounds", [(0, 4), (5, 4)])
def test_bounds_without_a_grid_are_an_error(bounds):
    with pytest.raises(ValueError, match="set 1 <= min_tiles <= max_tiles"):
        tiles.grid(100, 100, 448, *bounds)


def test_tiles_go_row_by_row_and_the_thumbnail_is_last():
    image = np.zeros((112, 168, 3), np.uint8)
    for row in range(2):
        for column in range(3):
            image[56 * row : 56 * row + 56, 56 * column : 56 * column + 56] = 40 * (3 * row + column)
    cut = tiles.cut(image, 56, 1, 6)
    assert cut.shape == (7, 56, 56, 3)
    assert [int(tile.min()) for tile in cut[:6]] == [int(tile.max()) for tile in cut[:6]] == [0, 40, 80, 120, 160, 200]
    assert cut[6, 14, 9].tolist() == [0] * 3
    assert cut[6, 42, 46].tolist() == [200] * 3  # the middle of the last tile, in the small picture


@pytest.mark.parametrize(("max_tiles", "count", "size_px"), [(1, 1, (56, 56)), (4, 3, (56, 112)), (12, 9, (112, 224))])
def test_slices_of_an_image_are_its_tiles(max_tiles, count, size_px):
    image = np.zeros((1, 90, 160, 3), np.uint8)
    made = vision.slices(image, CFG, 1, 1, max_tiles)
    assert made.grid == (count, 4, 4)
    assert made.units == 4
    assert made.size_px == size_px
    assert count <= tiles.most(max_tiles)


@pytest.mark.parametrize("frames", [1, 2, 3, 31])
def test_every_frame_of_a_video_is_one_tile(frames):
    video = np.random.default_rng(0).integers(0, 256, (frames, 20, 40, 3), dtype=np.uint8)
    made = vision.slices(video, CFG, 1, 1)
    assert made.grid == (frames, 4, 4)
    alone = vision.slices(video[-1:], CFG, 1, 1)
    np.testing.assert_array_equal(made.patches[-1:], alone.patches)
