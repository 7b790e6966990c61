"""One table between our parameter tree and the tensor names of a Hugging Face Qwen2.5-VL checkpoint, read both ways.

Published checkpoints say `model.layers.*`, `visual.*`, `lm_head.weight`, and transformers keeps these names when it
saves; its module tree (which adapters follow) says `model.language_model.*`, `model.visual.*`. The first is the table's
spelling, the second is accepted on import.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped

from vlrl.models.config import VlmConfig

Layout = Literal["same", "transpose", "conv3d"]

LORA_MODULES = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "o_proj": "self_attn.o_proj",
    "gate_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "down_proj": "mlp.down_proj",
}
"""Adapter target -> module inside a language layer."""

LORA_PARENT = "model.language_model.layers"
"""Where transformers >= 4.52 keeps the language layers in its module tree; adapters follow it, checkpoints do not."""

TIED_HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One leaf of our tree and the tensor, or one tensor per layer, that fills it."""

    path: tuple[str, ...]
    name: str
    """Hugging Face name; `{i}` stands for the layer."""
    shape: tuple[int, ...]
    """Of one Hugging Face tensor."""
    layers: int = 0
    """Tensors stacked on axis 0 of the leaf; 0: the leaf is one tensor, not stacked."""
    layout: Layout = "same"

    @property
    def names(self) -> tuple[str, ...]:
        """Hugging Face names in the order of axis 0."""
        return tuple(self.name.format(i=i) for i in range(self.layers)) if self.layers else (self.name,)

    @property
    def leaf_shape(self) -> tuple[int, ...]:
        """Shape of our leaf."""
        one = self.shape if self.layout == "same" else (int(np.prod(self.shape[1:])), self.shape[0])
        return (self.layers, *one) if self.layers else one


def table(cfg: VlmConfig) -> tuple[Entry, ...]:
    """Every leaf of the tree of `cfg`; `lm_head` only when the head is untied."""
    vocab, width = cfg.vocab_size, cfg.hidden_size
    ends = [
        Entry(("embed", "embedding"), EMBEDDING, (vocab, width)),
        Entry(("decoder", "norm", "scale"), "model.norm.weight", (width,)),
    ]
    if not cfg.tie_word_embeddings:
        ends.append(Entry(("lm_head", "kernel"), TIED_HEAD, (vocab, width), layout="transpose"))
    return (*ends, *_decoder(cfg), *_vision(cfg))


def _decoder(cfg: VlmConfig) -> Iterator[Entry]:
    width, inner = cfg.hidden_size, cfg.intermediate_size
    query, kv = cfg.num_heads * cfg.head_dim, cfg.num_kv_heads * cfg.head_dim
    root, layer, count = ("decoder", "layers"), "model.layers.{i}", cfg.num_layers
    for ours, theirs in (("input_norm", "input_layernorm"), ("post_norm", "post_attention_layernorm")):
        yield Entry((*root, ours, "scale"), f"{layer}.{theirs}.weight", (width,), count)
    shapes = {
        "q_proj": (query, width),
        "k_proj": (kv, width),
        "v_proj": (kv, width),
        "o_proj": (width, query),
        "gate_proj": (inner, width),
        "up_proj": (inner, width),
        "down_proj": (width, inner),
    }
    for target, shape in shapes.items():
        module = f"{layer}.{LORA_MODULES[target]}"
        yield Entry((*root, target, "kernel"), f"{module}.weight", shape, count, "transpose")
        if target in ("q_proj", "k_proj", "v_proj"):
            yield Entry((*root, target, "bias"), f"{module}.bias", shape[:1], count)


