"""A tiny referee, a video of two frames, and claims about it."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import tiny_vlm

from vlrl.config import RefereeConfig
from vlrl.models import vlm
from vlrl.referees import ser_referee
from vlrl.types import Batch, Branches, Claim, Example, Parsed, Rollouts, Video
from vlrl.world import tokenizer as tiny_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return tiny_tokenizer.build()


@pytest.fixture(scope="session")
def vlm_cfg(tokenizer):
    names = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    names |= {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    ids = {f"{part}_token_id": tokenizer.convert_tokens_to_ids(name) for part, name in names.items()}
    return dataclasses.replace(tiny_vlm.CFG, vocab_size=len(tokenizer), **ids)


@pytest.fixture(scope="session")
def cfg():
    """Frames of 16 x 16 px in patches of 4: four merged units an image."""
    return RefereeConfig(
        instruction="",
        relevance_question="Relevance",
        localization_question="Localization",
        claims_per_call=2,
        prompt_buckets=(128,),
        patch_buckets=(16,),
        min_pixels=16 * 16,
        max_pixels=16 * 16,
        crop_min_pixels=8 * 8,
        max_response_tokens=24,
    )


@pytest.fixture(scope="session")
def referee(tokenizer, vlm_cfg, cfg):
    return ser_referee.make(vlm.Vlm(vlm_cfg, jnp.dtype("float32")), tiny_vlm.random_params(vlm_cfg), tokenizer, cfg)


@pytest.fixture(scope="session")
def example():
    return Example("e1", "e1.mp4", "mcq", "What shape is the red object?", "B. circle", ("square", "circle"), "B")


@pytest.fixture(scope="session")
def video():
    frames = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    return Video(frames, np.array([0.0, 2.0]), 2.5, 4.0)


def claim(phrase, time_s=2.0, box=(0.25, 0.25, 0.75, 0.75)):
    return Claim(phrase, box, time_s)


@pytest.fixture(scope="session")
def claims():
    return claim


def parsed(*given):
    return Parsed(None, None, tuple(given), 0, None, None, ())


@pytest.fixture(scope="session")
def make_case(example, video):
    """make_case([P][G] of (text, claims), videos=...): batch, rollouts and parsed as `grade` reads them."""

    def make(groups, videos=None):
        videos = tuple(videos or [video] * len(groups))
        row = tiny_vlm.row(tiny_vlm.CFG, tiny_vlm.text(1))
        prefix = tiny_vlm.collate(tiny_vlm.CFG, [row] * len(groups), 2)
        batch = Batch((example,) * len(groups), videos, (None,) * len(groups), ("",) * len(groups), prefix)
        shape = (len(groups), len(groups[0]))
        branches = Branches(np.zeros((*shape, 1), np.int32), np.ones(shape, np.int32))
        texts = tuple(tuple(text for text, _ in group) for group in groups)
        rollouts = Rollouts(branches, np.zeros((*shape, 1), np.float32), np.ones(shape, bool), texts)
        return batch, rollouts, tuple(tuple(parsed(*given) for _, given in group) for group in groups)

    return make
