"""Architecture of a checkpoint, read from its config.json: one decoder for all families, one vision tower for each."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

Family = Literal["qwen2_5_vl", "qwen3_vl", "internvl", "qwen2", "qwen3"]
"""model_type of config.json; the last two are text models (judges)."""


@dataclasses.dataclass(frozen=True)
class Marks:
    """Special tokens around and in the place of a medium."""

    start: str
    end: str
    image: str
    video: str
    after_image: str = ""
    """What the chat template writes after an image."""


_QWEN_MARKS = Marks("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
MARKS: dict[Family, Marks] = {
    "qwen2_5_vl": _QWEN_MARKS,
    "qwen3_vl": _QWEN_MARKS,
    "internvl": Marks("<img>", "</img>", "<IMG_CONTEXT>", "<IMG_CONTEXT>", after_image="\n"),
}


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """What preprocessing and decoder ask of any tower."""

    depth: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    out_hidden_size: int
    patch_size: int = 14
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2
    in_channels: int = 3

    @property
    def patch_width(self) -> int:
        """Numbers in one patch row."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def merge_units(self) -> int:
        """Patches that become one token."""
        return self.spatial_merge_size**2

    @property
    def num_deep(self) -> int:
        """Further feature maps that the decoder adds after its first layers (DeepStack)."""
        return 0


@dataclasses.dataclass(frozen=True)
class Qwen25Vision(VisionConfig):
    window_size: int = 112
    """Side of an attention window in pixels."""
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)
    tokens_per_second: float = 2.0
    """Temporal rotary steps a second. Released checkpoints say 2; the transformers class default is 4."""


@dataclasses.dataclass(frozen=True)
class Qwen3Vision(VisionConfig):
    patch_size: int = 16
    num_position_embeddings: int = 2304
    """Rows of the learned position table, a square grid that is interpolated to each frame."""
    deepstack_indexes: tuple[int, ...] = (8, 16, 24)
    """Blocks whose output becomes a further feature map."""

    @property
    def num_deep(self) -> int:
        return len(self.deepstack_indexes)


@dataclasses.dataclass(frozen=True)
class InternVision(VisionConfig):
    """InternViT on square tiles of one size; `spatial_merge_size` is the inverse of the pixel shuffle's scale."""

    temporal_patch_size: int = 1
    image_size: int = 448
    layer_norm_eps: float = 1e-6
    qkv_bias: bool = True
    qk_norm: bool = False


NO_VISION = VisionConfig(depth=0, hidden_size=0, num_heads=0, intermediate_size=0, out_hidden_size=0)
"""Of a text model."""


@dataclasses.dataclass(frozen=True)
class VlmConfig:
    family: Family
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    """RMS norm of each head's queries and keys before the rotation (Qwen3)."""
    mrope_section: tuple[int, int, int] | None
    """Frequencies that turn with time, row and column; None: plain positions, whatever the token stands for."""
    mrope_interleaved: bool = False
    """Time, row and column take turns (Qwen3-VL) instead of following each other in sections."""
    image_token_id: int | None = None
    video_token_id: int | None = None
    """Placeholders; the same id where a family has one for both."""
    vision_start_token_id: int | None = None
    vision_end_token_id: int | None = None
    """In config.json of the Qwen families only."""
    vision: VisionConfig = NO_VISION


def from_hf(config: Mapping[str, Any]) -> VlmConfig:
    """Reads config.json, flat (transformers 4) or nested (`text_config`, transformers 5).

    Raises ValueError naming the field that is missing or not supported.
    """
    family = config.get("model_type")
    if family not in VISION and family not in TEXT_ONLY:
        known = ", ".join((*VISION, *TEXT_ONLY))
        raise ValueError(f"config.json: model_type {family!r} is not supported; use a checkpoint of {known}")
    if config.get("quantization_config") is not None:
        method = config["quantization_config"].get("quant_method")
        raise ValueError(f"config.json: quantised weights ({method}) cannot be read; use the unquantised checkpoint")
    try:
        vision = VISION[family](config["vision_config"], config) if family in VISION else NO_VISION
        return VlmConfig(
            family=family, vision=vision, **_text(config.get("text_config", config), config), **_ids(config)
        )
    except KeyError as error:
        raise ValueError(f"config.json: field {error.args[0]!r} is missing; take the file of the checkpoint") from error


