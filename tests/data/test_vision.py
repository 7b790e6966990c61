import numpy as np
import pytest

from vlrl.data import vision


@pytest.mark.parametrize(
    ("size", "bounds", "expected"),
    [
        ((720, 1280), (128 * 784, 768 * 784), (560, 1008)),
        ((272, 640), (128 * 784, 768 * 784), (280, 644)),
        ((1080, 1920), (4 * 784, 128 * 784), (224, 420)),
        ((10, 10), (4 * 784, 128 * 784), (56, 56)),
        ((2, 390), (784, 2 * 784), (28, 532)),  # never a side of 0, though that breaks the maximum
    ],
)
def test_resized_sides_are_multiples_within_the_pixel_bounds(size, bounds, expected):
    assert vision.smart_resize(*size, 28, *bounds) == expected


def test_extreme_aspect_is_refused():
    with pytest.raises(ValueError, match=r"2010x10 px: .* 200 times"):
        vision.smart_resize(10, 2010, 28, 784, 10 * 784)


def test_pixel_budget_holds_for_frames_of_a_video(vision_cfg):
    frames = np.zeros((2, 1080, 1920, 3), np.uint8)
    made = vision.slices(frames, vision_cfg, 4 * 784, 128 * 784)
    assert made.size_px == (224, 420)
    assert made.units == 120


def test_patches_equal_a_plain_loop(vision_cfg):
    frames = np.random.default_rng(0).integers(0, 256, (4, 56, 84, 3), dtype=np.uint8)
    made = vision.slices(frames, vision_cfg, 1, 10**6)
    n = 0
    for block_row in range(2):
        for block_column in range(3):
            for row in (2 * block_row, 2 * block_row + 1):
                for column in (2 * block_column, 2 * block_column + 1):
                    patch = frames[2:4, 14 * row : 14 * row + 14, 14 * column : 14 * column + 14] / 255
                    patch = (patch - [0.48145466, 0.4578275, 0.40821073]) / [0.26862954, 0.26130258, 0.27577711]
                    values = [patch[t, y, x, c] for c in range(3) for t in (0, 1) for y in range(14) for x in range(14)]
                    np.testing.assert_allclose(made.patches[1, n], values, atol=1e-5)
                    assert made.rope[1, n].tolist() == [row, column]
                    n += 1
    assert n == made.patches.shape[1]


def test_seven_frames_become_four_slices_with_the_last_repeated(vision_cfg):
    frames = np.random.default_rng(0).integers(0, 256, (7, 56, 56, 3), dtype=np.uint8)
    made = vision.slices(frames, vision_cfg, 1, 10**6)
    assert made.grid == (4, 4, 4)
    eighth = vision.slices(np.concatenate([frames, frames[-1:]]), vision_cfg, 1, 10**6)
    np.testing.assert_array_equal(made.patches, eighth.patches)


def test_an_image_is_its_frame_twice(vision_cfg):
    frame = np.random.default_rng(0).integers(0, 256, (1, 56, 56, 3), dtype=np.uint8)
    made = vision.slices(frame, vision_cfg, 1, 10**6)
    assert made.grid == (1, 4, 4)
    pixels = made.patches.reshape(16, 3, 2, 14 * 14)
    np.testing.assert_array_equal(pixels[:, :, 0], pixels[:, :, 1])


def test_given_frames_are_not_sampled_again(vision_cfg):
    assert vision.slices(np.zeros((46, 56, 56, 3), np.uint8), vision_cfg, 1, 10**6).grid[0] == 23


def test_windows_are_four_by_four_merged_units_from_the_top_left(vision_cfg):
    # 336x336 px: 12x12 merged units, 3x3 whole windows; 168x280: 6x10 units, the last windows are cut
    assert _windows((336, 336), vision_cfg) == [
        [unit // 4 * 3 + other // 4 for other in range(12)] for unit in range(12)
    ]
    assert _windows((168, 280), vision_cfg) == [[0] * 4 + [1] * 4 + [2] * 2] * 4 + [[3] * 4 + [4] * 4 + [5] * 2] * 2


def _windows(size_px, cfg):
    """Window of each merged unit, as a picture."""
    made = vision.slices(np.zeros((1, *size_px, 3), np.uint8), cfg, 1, 10**6)
    units = made.window[0].reshape(-1, 4)
    assert (units == units[:, :1]).all()  # the four patches of a unit share its window
    return units[:, 0].reshape(size_px[0] // 28, size_px[1] // 28).tolist()
