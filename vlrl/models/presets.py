"""Sizes of the published checkpoints, as their config.json says them: for planning and for tests without a download.

Only fields that shape the parameters or the arithmetic; the ids are those of the families' tokenizers. A downloaded
directory is read from its own config.json, never from here.
"""

from typing import Any

from vlrl.models import config
from vlrl.models.config import VlmConfig

_QWEN_IDS = {
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "image_token_id": 151655,
    "video_token_id": 151656,
}


def _text(layers: int, width: int, heads: int, kv_heads: int, inner: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": False,
        **more,
    }


def _qwen2_5_vl(text: dict[str, Any]) -> dict[str, Any]:
    """config.json of this family is flat: the sizes of the text model lie at the top."""
    vision = {
        "depth": 32,
        "hidden_size": 1280,
        "num_heads": 16,
        "intermediate_size": 3420,
        "out_hidden_size": text["hidden_size"],
        "patch_size": 14,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "in_chans": 3,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
    }
    rope = {"type": "mrope", "mrope_section": [16, 24, 24]}
    return {"model_type": "qwen2_5_vl", **_QWEN_IDS, **text, "rope_scaling": rope, "vision_config": vision}


def _qwen3_vl(text: dict[str, Any], **vision: Any) -> dict[str, Any]:
    tower = {
        "depth": 24,
        "hidden_size": 1024,
        "num_heads": 16,
        "intermediate_size": 4096,
        "out_hidden_size": text["hidden_size"],
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "in_channels": 3,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [5, 11, 17],
        **vision,
    }
    rope = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]}
    decoder = {"model_type": "qwen3_vl_text", **text, "head_dim": 128, "rope_theta": 5e6, "rope_scaling": rope}
    return {
        "model_type": "qwen3_vl",
        **_QWEN_IDS,
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": decoder,
        "vision_config": tower,
    }


def _internvl3(text: dict[str, Any]) -> dict[str, Any]:
    """The `-hf` layout, with InternViT-300M."""
    vision = {
        "model_type": "internvl_vision",
        "num_hidden_layers": 24,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "image_size": [448, 448],
        "patch_size": [14, 14],
        "num_channels": 3,
        "attention_bias": True,
        "use_qk_norm": False,
        "layer_norm_eps": 1e-6,
        "norm_type": "layer_norm",
    }
    return {
        "model_type": "internvl",
        "image_token_id": 151667,
        "downsample_ratio": 0.5,
        "tie_word_embeddings": False,
        "text_config": {"model_type": "qwen2", **text},
        "vision_config": vision,
    }


PRESETS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-VL-3B-Instruct": _qwen2_5_vl(_text(36, 2048, 16, 2, 11008, 151936, tie_word_embeddings=True)),
    "Qwen/Qwen2.5-VL-7B-Instruct": _qwen2_5_vl(_text(28, 3584, 28, 4, 18944, 152064)),
    "Qwen/Qwen3-VL-2B-Instruct": _qwen3_vl(_text(28, 2048, 16, 8, 6144, 151936, tie_word_embeddings=True)),
    "Qwen/Qwen3-VL-4B-Instruct": _qwen3_vl(_text(36, 2560, 32, 8, 9728, 151936, tie_word_embeddings=True)),
    "Qwen/Qwen3-VL-8B-Instruct": _qwen3_vl(
        _text(36, 4096, 32, 8, 12288, 151936),
        depth=27,
        hidden_size=1152,
        intermediate_size=4304,
        deepstack_visual_indexes=[8, 16, 24],
    ),
    "OpenGVLab/InternVL3-2B-hf": _internvl3(_text(28, 1536, 12, 2, 8960, 151674)),
    "OpenGVLab/InternVL3-8B-hf": _internvl3(_text(28, 3584, 28, 4, 18944, 151674)),
    "Qwen/Qwen2.5-7B-Instruct": {"model_type": "qwen2", **_text(28, 3584, 28, 4, 18944, 152064)},
    "Qwen/Qwen3-8B": {"model_type": "qwen3", **_text(36, 4096, 32, 8, 12288, 151936, head_dim=128)},
}
"""Name on the hub -> what its config.json says."""


def get(name: str) -> VlmConfig:
    """Our configuration of a published checkpoint. Raises ValueError naming those that are known."""
    if name not in PRESETS:
        raise ValueError(f"preset {name!r} is not known; choose one of {', '.join(PRESETS)}")
    return config.from_hf(PRESETS[name])
