"""Writes a tiny random checkpoint of any family: `python -m vlrl.world.random_checkpoint --family internvl --out DIR`.

Two layers of width 64 in Hugging Face layout, with the tiny world's tokenizer and the family's special tokens. It knows
nothing; it stands where a downloaded checkpoint would, to try a config or to compare implementations.
"""

import argparse
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from vlrl import command_line, config
from vlrl.data import vision
from vlrl.io import hf_export, hf_keys
from vlrl.models import config as model_config
from vlrl.models.config import Family
from vlrl.world import architecture, tokenizer

WIDTH, INNER, DEPTH, HEADS = 64, 96, 2, 4
TILE_PX = 112
"""Side of InternVL's tiles: that of a frame of the tiny world."""


def hf_config(family: Family) -> dict[str, Any]:
    """config.json of the family, as its published checkpoints have it."""
    tiny = tokenizer.build(family)

    def token(name: str) -> int:
        return int(tiny.get_vocab()[name])

    return HF_CONFIGS[family](len(tiny), token)


def params(raw: dict[str, Any], seed: int) -> dict[str, Any]:
    """Random float32 weights that make logits of a few units, as a parameter tree."""
    rng = np.random.default_rng(seed)
    leaves = {}
    for entry in hf_keys.table(model_config.from_hf(raw)):
        noise = rng.normal(size=entry.leaf_shape)
        if entry.path[-1] == "scale":
            leaves[entry.path] = 1 + 0.1 * noise
        elif entry.path[-1] == "kernel":
            leaves[entry.path] = noise / np.sqrt(entry.leaf_shape[-2])
        else:
            leaves[entry.path] = 0.3 * noise
    return hf_keys.unflatten({path: leaf.astype(np.float32) for path, leaf in leaves.items()})


def write(directory: pathlib.Path, family: Family, seed: int, overwrite: bool = False) -> None:
    """A whole checkpoint directory; the same seed gives the same bytes. Raises ValueError where it is in use."""
    raw = hf_config(family)
    with tempfile.TemporaryDirectory() as carried:
        _support_files(pathlib.Path(carried), family)
        weights = params(raw, seed)
        hf_export.export_full(raw, weights, "float32", directory, carried, overwrite=overwrite)


def _support_files(directory: pathlib.Path, family: Family) -> None:
    if family == "qwen2_5_vl":
        architecture.write_support_files(directory, config.Config())
        return
    tokenizer.save(directory, family)
    generation = architecture.generation(tokenizer.build(family))
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    if family in PREPROCESSORS:
        mean, std = vision.STATISTICS[type(model_config.from_hf(hf_config(family)).vision)]
        settings = PREPROCESSORS[family] | {"image_mean": mean, "image_std": std}
        (directory / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    if family == "internvl":
        processor = {"processor_class": "InternVLProcessor", "image_seq_length": (TILE_PX // 28) ** 2}
        (directory / "processor_config.json").write_text(json.dumps(processor, indent=2) + "\n")


PREPROCESSORS: dict[Family, dict[str, Any]] = {
    "qwen3_vl": {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        "size": {"shortest_edge": 4 * 32 * 32, "longest_edge": 128 * 32 * 32},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
    },
    "internvl": {
        "image_processor_type": "GotOcr2ImageProcessorFast",
        "processor_class": "InternVLProcessor",
        "crop_to_patches": False,
        "min_patches": 1,
        "max_patches": 12,
        "size": {"height": TILE_PX, "width": TILE_PX},
    },
}


def _text(size: int, token: Callable[[str], int], model_type: str) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "vocab_size": size,
        "hidden_size": WIDTH,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "head_dim": WIDTH // HEADS,
        "intermediate_size": INNER,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "max_window_layers": DEPTH,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "use_sliding_window": False,
        "tie_word_embeddings": False,  # tied, a random model repeats one token
        "bos_token_id": token("<|endoftext|>"),
        "eos_token_id": token("<|im_end|>"),
        "pad_token_id": token("<|endoftext|>"),
    }


def _qwen2_5_vl(size: int, token: Callable[[str], int]) -> dict[str, Any]:
    """The shipped tiny models', smaller."""
    raw = architecture.hf_config()
    tower = raw["vision_config"] | {
        "depth": DEPTH,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "out_hidden_size": WIDTH,
        "fullatt_block_indexes": [1],
    }
    return raw | {
        "hidden_size": WIDTH,
        "num_hidden_layers": DEPTH,
        "intermediate_size": INNER,
        "max_window_layers": DEPTH,
        "tie_word_embeddings": False,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "torch_dtype": "float32",
        "vision_config": tower,
    }


def _qwen3_vl(size: int, token: Callable[[str], int]) -> dict[str, Any]:
    rope = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [4, 2, 2]}
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "image_token_id": token("<|image_pad|>"),
        "video_token_id": token("<|video_pad|>"),
        "vision_start_token_id": token("<|vision_start|>"),
        "vision_end_token_id": token("<|vision_end|>"),
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "text_config": _text(size, token, "qwen3_vl_text") | {"rope_scaling": rope, "attention_bias": False},
        "vision_config": {
            "model_type": "qwen3_vl",
            "depth": DEPTH,
            "hidden_size": WIDTH,
            "num_heads": HEADS,
            "intermediate_size": INNER,
            "out_hidden_size": WIDTH,
            "hidden_act": "gelu_pytorch_tanh",
            "in_channels": 3,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
    }


def _internvl(size: int, token: Callable[[str], int]) -> dict[str, Any]:
    return {
        "architectures": ["InternVLForConditionalGeneration"],
        "model_type": "internvl",
        "image_token_id": token("<IMG_CONTEXT>"),
        "image_seq_length": (TILE_PX // 28) ** 2,
        "downsample_ratio": 0.5,
        "projector_hidden_act": "gelu",
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "text_config": _text(size, token, "qwen2"),
        "vision_config": {
            "model_type": "internvl_vision",
            "num_hidden_layers": DEPTH,
            "hidden_size": WIDTH,
            "num_attention_heads": HEADS,
            "intermediate_size": INNER,
            "hidden_act": "gelu",
            "image_size": [TILE_PX, TILE_PX],
            "patch_size": [14, 14],
            "num_channels": 3,
            "attention_bias": True,
            "use_qk_norm": False,
            "layer_norm_eps": 1e-6,
            "layer_scale_init_value": 0.1,
            "norm_type": "layer_norm",
            "use_absolute_position_embeddings": True,
            "use_mask_token": False,
            "use_mean_pooling": True,
        },
    }


def _qwen2(size: int, token: Callable[[str], int]) -> dict[str, Any]:
    return {"architectures": ["Qwen2ForCausalLM"], "torch_dtype": "float32", **_text(size, token, "qwen2")}


def _qwen3(size: int, token: Callable[[str], int]) -> dict[str, Any]:
    raw = {"architectures": ["Qwen3ForCausalLM"], "torch_dtype": "float32", **_text(size, token, "qwen3")}
    return raw | {"attention_bias": False}


HF_CONFIGS: dict[Family, Callable[[int, Callable[[str], int]], dict[str, Any]]] = {
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "internvl": _internvl,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=tuple(HF_CONFIGS), required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overwrite", action="store_true", help="replace what is in --out")
    args = parser.parse_args(argv[1:])
    write(args.out, args.family, args.seed, args.overwrite)
    print(f"{args.out}: random {args.family}")


if __name__ == "__main__":
    command_line.run(main, sys.argv)
