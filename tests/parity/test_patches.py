"""Resize, normalise and patch order against transformers' Qwen2-VL image processor (its Pillow variant)."""

import numpy as np
import pytest
from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl

from vlrl.data import vision
from vlrl.models.config import Qwen25Vision

CFG = Qwen25Vision(depth=1, hidden_size=16, num_heads=1, intermediate_size=16, out_hidden_size=16)


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
