"""One table between our parameter tree and the tensor names of a Hugging Face checkpoint, read both ways.

Families, and versions of one family, say the same tensor in several ways (`SPELLINGS`). The table speaks one of them;
import takes all, a merged export keeps those of its base, and adapters follow the module tree of transformers.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from vlrl.io import hf_vision_keys
from vlrl.io.hf_entry import Entry
from vlrl.models.config import TEXT_ONLY, Family, VlmConfig

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

LORA_PREFIX = "base_model.model."
"""peft's wrapper around the model."""

HEAD = "lm_head.weight"

SPELLINGS: dict[Family, tuple[tuple[str, str], ...]] = {
    # Published checkpoints of Qwen2.5-VL, which transformers keeps when it saves; its module tree has the other.
    "qwen2_5_vl": (("model.language_model.", "model."), ("model.visual.", "visual.")),
    "qwen3_vl": (),
    # Saved by transformers before 4.52, then its module tree.
    "internvl": (
        ("language_model.lm_head.", "lm_head."),
        ("language_model.model.", "model.language_model."),
        ("language_model.", "model.language_model."),
        ("vision_tower.", "model.vision_tower."),
        ("multi_modal_projector.", "model.multi_modal_projector."),
    ),
    "qwen2": (),
    "qwen3": (),
}
"""Beginning of a name as some checkpoints have it -> as the table has it."""

TEXT_ROOT: dict[Family, str] = {
    "qwen2_5_vl": "model",
    "qwen3_vl": "model.language_model",
    "internvl": "model.language_model",
    "qwen2": "model",
    "qwen3": "model",
}
"""Where the table has the language layers."""


def table(cfg: VlmConfig) -> tuple[Entry, ...]:
    """Every leaf of the tree of `cfg`; `lm_head` only when the head is untied."""
    vocab, width = cfg.vocab_size, cfg.hidden_size
    ends = [
        Entry(("embed", "embedding"), embedding_name(cfg), (vocab, width)),
        Entry(("decoder", "norm", "scale"), f"{TEXT_ROOT[cfg.family]}.norm.weight", (width,)),
    ]
    if not cfg.tie_word_embeddings:
        ends.append(Entry(("lm_head", "kernel"), HEAD, (vocab, width), layout="transpose"))
    vision = hf_vision_keys.TOWERS[type(cfg.vision)](cfg.vision) if cfg.vision.depth else ()
    return (*ends, *_decoder(cfg), *vision)


def embedding_name(cfg: VlmConfig) -> str:
    """The tensor that a tied head repeats."""
    return f"{TEXT_ROOT[cfg.family]}.embed_tokens.weight"


def _decoder(cfg: VlmConfig) -> Iterator[Entry]:
    width, inner = cfg.hidden_size, cfg.intermediate_size
    query, kv = cfg.num_heads * cfg.head_dim, cfg.num_kv_heads * cfg.head_dim
    root, layer, count = ("decoder", "layers"), TEXT_ROOT[cfg.family] + ".layers.{i}", cfg.num_layers
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
        if cfg.qkv_bias and target in ("q_proj", "k_proj", "v_proj"):
            yield Entry((*root, target, "bias"), f"{module}.bias", shape[:1], count)
    for norm in ("q_norm", "k_norm") if cfg.qk_norm else ():
        yield Entry((*root, norm, "scale"), f"{layer}.self_attn.{norm}.weight", (cfg.head_dim,), count)


def canonical(family: Family, name: str) -> str:
    """The table's spelling of a tensor name."""
    for theirs, ours in SPELLINGS[family]:
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def lora_parent(family: Family) -> str:
    """The language layers in the module tree of transformers >= 4.52: adapters follow it, some checkpoints do not."""
    return "model.layers" if family in TEXT_ONLY else "model.language_model.layers"


def lora_name(family: Family, layer: int | str, target: str, half: Literal["A", "B"]) -> str:
    """Name of an adapter tensor as peft saves it from transformers >= 4.52 (4.57 and 5.x are the same)."""
    return f"{LORA_PREFIX}{lora_parent(family)}.{layer}.{LORA_MODULES[target]}.lora_{half}.weight"


def lora_table(cfg: VlmConfig, rank: int, targets: tuple[str, ...]) -> tuple[Entry, ...]:
    """Every leaf of our adapter tree: a [layers, in, rank], b [layers, rank, out], by the names of peft.

    Raises:
        ValueError: a target is no projection of a language layer.
    """
    unknown = [target for target in targets if target not in LORA_MODULES]
    if unknown:
        raise ValueError(f"lora.targets: {unknown} are no language projections; choose from {list(LORA_MODULES)}")
    shapes = {entry.path[2]: entry.shape for entry in _decoder(cfg) if entry.path[-1] == "kernel"}
    entries = []
    for target in targets:
        outputs, inputs = shapes[target]
        path = ("decoder", "layers", target)
        for name, leaf, shape in (
            (lora_name(cfg.family, "{i}", target, "A"), "a", (rank, inputs)),
            (lora_name(cfg.family, "{i}", target, "B"), "b", (outputs, rank)),
        ):
            entries.append(Entry((*path, leaf), name, shape, cfg.num_layers, "transpose"))
    return tuple(entries)


def lora_canonical(family: Family, name: str) -> str:
    """The table's spelling of an adapter tensor: adapters saved over older transformers have other parents."""
    module = canonical(family, name.removeprefix(LORA_PREFIX))
    layers = f"{TEXT_ROOT[family]}.layers."
    return f"{LORA_PREFIX}{lora_parent(family)}.{module.removeprefix(layers)}" if module.startswith(layers) else name


def lora_shapes(cfg: VlmConfig, rank: int, targets: tuple[str, ...]) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Leaf path -> shape of our adapter tree. Raises ValueError like `lora_table`."""
    return {entry.path: entry.leaf_shape for entry in lora_table(cfg, rank, targets)}


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