def _text(text: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    rope = text.get("rope_parameters") or text.get("rope_scaling") or config.get("rope_scaling") or {}
    if text.get("use_sliding_window") and text.get("sliding_window"):
        raise ValueError("config.json: use_sliding_window is true; only full attention is implemented, set it to false")
    scaling = rope.get("rope_type") or rope.get("type") or "default"
    if scaling not in ("default", "mrope", "dynamic"):  # dynamic changes nothing below max_position_embeddings
        raise ValueError(f"config.json: rope_scaling of type {scaling!r} is not implemented; use a checkpoint without")
    section = rope.get("mrope_section")
    num_heads, hidden_size = text["num_attention_heads"], text["hidden_size"]
    is_qwen3 = text.get("model_type", config["model_type"]).startswith("qwen3")
    return {
        "vocab_size": text["vocab_size"],
        "hidden_size": hidden_size,
        "num_layers": text["num_hidden_layers"],
        "num_heads": num_heads,
        "num_kv_heads": text["num_key_value_heads"],
        "head_dim": text.get("head_dim") or hidden_size // num_heads,
        "intermediate_size": text["intermediate_size"],
        "rope_theta": float(rope.get("rope_theta") or text["rope_theta"]),
        "rms_norm_eps": text["rms_norm_eps"],
        # transformers 5 writes the flag of the whole model at the top; 4 writes it flat.
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        "qkv_bias": not is_qwen3,
        "qk_norm": is_qwen3,
        "mrope_section": tuple(section) if section else None,
        "mrope_interleaved": bool(section) and is_qwen3,
    }


def _ids(config: Mapping[str, Any]) -> dict[str, Any]:
    if config["model_type"] in TEXT_ONLY:
        return {}
    text = config.get("text_config", config)
    image = config["image_token_id"]
    ids = {"image_token_id": image, "video_token_id": config.get("video_token_id", image)}
    names = ("vision_start_token_id", "vision_end_token_id")
    return ids | {name: config.get(name, text.get(name)) for name in names}


def _common(vision: Mapping[str, Any]) -> dict[str, Any]:
    names = ("depth", "hidden_size", "num_heads", "intermediate_size", "out_hidden_size", "patch_size")
    sizes = {name: vision[name] for name in (*names, "temporal_patch_size", "spatial_merge_size")}
    return sizes | {"in_channels": vision.get("in_channels", vision.get("in_chans", 3))}


def _qwen2_5(vision: Mapping[str, Any], _: Mapping[str, Any]) -> Qwen25Vision:
    return Qwen25Vision(
        **_common(vision),
        window_size=vision["window_size"],
        fullatt_block_indexes=tuple(vision["fullatt_block_indexes"]),
        tokens_per_second=float(vision.get("tokens_per_second", 4)),
    )


def _qwen3(vision: Mapping[str, Any], _: Mapping[str, Any]) -> Qwen3Vision:
    _check_only("vision_config.", vision, {"hidden_act": "gelu_pytorch_tanh"})
    positions, deep = vision["num_position_embeddings"], tuple(vision["deepstack_visual_indexes"])
    if math.isqrt(positions) ** 2 != positions:
        raise ValueError(f"config.json: vision_config.num_position_embeddings {positions} is no square; take the file "
                         "of the checkpoint")  # fmt: skip
    if list(deep) != sorted({block for block in deep if 0 <= block < vision["depth"]}):
        raise ValueError(f"config.json: vision_config.deepstack_visual_indexes {list(deep)} are not blocks of the "
                         f"{vision['depth']} in ascending order; take the file of the checkpoint")  # fmt: skip
    return Qwen3Vision(**_common(vision), num_position_embeddings=positions, deepstack_indexes=deep)


def _check_only(place: str, fields: Mapping[str, Any], implemented: Mapping[str, Any]) -> None:
    """Refuses settings other than the one value that is implemented, which is also the default."""
    for name, only in implemented.items():
        if fields.get(name, only) != only:
            raise ValueError(
                f"config.json: {place}{name} {fields[name]!r} is not implemented; use a checkpoint with {only!r}"
            )


_INTERN_TOWER = {
    "hidden_act": "gelu",
    "norm_type": "layer_norm",
    "use_absolute_position_embeddings": True,
    "use_mask_token": False,
    "use_mean_pooling": True,
}
_INTERN_FEATURES = {
    "projector_hidden_act": "gelu",
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
}
"""Settings of which one value is implemented, that of every released InternVL3."""


def _intern(vision: Mapping[str, Any], config: Mapping[str, Any]) -> InternVision:
    sides = {
        name: _one_side(vision.get(name, usual), name) for name, usual in (("image_size", 448), ("patch_size", 14))
    }
    _check_only("vision_config.", vision, _INTERN_TOWER)
    _check_only("", config, _INTERN_FEATURES)
    merge = 1 / config.get("downsample_ratio", 0.5)
    if merge != round(merge) or sides["image_size"] % (sides["patch_size"] * round(merge)):
        raise ValueError(
            f"config.json: downsample_ratio {config['downsample_ratio']} does not merge whole blocks of the "
            f"{sides['image_size']}/{sides['patch_size']} patches of a tile's side; use a checkpoint where it does"
        )
    return InternVision(
        depth=vision["num_hidden_layers"],
        hidden_size=vision["hidden_size"],
        num_heads=vision["num_attention_heads"],
        intermediate_size=vision["intermediate_size"],
        out_hidden_size=config["text_config"]["hidden_size"],
        spatial_merge_size=round(merge),
        in_channels=vision.get("num_channels", 3),
        layer_norm_eps=vision.get("layer_norm_eps", 1e-6),
        qkv_bias=vision.get("attention_bias", False),
        qk_norm=vision.get("use_qk_norm", False),
        **sides,
    )


def _one_side(value: Any, name: str) -> int:
    """InternVL writes [side, side]."""
    sides = set(value) if isinstance(value, (list, tuple)) else {value}
    if len(sides) != 1:
        raise ValueError(f"config.json: vision_config.{name} {value} is not square; only square tiles are implemented")
    return int(sides.pop())


VISION = {"qwen2_5_vl": _qwen2_5, "qwen3_vl": _qwen3, "internvl": _intern}
TEXT_ONLY = ("qwen2", "qwen3")
