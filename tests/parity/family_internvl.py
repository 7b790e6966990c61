"""InternVL: tiles and thumbnails of images, one tile for each frame of a video, all pictures to transformers."""

import numpy as np
import pair
import tiny_vlm
import torch
import transformers
from tiny_vlm import text

from vlrl.data import prompt


def config(tied, **vision):
    return transformers.InternVLConfig(
        text_config={
            **pair.TEXT_SIZES,
            "model_type": "qwen2",
            "tie_word_embeddings": tied,
        },
        vision_config={
            "num_hidden_layers": 3,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "intermediate_size": 48,
            "image_size": [84, 84],  # 6 x 6 patches: 9 tokens a tile
            **vision,
        },
        tie_word_embeddings=tied,
        image_token_id=150,
        image_seq_length=9,
    )


def image(cfg, size_px, seed, max_tiles=6):
    return tiny_vlm.media(cfg, "image", size_px, seed=seed, max_tiles=max_tiles)


def video(cfg, size_px, frames, seed):
    """Frames as the family numbers them, between ids in place of words."""
    slices = tiny_vlm.media(cfg, "video", size_px, frames, seed=seed).slices
    for k in range(frames):
        yield text(20 + k, 30)
        yield prompt.Media("image", slices.part(k, k + 1))


def pictures(slices):
    """[tiles, channel, y, x] from patches in merge order (block row, block column, row, column, channel, y, x)."""
    blocks = slices.grid[1] // 2
    patches = slices.patches.reshape(-1, blocks, blocks, 2, 2, 3, 14, 14).transpose(0, 5, 1, 3, 6, 2, 4, 7)
    return patches.reshape(-1, 3, 28 * blocks, 28 * blocks)


def media(_cfg, _row, found):
    return {"pixel_values": torch.tensor(np.concatenate([pictures(medium.slices) for medium in found]))}


def features(model, inputs):
    out = model.model.get_image_features(inputs["pixel_values"]).pooler_output
    return {"image": out.reshape(-1, out.shape[-1])}


QUESTION = text(60, 61, 62, 63)
FAMILY = pair.Family(
    model=transformers.InternVLForConditionalGeneration,
    kinds={
        "InternVL3": config(False, attention_bias=True, use_qk_norm=False),
        "tied, norms of queries and keys, no bias": config(True, attention_bias=False, use_qk_norm=True),
    },
    prompts={
        "text": lambda _: [text(*range(2, 40))],
        "image": lambda cfg: [text(1, 2), image(cfg, (84, 84), 1), QUESTION],
        "image of 3 tiles": lambda cfg: [text(1, 2), image(cfg, (90, 160), 2), QUESTION],
        "image of 7 tiles": lambda cfg: [text(1, 2), image(cfg, (120, 190), 3), QUESTION],
        "images": lambda cfg: [
            *(image(cfg, (84, 140), 6), text(5), image(cfg, (160, 90), 7, 2), image(cfg, (20, 30), 8)),
            QUESTION,
        ],
        "video of 3 frames": lambda cfg: [text(1), *video(cfg, (48, 80), 3, 9), QUESTION],
        "video of one frame": lambda cfg: [*video(cfg, (84, 84), 1, 10), QUESTION],
        "two videos": lambda cfg: [*video(cfg, (84, 84), 2, 12), text(7), *video(cfg, (56, 140), 5, 13), QUESTION],
        "image and video": lambda cfg: [text(1), image(cfg, (84, 140), 14), *video(cfg, (48, 80), 4, 15), QUESTION],
    },
    media=media,
    features=features,
    gradients_of=("text", "images", "two videos"),
    slices=18,  # one more than any prompt has, and patches beyond a tile's
    patches=40,
)
