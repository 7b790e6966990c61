"""Resize, normalise, patch order and tiles against transformers' image processors (their Pillow variants)."""

import numpy as np
import pytest
from transformers.models.got_ocr2 import image_processing_pil_got_ocr2
from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl

from vlrl.data import tiles, vision
from vlrl.models.config import InternVision, Qwen25Vision

CFG = Qwen25Vision(depth=1, hidden_size=16, num_heads=1, intermediate_size=16, out_hidden_size=16)
TILED = InternVision(depth=1, hidden_size=16, num_heads=1, intermediate_size=16, out_hidden_size=16, image_size=56)


@pytest.mark.parametrize("size", [(112, 112), (100, 180), (333, 251), (30, 40), (1080, 1920)])
def test_patches_equal_the_image_processor(size):
    frame = np.random.default_rng(0).integers(0, 256, (1, *size, 3), dtype=np.uint8)
    bounds = (4 * 784, 128 * 784)
    processor = image_processing_pil_qwen2_vl.Qwen2VLImageProcessorPil(min_pixels=bounds[0], max_pixels=bounds[1])
    theirs = processor(frame[0], return_tensors="np")
    ours = vision.slices(frame, CFG, *bounds)
    assert [list(ours.grid)] == theirs["image_grid_thw"].tolist()
    np.testing.assert_allclose(ours.patches[0], theirs["pixel_values"], atol=1e-5)


@pytest.mark.parametrize("size", [(720, 1280), (272, 640), (31, 17), (5000, 30)])
def test_sizes_equal_smart_resize(size):
    assert vision.smart_resize(*size, 28, 4 * 784, 768 * 784) == image_processing_pil_qwen2_vl.smart_resize(
        *size, 28, 4 * 784, 768 * 784
    )


SHAPES = [(448, 448), (720, 1280), (1280, 720), (272, 640), (144, 176), (1080, 1920), (30, 40), (20, 2000), (2000, 20)]


@pytest.mark.parametrize("bounds", [(1, 12), (1, 6), (3, 8), (1, 1)])
def test_tile_grids_equal_the_image_processor(bounds):
    for height, width in [*SHAPES, (448, 896), (449, 900), (333, 251), (90, 16), (3000, 3000)]:
        columns, rows = image_processing_pil_got_ocr2.get_optimal_tiled_canvas((height, width), (448, 448), *bounds)
        assert tiles.grid(height, width, 448, *bounds) == (rows, columns)


@pytest.mark.parametrize("size", SHAPES)
def test_tiles_equal_the_image_processor(size):
    frame = np.random.default_rng(0).integers(0, 256, (1, *size, 3), dtype=np.uint8)
    mean, std = vision.STATISTICS[InternVision]
    processor = image_processing_pil_got_ocr2.GotOcr2ImageProcessorPil(
        size={"height": 56, "width": 56}, crop_to_patches=True, max_patches=6, image_mean=mean, image_std=std
    )
    theirs = processor(frame[0], return_tensors="np")["pixel_values"]
    ours = vision.slices(frame, TILED, 1, 1, max_tiles=6)
    assert ours.grid == (len(theirs), 4, 4)
    # from merge order (block row, block column, row, column, channel, y, x) to pictures
    patches = ours.patches.reshape(-1, 2, 2, 2, 2, 3, 14, 14).transpose(0, 5, 1, 3, 6, 2, 4, 7)
    np.testing.assert_allclose(patches.reshape(-1, 3, 56, 56), theirs, atol=1e-5)
