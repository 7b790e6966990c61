"""Qwen3-VL: a block for every pair of frames, its time before it as text."""

import itertools

import pair
import qwen_media
import torch
import transformers
from qwen_media import QUESTION, image, timed_video
from tiny_vlm import text


def config(tied, deepstack):
    """Heads wider than hidden size / heads, as in the published 4B; a position table of 7 x 7."""
    return transformers.Qwen3VLConfig(
        text_config={
            **pair.TEXT_SIZES,
            "num_hidden_layers": 4,
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
            "tie_word_embeddings": tied,
        },
        vision_config={
            "depth": 4,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "num_position_embeddings": 49,
            "deepstack_visual_indexes": deepstack,
        },
        tie_word_embeddings=tied,
        image_token_id=150,
        video_token_id=151,
        vision_start_token_id=152,
        vision_end_token_id=153,
    )


def media(cfg, row, found):
    """Neighbouring blocks of one size are one video, which transformers splits again by itself."""
    arguments = qwen_media.inputs(cfg, row, found)
    if "video_grid_thw" in arguments:
        sizes = [tuple(grid) for grid in arguments["video_grid_thw"][:, 1:].tolist()]
        arguments["video_grid_thw"] = torch.tensor([[len(list(same)), *hw] for hw, same in itertools.groupby(sizes)])
    return arguments


def features(model, inputs):
    """The merged ones and the maps of DeepStack, as ours have them."""
    return {
        kind: torch.cat([out.pooler_output, *out.deepstack_features], dim=-1)
        for kind, out in qwen_media.tower_outputs(model, inputs)
    }


SQUARE, ODD, WIDE, NARROW = (128, 128), (96, 160), (32, 416), (320, 64)
FAMILY = pair.Family(
    model=transformers.Qwen3VLForConditionalGeneration,
    kinds={"untied": config(False, [0, 2]), "tied": config(True, [0, 1, 3])},
    prompts={
        "text": lambda _: [text(*range(2, 40))],
        "image": lambda cfg: [text(1, 2), image(cfg, SQUARE, 1), QUESTION],
        "image 32x32": lambda cfg: [text(1, 2), image(cfg, (32, 32), 2), QUESTION],
        "image 32x416": lambda cfg: [text(1, 2), image(cfg, WIDE, 3), QUESTION],
        "image 320x64": lambda cfg: [text(1, 2), image(cfg, NARROW, 4), QUESTION],
        "image 320x256": lambda cfg: [text(1, 2), image(cfg, (320, 256), 5), QUESTION],
        "images": lambda cfg: [image(cfg, ODD, 6), text(5), image(cfg, WIDE, 7), image(cfg, SQUARE, 8), QUESTION],
        "video of 5 frames": lambda cfg: [text(1), *timed_video(cfg, ODD, 5, 9), QUESTION],
        "video of one frame": lambda cfg: [text(1), *timed_video(cfg, ODD, 1, 10), QUESTION],
        "two videos": lambda cfg: [*timed_video(cfg, SQUARE, 4, 11), text(7), *timed_video(cfg, WIDE, 3, 12), QUESTION],
        "image and video": lambda cfg: [text(1), image(cfg, ODD, 13), *timed_video(cfg, ODD, 4, 14), QUESTION],
    },
    media=media,
    features=features,
    gradients_of=("text", "images", "two videos"),
    slices=5,
    patches=332,
)
