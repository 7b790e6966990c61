"""A Hugging Face directory -> our configuration and parameter tree. Nothing of it is ever executed."""

import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from vlrl.config import LoraConfig
from vlrl.io import hf_keys, leaves, tensor_files
from vlrl.io.hf_entry import Entry
from vlrl.models import config as model_config
from vlrl.models.config import VlmConfig

PEFT_EXTRAS = (
    "use_dora",
    "use_rslora",
    "use_qalora",
    "bias",
    "lora_bias",
    "fan_in_fan_out",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "alora_invocation_tokens",
    "arrow_config",
    "use_bdlora",
    "kasa_config",
    "velora_config",
    "monteclora_config",
)
"""Settings of adapter_config.json that make another function, or further weights, of the same two matrices."""


@runtime_checkable
class Vocabulary(Protocol):
    """What is asked of a tokenizer here; `tokenizers.Tokenizer` has it."""

    def token_to_id(self, token: str) -> int | None: ...


def load_config(directory: str | pathlib.Path) -> tuple[VlmConfig, dict[str, Any]]:
    """Our configuration and the raw config.json.

    Raises:
        ValueError: no readable config.json, or another model type.
    """
    raw = tensor_files.read_json(pathlib.Path(directory) / "config.json")
    return model_config.from_hf(raw), raw


def shapes(cfg: VlmConfig, dtype: str) -> dict[str, Any]:
    """The tree of `load_params` by shapes and dtype only."""
    return hf_keys.unflatten(
        {entry.path: jax.ShapeDtypeStruct(entry.leaf_shape, np.dtype(dtype)) for entry in hf_keys.table(cfg)}
    )


def load_params(directory: str | pathlib.Path, cfg: VlmConfig, dtype: str) -> dict[str, Any]:
    """The tree of {"params": tree}, as numpy arrays of `dtype`, layers stacked on axis 0.

    Raises:
        ValueError: files that are not safe or not readable (see `tensor_files`), and every tensor that is missing,
            unexpected, misshapen or not floating point, all at once.
    """
    stored = _fitting(pathlib.Path(directory), cfg)
    return hf_keys.unflatten({entry.path: leaves.host(entry, stored, np.dtype(dtype)) for entry in hf_keys.table(cfg)})


def place_params(
    directory: str | pathlib.Path,
    cfg: VlmConfig,
    dtype: str,
    shardings: Mapping[str, Any] | jax.sharding.Sharding | None = None,
) -> dict[str, Any]:
    """The tree of {"params": tree} on devices, read tensor by tensor straight into its shardings.

    Host memory at its peak: the parameters that lie in it (those of CPU devices) and one tensor.

    Args:
        directory: Hugging Face checkpoint.
        cfg: its configuration.
        dtype: of every leaf.
        shardings: a tree of them like `shapes`, or one for all leaves; None puts all on the default device.

    Raises:
        ValueError: like `load_params`, and every leaf that `shardings` lacks or has too many.
    """
    table = hf_keys.table(cfg)
    if isinstance(shardings, Mapping):
        where = hf_keys.flatten(shardings)
        lines = [f"missing {'/'.join(entry.path)}" for entry in table if entry.path not in where]
        lines += [f"unexpected {'/'.join(path)}" for path in where.keys() - {entry.path for entry in table}]
        if lines:
            raise ValueError("shardings: not those of this model; make them from its shapes:\n  " + "\n  ".join(lines))
    else:
        where = {entry.path: shardings for entry in table}
    stored = _fitting(pathlib.Path(directory), cfg)
    return hf_keys.unflatten(
        {entry.path: leaves.placed(entry, stored, np.dtype(dtype), where[entry.path]) for entry in table}
    )


def load_adapter(directory: str | pathlib.Path, cfg: VlmConfig) -> tuple[dict[str, Any], LoraConfig]:
    """The tree of {"lora": tree} as float32 numpy arrays, and the configuration it was trained with, of a PEFT adapter.

    Args:
        directory: adapter_config.json and adapter_model.safetensors.
        cfg: configuration of the base that the adapter belongs to.

    Raises:
        ValueError: files that are not safe or not readable, settings of peft that change what an adapter computes, and
            every tensor that is missing, unexpected, misshapen or not floating point, all at once.
    """
    directory = pathlib.Path(directory)
    canonical = functools.partial(hf_keys.lora_canonical, cfg.family)
    stored, problems = _by_canonical_name(canonical, tensor_files.list_file(directory, tensor_files.ADAPTER))
    rank, alpha = _rank_and_alpha(directory / "adapter_config.json")
    layers = hf_keys.LORA_PREFIX + hf_keys.lora_parent(cfg.family)
    modules = {name.split(".lora_")[0] for name in stored if name.startswith(layers)}
    targets = tuple(t for t, module in hf_keys.LORA_MODULES.items() if any(m.endswith(module) for m in modules))
    table = hf_keys.lora_table(cfg, rank, targets)
    problems += _differences(stored, table)
    if not targets:
        problems.append("missing all language layers")
    if problems:
        raise ValueError(f"{directory}: the adapter does not fit this {cfg.family} base; give one of its language "
                         "layers:\n  " + "\n  ".join(problems))  # fmt: skip
    tree = hf_keys.unflatten({entry.path: leaves.host(entry, stored, np.dtype("float32")) for entry in table})
    return tree, LoraConfig(rank, alpha, targets)


