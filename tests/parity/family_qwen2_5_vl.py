"""Qwen2.5-VL. transformers 5 steps on by the longer side after a video, 4 and Qwen's training code by the maximum + 1:
where the two differ, it is given our positions."""

import pair
import qwen_media
import tiny_vlm
import torch
import transformers
from qwen_media import QUESTION, image
from tiny_vlm import text


def config(tied):
    return transformers.Qwen2_5_VLConfig(
        text_config={
            **pair.TEXT_SIZES,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
            "tie_word_embeddings": tied,
        },
        vision_config={
            "depth": 3,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
        },
        tie_word_embeddings=tied,
        image_token_id=150,
        video_token_id=151,
        vision_start_token_id=152,
        vision_end_token_id=153,
    )


def video(cfg, size_px, frames, second_per_grid, seed):
    """One block for the whole video."""
    return tiny_vlm.media(cfg, "video", size_px, frames, second_per_grid, seed)


def media(cfg, row, found):
    seconds = [part.second_per_grid for part in found if part.kind == "video"]
    times = {"second_per_grid_ts": torch.tensor(seconds)} if seconds else {}
    return qwen_media.inputs(cfg, row, found) | times


def features(model, inputs):
    return {kind: out.pooler_output for kind, out in qwen_media.tower_outputs(model, inputs)}


SQUARE, ODD, LARGE, WIDE = (112, 112), (84, 140), (336, 336), (168, 280)
FAMILY = pair.Family(
    model=transformers.Qwen2_5_VLForConditionalGeneration,
    kinds={"untied": config(False), "tied": config(True)},
    prompts={
        "text": lambda _: [text(*range(2, 40))],
        "image": lambda cfg: [text(1, 2), image(cfg, SQUARE, 1), QUESTION],
        "image 84x140": lambda cfg: [text(1, 2), image(cfg, ODD, 2), QUESTION],
        "image 336x336": lambda cfg: [text(1, 2), image(cfg, LARGE, 3), QUESTION],
        "image 168x280": lambda cfg: [text(1, 2), image(cfg, WIDE, 4), QUESTION],
        "image 308x252": lambda cfg: [text(1, 2), image(cfg, (308, 252), 5), QUESTION],
        "images": lambda cfg: [image(cfg, ODD, 6), text(5), image(cfg, WIDE, 7), image(cfg, SQUARE, 8), QUESTION],
        "video of 5 frames": lambda cfg: [text(1), video(cfg, ODD, 5, 0.75, 10), QUESTION],
        "video longer than wide": lambda cfg: [text(1), video(cfg, (56, 84), 8, 12.5, 11), QUESTION],
        "video in blocks with times": lambda cfg: [*qwen_media.timed_video(cfg, (84, 112), 6, 9), QUESTION],
        "two videos": lambda cfg: [
            *(video(cfg, SQUARE, 2, 1.0, 12), text(7), video(cfg, (56, 140), 6, 1.0, 13), QUESTION),
        ],
        "image and video": lambda cfg: [text(1), image(cfg, ODD, 14), video(cfg, ODD, 4, 0.5, 15), QUESTION],
    },
    media=media,
    features=features,
    gradients_of=("text", "images", "two videos"),
    own_positions=("video longer than wide",),
    slices=4,
    patches=576,
)