def _vision(cfg: VlmConfig) -> Iterator[Entry]:
    vision = cfg.vision
    width, inner, count = vision.hidden_size, vision.intermediate_size, vision.depth
    patch = (vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    yield Entry(("visual", "patch_embed", "kernel"), "visual.patch_embed.proj.weight", (width, *patch), layout="conv3d")
    root, block = ("visual", "blocks"), "visual.blocks.{i}"
    for norm in ("norm1", "norm2"):
        yield Entry((*root, norm, "scale"), f"{block}.{norm}.weight", (width,), count)
    shapes = {
        "qkv": ("attn", (3 * width, width)),
        "proj": ("attn", (width, width)),
        "gate_proj": ("mlp", (inner, width)),
        "up_proj": ("mlp", (inner, width)),
        "down_proj": ("mlp", (width, inner)),
    }
    for name, (parent, shape) in shapes.items():
        module = f"{block}.{parent}.{name}"
        yield Entry((*root, name, "kernel"), f"{module}.weight", shape, count, "transpose")
        yield Entry((*root, name, "bias"), f"{module}.bias", shape[:1], count)
    merged = width * vision.spatial_merge_size**2
    root = ("visual", "merger")
    yield Entry((*root, "norm", "scale"), "visual.merger.ln_q.weight", (width,))
    for ours, theirs, rows in (("fc1", "mlp.0", merged), ("fc2", "mlp.2", vision.out_hidden_size)):
        module = f"visual.merger.{theirs}"
        yield Entry((*root, ours, "kernel"), f"{module}.weight", (rows, merged), layout="transpose")
        yield Entry((*root, ours, "bias"), f"{module}.bias", (rows,))


def canonical(name: str) -> str:
    """The table's spelling of a tensor name that may follow the module tree of transformers >= 4.52."""
    for theirs, ours in (("model.language_model.", "model."), ("model.visual.", "visual.")):
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def to_ours(entry: Entry, tensor: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
    """One Hugging Face tensor in our layout: kernels are [in, out]; a view where possible."""
    return tensor if entry.layout == "same" else tensor.reshape(tensor.shape[0], -1).T


def to_hf(entry: Entry, leaf: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
    """One layer of our leaf as the Hugging Face tensor: the inverse of `to_ours`."""
    return leaf if entry.layout == "same" else leaf.T.reshape(entry.shape)


def lora_name(layer: int, target: str, half: Literal["A", "B"]) -> str:
    """Name of an adapter tensor as peft saves it from transformers >= 4.52 (4.57 and 5.x are the same)."""
    return f"base_model.model.{LORA_PARENT}.{layer}.{LORA_MODULES[target]}.lora_{half}.weight"


def lora_shapes(cfg: VlmConfig, rank: int, targets: tuple[str, ...]) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Leaf path -> shape of our adapter tree: a [layers, in, rank], b [layers, rank, out].

    Raises:
        ValueError: a target is no projection of a language layer.
    """
    unknown = [target for target in targets if target not in LORA_MODULES]
    if unknown:
        raise ValueError(f"lora.targets: {unknown} are no language projections; choose from {list(LORA_MODULES)}")
    kernels = {entry.path[2]: entry.leaf_shape for entry in _decoder(cfg) if entry.path[-1] == "kernel"}
    shapes: dict[tuple[str, ...], tuple[int, ...]] = {}
    for target in targets:
        layers, inputs, outputs = kernels[target]
        shapes["decoder", "layers", target, "a"] = (layers, inputs, rank)
        shapes["decoder", "layers", target, "b"] = (layers, rank, outputs)
    return shapes


def flatten(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Nested mapping -> {path: leaf}."""
    flat: dict[tuple[str, ...], Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, (*path, key)) if isinstance(value, Mapping) else {(*path, key): value}
    return flat


def unflatten(flat: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """{path: leaf} -> nested dict: the inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = value
    return tree


def mismatches(tree: Mapping[str, Any], expected: Mapping[tuple[str, ...], tuple[int, ...]]) -> list[str]:
    """Every leaf of `tree` that is missing, unexpected or misshapen against {path: shape}; empty when it fits."""
    flat = flatten(tree)
    lines = [f"missing {'/'.join(path)} {list(shape)}" for path, shape in expected.items() if path not in flat]
    lines += [f"unexpected {'/'.join(path)}" for path in flat if path not in expected]
    lines += [
        f"misshapen {'/'.join(path)}: {list(flat[path].shape)}, expected {list(shape)}"
        for path, shape in expected.items()
        if path in flat and tuple(flat[path].shape) != tuple(shape)
    ]
    return lines