def _rank_and_alpha(file: pathlib.Path) -> tuple[int, float]:
    """What scales an adapter, once its adapter_config.json asks for nothing but W x + alpha/r B A x."""
    raw = tensor_files.read_json(file)
    if raw.get("peft_type") != "LORA":
        raise ValueError(f"{file}: peft_type {raw.get('peft_type')!r} is not implemented; use a LORA adapter")
    for name in PEFT_EXTRAS:
        if raw.get(name) not in (None, False, "none", [], {}):
            raise ValueError(f"{file}: {name} {raw[name]!r} is not implemented; merge the adapter with peft first")
    rank, alpha = raw.get("r"), raw.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise ValueError(f"{file}: r {rank!r} and lora_alpha {alpha!r} must be numbers; take the file of the adapter")
    return rank, float(alpha)


def _fitting(directory: pathlib.Path, cfg: VlmConfig) -> dict[str, tensor_files.Stored]:
    """Every tensor of the directory by the table's name, once all of them are known to fit `cfg`."""
    canonical = functools.partial(hf_keys.canonical, cfg.family)
    stored, problems = _by_canonical_name(canonical, tensor_files.list_all(directory))
    head = stored.pop(hf_keys.HEAD, None) if cfg.tie_word_embeddings else None
    problems += _differences(stored, hf_keys.table(cfg))
    if not problems and head is not None:
        problems += _tied_head_problems(head, stored[hf_keys.embedding_name(cfg)])
    if problems:
        raise ValueError(f"{directory}: the weights do not fit config.json; download the directory again:\n  "
                         + "\n  ".join(problems))  # fmt: skip
    return stored


def _by_canonical_name(
    canonical: Callable[[str], str], tensors: list[tensor_files.Stored]
) -> tuple[dict[str, tensor_files.Stored], list[str]]:
    named: dict[str, tensor_files.Stored] = {}
    problems = []
    for tensor in tensors:
        name = canonical(tensor.name)
        if name in named:
            problems.append(f"twice {name}: as {named[name].name} in {named[name].file.name} and as {tensor.name} in "
                            f"{tensor.file.name}")  # fmt: skip
        named[name] = tensor
    return named, problems


def _differences(stored: dict[str, tensor_files.Stored], table: tuple[Entry, ...]) -> list[str]:
    expected = {name: entry.shape for entry in table for name in entry.names}
    lines = [f"missing {name} {list(shape)}" for name, shape in expected.items() if name not in stored]
    lines += [f"unexpected {tensor.name} in {tensor.file.name}" for n, tensor in stored.items() if n not in expected]
    for name, tensor in stored.items():
        if name in expected and tensor.shape != expected[name]:
            lines.append(f"misshapen {tensor.name}: {list(tensor.shape)}, expected {list(expected[name])}")
        if name in expected and tensor.dtype not in tensor_files.FLOATS:
            lines.append(f"not floating point {tensor.name}: {tensor.dtype}; use the unquantised checkpoint")
    return lines


def _tied_head_problems(head: tensor_files.Stored, embedding: tensor_files.Stored) -> list[str]:
    """A tied checkpoint may still carry its head, but only as a copy of the embedding."""
    if head.shape == embedding.shape and np.array_equal(head.read(), embedding.read()):
        return []
    return [f"tie_word_embeddings is true in config.json, but {head.name} in {head.file.name} differs from "
            f"{embedding.name} in {embedding.file.name}; set the flag to false or remove the head"]  # fmt: skip


def eos_token_ids(directory: str | pathlib.Path, tokenizer: Vocabulary) -> tuple[int, ...]:
    """Every id that ends a completion, ascending: of generation_config.json, config.json and the tokenizer.

    Sampling parameters of generation_config.json are not read anywhere: only the run's config sets them.

    Raises:
        ValueError: none of them names an end-of-sequence token.
    """
    directory = pathlib.Path(directory)
    ids: set[Any] = set()
    for name in ("generation_config.json", "config.json"):
        if (directory / name).exists():
            raw = tensor_files.read_json(directory / name)
            for part in (raw, raw.get("text_config") or {}):
                value = part.get("eos_token_id")
                ids |= set(value) if isinstance(value, list) else {value}
    if (directory / "tokenizer_config.json").exists():
        token = tensor_files.read_json(directory / "tokenizer_config.json").get("eos_token")
        content = token["content"] if isinstance(token, dict) else token
        ids |= {None if content is None else tokenizer.token_to_id(content)}
    ids -= {None}
    if not ids:
        raise ValueError(f"{directory}: no end-of-sequence token; set eos_token_id in generation_config.json")
    return tuple(sorted(ids))
