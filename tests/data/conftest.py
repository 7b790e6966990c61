"""Clips made on the spot, stand-ins for media, small configurations."""

import dataclasses
import fractions

import av
import numpy as np
import pytest

from vlrl.config import DataConfig, PromptConfig
from vlrl.data import vision
from vlrl.models.config import Qwen25Vision, VlmConfig
from vlrl.world import tokenizer as tiny_tokenizer


def level(index):
    """Grey level of frame number index: says which frame was decoded."""
    return 20 + 6 * index


@pytest.fixture
def make_clip(tmp_path):
    """make_clip(name, times_s, size_px=(height, width)): frame k is grey level(k), its top left quarter white."""

    def make(name, times_s, size_px=(64, 96), codec="libx264", rate=30, options=None):
        path = tmp_path / name
        with av.open(str(path), "w", options=options or {}) as output:
            stream = output.add_stream(codec, rate=fractions.Fraction(rate))
            stream.height, stream.width = size_px
            stream.pix_fmt = "yuv420p"
            stream.codec_context.time_base = fractions.Fraction(1, 1000)
            if codec == "libx264":
                stream.options = {"crf": "8", "bf": "0"}
            for k, time_s in enumerate(times_s):
                image = np.full((*size_px, 3), level(k), np.uint8)
                image[: size_px[0] // 2, : size_px[1] // 2] = 250
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                frame.pts, frame.time_base = round(time_s * 1000), fractions.Fraction(1, 1000)
                output.mux(stream.encode(frame))
            output.mux(stream.encode())
        return str(path)

    return make


@pytest.fixture(scope="session")
def vision_cfg():
    return Qwen25Vision(depth=2, hidden_size=32, num_heads=2, intermediate_size=32, out_hidden_size=32)


@pytest.fixture(scope="session")
def point_cfg(vision_cfg):
    """A patch is one number: large grids stay small."""
    return dataclasses.replace(vision_cfg, patch_size=1, temporal_patch_size=1, in_channels=1, window_size=8)


@pytest.fixture
def media_of():
    """media_of(slices, rows, columns, value): patches of one number each, all equal to value."""

    def make(count, rows, columns, value=1.0):
        return vision.SlicePatches(
            patches=np.full((count, rows * columns, 1), value, np.float32),
            rope=np.ones((count, rows * columns, 2), np.int32),
            window=np.zeros((count, rows * columns), np.int32),
            grid=(count, rows, columns),
            size_px=(rows, columns),
            merge_size=2,
        )

    return make


@pytest.fixture(scope="session")
def tokenizer():
    return tiny_tokenizer.build()


@pytest.fixture(scope="session")
def vlm_cfg(tokenizer, vision_cfg):
    ids = [
        tokenizer.convert_tokens_to_ids(name)
        for name in ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    ]
    return VlmConfig(
        family="qwen2_5_vl",
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        intermediate_size=32,
        rope_theta=1e4,
        mrope_section=(2, 3, 3),
        rms_norm_eps=1e-6,
        qkv_bias=True,
        qk_norm=False,
        tie_word_embeddings=True,
        image_token_id=ids[0],
        video_token_id=ids[1],
        vision_start_token_id=ids[2],
        vision_end_token_id=ids[3],
        vision=vision_cfg,
    )


@pytest.fixture
def data_cfg():
    return DataConfig(
        num_frames=4,
        min_pixels=56 * 56,
        max_pixels=112 * 112,
        decode_workers=2,
        max_decoded_bytes=2**26,
        prompts_per_step=4,
        prompt_buckets=(256, 1024),
        slice_buckets=(2, 4),
        patch_buckets=(64,),
    )


@pytest.fixture
def prompt_cfg():
    return PromptConfig(instruction="The box {box_space}.\n", box_space="norm1000")
