"""The vision part of the table in hf_keys.py, one function a tower."""

from collections.abc import Callable, Iterator
from typing import Any

from vlrl.io.hf_entry import Entry
from vlrl.models.config import InternVision, Qwen3Vision, Qwen25Vision, VisionConfig

BLOCKS = ("visual", "blocks")


def qwen2_5(vision: Qwen25Vision) -> Iterator[Entry]:
    """RMS norms, gated MLP."""
    width, inner, count = vision.hidden_size, vision.intermediate_size, vision.depth
    yield Entry(("visual", "patch_embed", "kernel"), "visual.patch_embed.proj.weight", _patch(vision), layout="conv")
    block = "visual.blocks.{i}"
    for norm in ("norm1", "norm2"):
        yield Entry((*BLOCKS, norm, "scale"), f"{block}.{norm}.weight", (width,), count)
    for ours, theirs, shape in (
        ("qkv", "attn.qkv", (3 * width, width)),
        ("proj", "attn.proj", (width, width)),
        ("gate_proj", "mlp.gate_proj", (inner, width)),
        ("up_proj", "mlp.up_proj", (inner, width)),
        ("down_proj", "mlp.down_proj", (width, inner)),
    ):
        yield from _dense((*BLOCKS, ours), f"{block}.{theirs}", shape, count)
    yield Entry(("visual", "merger", "norm", "scale"), "visual.merger.ln_q.weight", (width,))
    merged = width * vision.merge_units
    yield from _dense(("visual", "merger", "fc1"), "visual.merger.mlp.0", (merged, merged))
    yield from _dense(("visual", "merger", "fc2"), "visual.merger.mlp.2", (vision.out_hidden_size, merged))


def qwen3(vision: Qwen3Vision) -> Iterator[Entry]:
    """Layer norms, learned positions, one further merger for each DeepStack map."""
    width, inner, count = vision.hidden_size, vision.intermediate_size, vision.depth
    root = "model.visual"
    patch = f"{root}.patch_embed.proj"
    yield Entry(("visual", "patch_embed", "kernel"), f"{patch}.weight", _patch(vision), layout="conv")
    yield Entry(("visual", "patch_embed", "bias"), f"{patch}.bias", (width,))
    positions = (vision.num_position_embeddings, width)
    yield Entry(("visual", "positions", "embedding"), f"{root}.pos_embed.weight", positions)
    block = root + ".blocks.{i}"
    for norm in ("norm1", "norm2"):
        yield from _norm((*BLOCKS, norm), f"{block}.{norm}", width, count)
    for ours, theirs, shape in (
        ("qkv", "attn.qkv", (3 * width, width)),
        ("proj", "attn.proj", (width, width)),
        ("fc1", "mlp.linear_fc1", (inner, width)),
        ("fc2", "mlp.linear_fc2", (width, inner)),
    ):
        yield from _dense((*BLOCKS, ours), f"{block}.{theirs}", shape, count)
    merged = width * vision.merge_units
    mergers = [("merger", f"{root}.merger", width, 0)]
    if vision.num_deep:
        mergers.append(("deep_mergers", root + ".deepstack_merger_list.{i}", merged, vision.num_deep))
    for ours, theirs, normed, layers in mergers:
        yield from _norm(("visual", ours, "norm"), f"{theirs}.norm", normed, layers)
        yield from _dense(("visual", ours, "fc1"), f"{theirs}.linear_fc1", (merged, merged), layers)
        yield from _dense(("visual", ours, "fc2"), f"{theirs}.linear_fc2", (vision.out_hidden_size, merged), layers)


def intern(vision: InternVision) -> Iterator[Entry]:
    """Class token and learned positions of a full tile, layer scale; the projector stands for the merger."""
    width, inner, count = vision.hidden_size, vision.intermediate_size, vision.depth
    tower = "model.vision_tower"
    patch = f"{tower}.embeddings.patch_embeddings.projection"
    side = (vision.patch_size, vision.patch_size)
    yield Entry(("visual", "patch_embed", "kernel"), f"{patch}.weight", (width, vision.in_channels, *side), 0, "conv")
    yield Entry(("visual", "patch_embed", "bias"), f"{patch}.bias", (width,))
    yield Entry(("visual", "class_token"), f"{tower}.embeddings.cls_token", (1, 1, width))
    positions = (1, 1 + (vision.image_size // vision.patch_size) ** 2, width)
    yield Entry(("visual", "positions"), f"{tower}.embeddings.position_embeddings", positions)
    block = tower + ".encoder.layer.{i}"
    for ours, theirs in (("norm1", "layernorm_before"), ("norm2", "layernorm_after")):
        yield from _norm((*BLOCKS, ours), f"{block}.{theirs}", width, count)
    for target in ("q_proj", "k_proj", "v_proj"):
        module, shape = f"{block}.attention.{target}", (width, width)
        yield from _dense((*BLOCKS, target), module, shape, count, use_bias=vision.qkv_bias)
    for norm in ("q_norm", "k_norm") if vision.qk_norm else ():
        yield Entry((*BLOCKS, norm, "scale"), f"{block}.attention.{norm}.weight", (width,), count)
    for ours, theirs, shape in (
        ("proj", "attention.projection_layer", (width, width)),
        ("fc1", "mlp.fc1", (inner, width)),
        ("fc2", "mlp.fc2", (width, inner)),
    ):
        yield from _dense((*BLOCKS, ours), f"{block}.{theirs}", shape, count)
    for ours, theirs in (("scale1", "lambda_1"), ("scale2", "lambda_2")):
        yield Entry((*BLOCKS, ours), f"{block}.{theirs}", (width,), count)
    projector, merged, out = "model.multi_modal_projector", width * vision.merge_units, vision.out_hidden_size
    yield from _norm(("visual", "merger", "norm"), f"{projector}.layer_norm", merged)
    yield from _dense(("visual", "merger", "fc1"), f"{projector}.linear_1", (out, merged))
    yield from _dense(("visual", "merger", "fc2"), f"{projector}.linear_2", (out, out))


TOWERS: dict[type[VisionConfig], Callable[[Any], Iterator[Entry]]] = {
    Qwen25Vision: qwen2_5,
    Qwen3Vision: qwen3,
    InternVision: intern,
}


def _patch(vision: VisionConfig) -> tuple[int, ...]:
    sides = (vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    return (vision.hidden_size, vision.in_channels, *sides)


def _dense(
    path: tuple[str, ...], module: str, shape: tuple[int, int], layers: int = 0, use_bias: bool = True
) -> Iterator[Entry]:
    yield Entry((*path, "kernel"), f"{module}.weight", shape, layers, "transpose")
    if use_bias:
        yield Entry((*path, "bias"), f"{module}.bias", shape[:1], layers)


def _norm(path: tuple[str, ...], module: str, width: int, layers: int = 0) -> Iterator[Entry]:
    yield Entry((*path, "scale"), f"{module}.weight", (width,), layers)
    yield Entry((*path, "bias"), f"{module}.bias", (width,), layers)
