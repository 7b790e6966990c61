"""Images and videos of the Qwen families: prompts of noise, and what transformers takes for them."""

import numpy as np
import tiny_vlm
import torch
from tiny_vlm import text

from vlrl.data import prompt

QUESTION = text(60, 61, 62, 63)


def image(cfg, size_px, seed):
    return tiny_vlm.media(cfg, "image", size_px, seed=seed)


def timed_video(cfg, size_px, frames, seed):
    """A block for each slice, after the ids that stand for its time."""
    slices = tiny_vlm.media(cfg, "video", size_px, frames, seed=seed).slices
    for k in range(slices.grid[0]):
        yield text(20 + k, 30)
        yield prompt.Media("video", slices.part(k, k + 1))


def inputs(cfg, row, media):
    """Kinds of tokens (1 image, 2 video), pixels and grids."""
    ids = torch.tensor(row.tokens[None].astype(np.int64))
    arguments = {"mm_token_type_ids": (ids == cfg.image_token_id).int() + 2 * (ids == cfg.video_token_id).int()}
    for kind, pixels, grids in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        found = [part for part in media if part.kind == kind]
        if found:
            patches = [part.slices.patches.reshape(-1, cfg.vision.patch_width) for part in found]
            arguments[pixels] = torch.tensor(np.concatenate(patches))
            arguments[grids] = torch.tensor([part.slices.grid for part in found])
    return arguments


def tower_outputs(model, inputs):
    """What the tower of transformers makes of each kind of medium."""
    for kind, pixels, grids in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        if pixels in inputs:
            yield kind, model.model.visual(inputs[pixels], grid_thw=inputs[grids])
