"""The tiny models: Qwen2.5-VL in every part, about two million parameters."""

import json
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from vlrl.config import Config
from vlrl.models import config as model_config
from vlrl.models import vlm
from vlrl.types import Array
from vlrl.world import scenes, tokenizer

_TOKENIZER = tokenizer.build()
WAVES = 12
WORD_RMS = 0.2


def _id(name: str) -> int:
    return int(_TOKENIZER.get_vocab()[name])


def hf_config() -> dict[str, Any]:
    """config.json in the flat layout of the published Qwen2.5-VL checkpoints, which transformers 4 and 5 both read."""
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "attention_dropout": 0.0,
        "bos_token_id": _id("<|endoftext|>"),
        "eos_token_id": _id("<|im_end|>"),
        "pad_token_id": _id("<|endoftext|>"),
        "vision_start_token_id": _id("<|vision_start|>"),
        "vision_end_token_id": _id("<|vision_end|>"),
        "vision_token_id": _id("<|vision_pad|>"),
        "image_token_id": _id("<|image_pad|>"),
        "video_token_id": _id("<|video_pad|>"),
        "hidden_act": "silu",
        "hidden_size": 128,
        "initializer_range": 0.02,
        "intermediate_size": 384,
        "max_position_embeddings": 4096,
        "max_window_layers": 4,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
        "sliding_window": 4096,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": len(_TOKENIZER),
        "vision_config": {
            "depth": 4,
            "hidden_act": "silu",
            "hidden_size": 128,
            "in_chans": 3,
            "in_channels": 3,
            "intermediate_size": 256,
            "num_heads": 4,
            "out_hidden_size": 128,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "spatial_patch_size": 14,
            "temporal_patch_size": 2,
            "tokens_per_second": 2,
            "window_size": 56,
            "fullatt_block_indexes": [1, 2, 3],
            "model_type": "qwen2_5_vl",
        },
    }


CONFIG = model_config.from_hf(hf_config())


def model() -> vlm.Vlm:
    return vlm.Vlm(CONFIG, unroll=True)


def write_support_files(directory: pathlib.Path, cfg: Config) -> None:
    """Tokenizer, preprocessor and generation settings as a Hugging Face directory carries them."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(directory)
    _write(
        directory / "preprocessor_config.json",
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2_5_VLProcessor",
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "min_pixels": cfg.data.min_pixels,
            "max_pixels": cfg.data.max_pixels,
            "patch_size": CONFIG.vision.patch_size,
            "temporal_patch_size": CONFIG.vision.temporal_patch_size,
            "merge_size": CONFIG.vision.spatial_merge_size,
        },
    )
    _write(directory / "generation_config.json", generation(_TOKENIZER))


def generation(tiny: Any) -> dict[str, Any]:
    """generation_config.json for a tokenizer of the tiny world."""
    end, pad = tiny.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    return {"bos_token_id": pad, "pad_token_id": pad, "do_sample": False, "eos_token_id": [end, pad]}


def shape_numbers(params: Any, tiny: Any) -> Any:
    """Embeddings of coordinates and times begin as smooth waves of their value, so that neighbours look alike, and
    merged vision features begin at the size of text embeddings."""
    table = np.array(params["embed"]["embedding"])
    rng = np.random.default_rng(0)
    for texts, largest in (
        ([str(k) for k in range(0, 1001, 20)], 1000.0),
        ([f"{k / 10:.1f}" for k in range(101)], 10.0),
    ):
        mixing = rng.normal(size=(2 * WAVES, table.shape[1])) / np.sqrt(WAVES * table.shape[1])
        for text in texts:
            phase = np.pi * np.arange(1, WAVES + 1) * float(text) / largest / 2
            table[tiny.convert_tokens_to_ids(text)] = np.concatenate([np.cos(phase), np.sin(phase)]) @ mixing
    merger = params["visual"]["merger"]
    scaled = {**merger, "fc2": {**merger["fc2"], "kernel": merger["fc2"]["kernel"] * 0.2}}
    return {
        **params,
        "embed": {"embedding": jnp.asarray(table)},
        "visual": {**params["visual"], "merger": scaled},
    }


def words_as_seen(params: Any, dense: Float[Array, "D fields"], tiny: Any) -> Any:
    """The words for colours and shapes begin as the directions in which the tower tells them apart: a word then
    resembles the vision tokens that it names, and attention finds them."""
    table, first = np.array(params["embed"]["embedding"]), 2
    for words in (list(scenes.COLOURS), [f" {kind}" for kind in scenes.SHAPES]):
        directions = np.array(dense)[:, first : first + len(words)]
        directions = directions - directions.mean(axis=1, keepdims=True)
        table[tiny.convert_tokens_to_ids(words)] = directions.T * WORD_RMS / np.sqrt(np.mean(directions**2))
        first += len(words)
    return {**params, "embed": {"embedding": jnp.asarray(table)}}


def _write(file: pathlib.Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n")
