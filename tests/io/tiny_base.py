"""Tiny Hugging Face directories written with NumPy."""

import json
import pathlib

import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
import numpy as np
import safetensors.numpy

from vlrl.io import hf_keys
from vlrl.models import config as model_config


def tiny_config(tied: bool = False) -> dict:
    """config.json of a Qwen2.5-VL with every size different, so that a swapped axis shows."""
    return {
        "model_type": "qwen2_5_vl",
        "vocab_size": 20,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 12,
        "rope_theta": 10000.0,
        "rope_scaling": {"mrope_section": [1, 0, 0]},
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied,
        "image_token_id": 15,
        "video_token_id": 16,
        "vision_start_token_id": 17,
        "vision_end_token_id": 18,
        "eos_token_id": 3,
        "vision_config": {
            "depth": 3,
            "hidden_size": 6,
            "num_heads": 2,
            "intermediate_size": 10,
            "out_hidden_size": 8,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
    }


def tensors_of(raw: dict, dtype: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors under the names of a published checkpoint."""
    rng = np.random.default_rng(seed)
    table = hf_keys.table(model_config.from_hf(raw))
    return {name: rng.normal(size=entry.shape).astype(np.dtype(dtype)) for entry in table for name in entry.names}


def write_base(directory: pathlib.Path, raw: dict, tensors: dict[str, np.ndarray], shards: int = 1) -> pathlib.Path:
    """A Hugging Face directory of these tensors, with the small files that an export carries over."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4], "repetition_penalty": 1.05}))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<end>"}}))
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    (directory / "modeling_evil.py").write_text("raise SystemExit")
    if shards == 1:
        safetensors.numpy.save_file(tensors, directory / "model.safetensors")
        return directory
    names, weight_map = list(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        safetensors.numpy.save_file(part, directory / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory
