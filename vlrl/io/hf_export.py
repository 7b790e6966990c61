"""Our weights -> Hugging Face directories: the base with the adapter merged in, or the adapter alone for peft.

Merged checkpoints keep the tensor names of their base; adapters follow the module tree of transformers. They are two
different spellings (see `hf_keys`), and a mixed-up one loads as the bare base model with no more than a warning.
"""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
from jaxtyping import Float, Shaped

from vlrl.config import LoraConfig
from vlrl.io import hf_directory, hf_entry, hf_import, hf_keys, tensor_files
from vlrl.io.hf_entry import Entry
from vlrl.models import config as model_config
from vlrl.models.config import Family


def export_merged(
    base_dir: str | pathlib.Path,
    params: Mapping[str, Any] | None,
    adapter: Mapping[str, Any],
    lora_cfg: LoraConfig,
    out: str | pathlib.Path,
    max_shard_bytes: int = hf_directory.MAX_SHARD_BYTES,
    overwrite: bool = False,
) -> None:
    """Writes W + alpha/rank * (a b)^T: added in float32, stored in the dtype and under the name of the base file.

    Args:
        base_dir: the Hugging Face directory that the run started from.
        params: base weights to merge into; None reads the base's own files, which is exact where the run loaded them
            in a shorter dtype.
        adapter: the tree of {"lora": adapter}.
        lora_cfg: rank, alpha and targets that the adapter was trained with.
        out: must not exist, or be empty, unless `overwrite`.
        max_shard_bytes: several files and an index above this size.
        overwrite: replace `out` in one rename once the new checkpoint is complete.

    Raises:
        ValueError: the trees do not fit the base, or a merged weight is not finite, or `out` is in use.
    """
    base_dir = pathlib.Path(base_dir)
    cfg, raw = hf_import.load_config(base_dir)
    _check("adapter", adapter, hf_keys.lora_shapes(cfg, lora_cfg.rank, lora_cfg.targets))
    table = hf_keys.table(cfg)
    if params is not None:
        _check("params", params, {entry.path: entry.leaf_shape for entry in table})
    entries = {name: (entry, i) for entry in table for i, name in enumerate(entry.names)}
    with hf_directory.new(base_dir, pathlib.Path(out), overwrite) as folder:
        stored = {
            tensor.name: tensor
            for tensor in tensor_files.list_all(base_dir)
            if hf_keys.canonical(cfg.family, tensor.name) in entries  # a tied head is a copy of the embedding: left out
        }

        def merged(name: str) -> Shaped[np.ndarray, "..."]:
            entry, i = entries[hf_keys.canonical(cfg.family, name)]
            tensor = stored[name].read() if params is None else _tensor(params, entry, i)
            delta = _delta(adapter, entry, i, lora_cfg)
            if delta is not None:
                tensor = tensor.astype(np.float32) + delta
            return tensor.astype(np.dtype(tensor_files.FLOATS[stored[name].dtype]))

        sizes = {name: (*tensor.shape, hf_directory.itemsize(tensor.dtype)) for name, tensor in stored.items()}
        hf_directory.write_tensors(folder, sizes, merged, max_shard_bytes)
        hf_directory.write_config(folder, raw, cfg.tie_word_embeddings)
        hf_directory.carry(base_dir, folder)


def export_full(
    config: Mapping[str, Any],
    params: Mapping[str, Any],
    dtype: str,
    out: str | pathlib.Path,
    carry_from: str | pathlib.Path | None = None,
    max_shard_bytes: int = hf_directory.MAX_SHARD_BYTES,
    overwrite: bool = False,
) -> None:
    """Writes a whole model that has no base directory: `config` becomes config.json, weights are stored as `dtype`.

    Tokenizer and preprocessor files come from `carry_from`, if given. Raises ValueError like `export_merged`.
    """
    cfg = model_config.from_hf(config)
    table = hf_keys.table(cfg)
    _check("params", params, {entry.path: entry.leaf_shape for entry in table})
    entries = {name: (entry, i) for entry in table for i, name in enumerate(entry.names)}
    target = np.dtype(dtype)
    with hf_directory.new(None, pathlib.Path(out), overwrite) as folder:
        sizes = {name: (*entry.shape, target.itemsize) for name, (entry, _) in entries.items()}
        hf_directory.write_tensors(
            folder, sizes, lambda name: _tensor(params, *entries[name]).astype(target), max_shard_bytes
        )
        hf_directory.write_config(folder, dict(config), cfg.tie_word_embeddings)
        if carry_from is not None:
            hf_directory.carry(pathlib.Path(carry_from), folder)


