"""Writes a Hugging Face directory: complete or not at all, in shards with an index above a size, never any code."""

import contextlib
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import huggingface_hub
import numpy as np
import safetensors.numpy
from jaxtyping import Shaped

from vlrl.io import tensor_files

CARRIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "chat_template.json",
    "chat_template.jinja",
    "LICENSE",
    "NOTICE",
)
"""Copied from the base where it has them; code never is."""

MAX_SHARD_BYTES = 5 * 10**9


def check_finite(tensors: Mapping[str, Shaped[np.ndarray, "..."]]) -> None:
    """Raises ValueError naming every tensor that holds a number that is not finite."""
    bad = [name for name, tensor in tensors.items() if not np.isfinite(tensor).all()]
    if bad:
        raise ValueError(f"not finite: {', '.join(bad)}; export an earlier step of the run")


def itemsize(code: str) -> int:
    """Bytes of an element of a safetensors dtype such as BF16."""
    return np.dtype(tensor_files.FLOATS[code]).itemsize


def write_tensors(
    folder: pathlib.Path,
    sizes: dict[str, tuple[int, ...]],
    read: Callable[[str], Shaped[np.ndarray, "..."]],
    max_shard_bytes: int,
) -> None:
    """One file, or shards and their index; only the tensors of one shard are in memory at a time.

    `sizes` holds shape and bytes of an element of each tensor: the planner needs no more.
    """
    split = huggingface_hub.split_state_dict_into_shards_factory(
        sizes,
        get_storage_size=lambda size: int(np.prod(size, dtype=np.int64)),
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_bytes,
    )
    for file, names in split.filename_to_tensors.items():
        tensors = {name: np.ascontiguousarray(read(name)) for name in names}
        check_finite(tensors)
        safetensors.numpy.save_file(tensors, folder / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_json(folder / tensor_files.INDEX, index)


def write_config(folder: pathlib.Path, raw: dict[str, Any], tied: bool) -> None:
    """config.json with the tie flag said aloud wherever a reader may look: defaults differ between versions."""
    raw = raw | {"tie_word_embeddings": tied}
    if "text_config" in raw:
        raw["text_config"] = raw["text_config"] | {"tie_word_embeddings": tied}
    write_json(folder / "config.json", raw)


def carry(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Copies tokenizer, preprocessor, generation config and licence."""
    for name in CARRIED:
        if (source / name).exists():
            shutil.copyfile(tensor_files.inside(source, name), folder / name)


def write_json(file: pathlib.Path, value: Mapping[str, Any]) -> None:
    """Sorted, so that equal values are equal files."""
    file.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


@contextlib.contextmanager
def new(base_dir: pathlib.Path | None, out: pathlib.Path, overwrite: bool) -> Iterator[pathlib.Path]:
    """A folder to fill that becomes `out` in one rename when the block succeeds and vanishes when it fails."""
    out = out.absolute()
    if base_dir is not None and base_dir.resolve().is_relative_to(out.resolve()):
        raise ValueError(f"{out}: holds the base checkpoint {base_dir}; export to another directory")
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not overwrite)):
        raise ValueError(f"{out}: already in use; choose another directory or set overwrite")
    partial, old = out.with_name(f".{out.name}.partial"), out.with_name(f".{out.name}.old")
    shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial)
        raise
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    partial.rename(out)
    shutil.rmtree(old, ignore_errors=True)
