"""Architecture of a Qwen2.5-VL checkpoint, read from its config.json."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    depth: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    out_hidden_size: int
    patch_size: int = 14
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2
    window_size: int = 112
    """Side of an attention window in pixels."""
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)
    in_channels: int = 3
    tokens_per_second: float = 2.0
    """Temporal rotary steps a second. Released checkpoints say 2; the transformers class default is 4."""

    @property
    def patch_width(self) -> int:
        """Numbers in one patch row."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def merge_units(self) -> int:
        """Patches that become one token."""
        return self.spatial_merge_size**2


@dataclasses.dataclass(frozen=True)
class VlmConfig:
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float
    mrope_section: tuple[int, int, int]
    rms_norm_eps: float
    tie_word_embeddings: bool
    image_token_id: int
    video_token_id: int
    vision_start_token_id: int
    vision_end_token_id: int
    vision: VisionConfig


def from_hf(config: Mapping[str, Any]) -> VlmConfig:
    """Reads config.json of Qwen2.5-VL, flat (transformers 4) or nested (`text_config`, transformers 5).

    Raises ValueError naming the field that is missing or not supported.
    """
    if config.get("model_type") != "qwen2_5_vl":
        raise ValueError(f"config.json: model_type {config.get('model_type')!r} is not supported; use qwen2_5_vl")
    text = config.get("text_config", config)
    vision = config.get("vision_config", {})
    rope = text.get("rope_parameters") or text.get("rope_scaling") or config.get("rope_scaling") or {}
    try:
        num_heads, hidden_size = text["num_attention_heads"], text["hidden_size"]
        return VlmConfig(
            vocab_size=text["vocab_size"],
            hidden_size=hidden_size,
            num_layers=text["num_hidden_layers"],
            num_heads=num_heads,
            num_kv_heads=text["num_key_value_heads"],
            head_dim=text.get("head_dim") or hidden_size // num_heads,
            intermediate_size=text["intermediate_size"],
            rope_theta=float(rope.get("rope_theta") or text["rope_theta"]),
            mrope_section=tuple(rope["mrope_section"]),
            rms_norm_eps=text["rms_norm_eps"],
            # transformers 5 writes the flag of the whole model at the top; 4 writes it flat.
            tie_word_embeddings=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
            image_token_id=config["image_token_id"],
            video_token_id=config["video_token_id"],
            vision_start_token_id=config.get("vision_start_token_id", text.get("vision_start_token_id")),
            vision_end_token_id=config.get("vision_end_token_id", text.get("vision_end_token_id")),
            vision=_vision(vision),
        )
    except KeyError as error:
        raise ValueError(f"config.json: field {error.args[0]!r} is missing; take the file of the checkpoint") from error


def _vision(vision: Mapping[str, Any]) -> VisionConfig:
    return VisionConfig(
        depth=vision["depth"],
        hidden_size=vision["hidden_size"],
        num_heads=vision["num_heads"],
        intermediate_size=vision["intermediate_size"],
        out_hidden_size=vision["out_hidden_size"],
        patch_size=vision["patch_size"],
        temporal_patch_size=vision["temporal_patch_size"],
        spatial_merge_size=vision["spatial_merge_size"],
        window_size=vision["window_size"],
        fullatt_block_indexes=tuple(vision["fullatt_block_indexes"]),
        in_channels=vision.get("in_channels", vision.get("in_chans", 3)),
        tokens_per_second=float(vision.get("tokens_per_second", 4)),
    )