def export_peft(
    base_dir: str | pathlib.Path,
    adapter: Mapping[str, Any],
    lora_cfg: LoraConfig,
    out: str | pathlib.Path,
    overwrite: bool = False,
    base_name: str = "",
) -> None:
    """Writes adapter_config.json and adapter_model.safetensors (float32) for peft and transformers >= 4.52.

    Args:
        base_dir: the Hugging Face directory that the run started from.
        adapter: the tree of {"lora": adapter}.
        lora_cfg: rank, alpha and targets that the adapter was trained with.
        out: must not exist, or be empty, unless `overwrite`.
        overwrite: replace `out` in one rename.
        base_name: hub name of the base written into the adapter's config; `base_dir` when empty.

    Raises:
        ValueError: the adapter does not fit the base, is not finite, or `out` is in use.
    """
    base_dir = pathlib.Path(base_dir)
    cfg, _ = hf_import.load_config(base_dir)
    table = hf_keys.lora_table(cfg, lora_cfg.rank, lora_cfg.targets)
    _check("adapter", adapter, {entry.path: entry.leaf_shape for entry in table})
    tensors = {
        name: np.ascontiguousarray(_tensor(adapter, entry, i).astype(np.float32))
        for entry in table
        for i, name in enumerate(entry.names)
    }
    hf_directory.check_finite(tensors)
    with hf_directory.new(base_dir, pathlib.Path(out), overwrite) as folder:
        safetensors.numpy.save_file(tensors, folder / tensor_files.ADAPTER, metadata={"format": "pt"})
        hf_directory.write_json(
            folder / "adapter_config.json", _peft_config(cfg.family, lora_cfg, base_name or str(base_dir))
        )


def _peft_config(family: Family, lora_cfg: LoraConfig, base_name: str) -> dict[str, Any]:
    modules = "|".join(re.escape(hf_keys.LORA_MODULES[target]) for target in lora_cfg.targets)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "inference_mode": True,
        "r": lora_cfg.rank,
        "lora_alpha": int(lora_cfg.alpha) if lora_cfg.alpha == int(lora_cfg.alpha) else lora_cfg.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        # Short names would also match the vision tower, whose blocks have gate_proj, up_proj and down_proj too.
        "target_modules": rf"{re.escape(hf_keys.lora_parent(family))}\.\d+\.({modules})",
    }


def _tensor(params: Mapping[str, Any], entry: Entry, layer: int) -> Float[np.ndarray, "..."]:
    """The Hugging Face tensor that our tree holds for one layer of an entry."""
    leaf: Any = params
    for key in entry.path:
        leaf = leaf[key]
    return hf_entry.to_hf(entry, np.asarray(leaf[layer] if entry.layers else leaf))


def _delta(
    adapter: Mapping[str, Any], entry: Entry, layer: int, lora_cfg: LoraConfig
) -> Float[np.ndarray, "out in"] | None:
    """What the adapter adds to a weight, as float32; None for weights it does not touch."""
    if entry.path[:2] != ("decoder", "layers") or entry.path[-1] != "kernel" or entry.path[2] not in lora_cfg.targets:
        return None
    leaves = adapter["decoder"]["layers"][entry.path[2]]
    a, b = (np.asarray(leaves[half][layer], np.float32) for half in ("a", "b"))
    return (np.float32(lora_cfg.alpha / lora_cfg.rank) * (a @ b)).T


def _check(what: str, tree: Mapping[str, Any], expected: dict[tuple[str, ...], tuple[int, ...]]) -> None:
    problems = hf_keys.mismatches(tree, expected)
    if problems:
        raise ValueError(f"{what}: does not fit the base checkpoint and config; export with those of the run:\n  "
                         + "\n  ".join(problems))  # fmt: skip
