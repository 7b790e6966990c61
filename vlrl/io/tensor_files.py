"""The safetensors files of a Hugging Face directory, read lazily and with suspicion: weights are data, never code."""

import dataclasses
import json
import pathlib
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 with numpy, which safetensors needs to hand out such tensors
import numpy as np
import safetensors
from jaxtyping import Shaped

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclasses.dataclass(frozen=True)
class Stored:
    """A tensor that has not been read yet."""

    name: str
    """As spelled in the file."""
    file: pathlib.Path
    shape: tuple[int, ...]
    dtype: str
    """safetensors code, such as BF16."""

    def read(self, part: tuple[slice, ...] = ()) -> Shaped[np.ndarray, "..."]:
        """The tensor, or a part of it, in the dtype of the file.

        Opened for this alone: pages of a file that stays mapped count as memory of the process until it is closed.
        """
        with safetensors.safe_open(self.file, framework="np") as file:
            return file.get_slice(self.name)[part] if part else file.get_tensor(self.name)


def list_all(directory: pathlib.Path) -> list[Stored]:
    """Every tensor of the directory's safetensors files.

    Raises:
        ValueError: no safetensors, a file that cannot be read, an index that leaves the directory or does not agree
            with its shards; all disagreements at once.
    """
    weight_map = _weight_map(directory)
    names = {SINGLE} if weight_map is None else set(weight_map.values())
    stored = [tensor for name in sorted(names) for tensor in list_file(directory, name)]
    if weight_map is not None:
        _check_index(directory / INDEX, weight_map, stored)
    return stored


def list_file(directory: pathlib.Path, name: str) -> list[Stored]:
    """Every tensor of one safetensors file of the directory. Raises ValueError when it cannot be read."""
    if not (directory / name).exists():
        _refuse_pickles(directory)
    file = inside(directory, name)
    stored = []
    try:
        with safetensors.safe_open(file, framework="np") as handle:
            for key in handle.keys():  # noqa: SIM118  no mapping
                part = handle.get_slice(key)
                stored.append(Stored(key, file, tuple(part.get_shape()), part.get_dtype()))
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{file}: not a readable safetensors file ({error}); download or copy it again") from error
    return stored


def _weight_map(directory: pathlib.Path) -> dict[str, str] | None:
    """Tensor name -> file of a sharded checkpoint, None for a single file (which transformers also prefers)."""
    if (directory / SINGLE).exists():
        return None
    index = directory / INDEX
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(value, str) for value in weight_map.values()):
            raise ValueError(f"{index}: no weight_map of tensor name to file name; download it again")
        return weight_map
    _refuse_pickles(directory)
    raise ValueError(f"{directory}: neither {SINGLE} nor {INDEX}; give a directory with safetensors weights")


def _refuse_pickles(directory: pathlib.Path) -> None:
    if not directory.is_dir():
        raise ValueError(f"{directory}: no such directory; give a Hugging Face checkpoint on this machine")
    pickles = sorted(path.name for path in directory.iterdir() if path.suffix in PICKLES)
    if pickles:
        raise ValueError(f"{directory}: only pickled weights ({', '.join(pickles)}), which can run code when opened; "
                         "convert them to safetensors where you trust them")  # fmt: skip


def inside(directory: pathlib.Path, name: str) -> pathlib.Path:
    """The file `name` of `directory`, resolved.

    Links may only lead into the directory itself or, for a snapshot of the hub's cache, into that cache's blobs.

    Raises:
        ValueError: the name is more than a file name, leads elsewhere, or names no regular file.
    """
    if pathlib.PurePosixPath(name).name != name or "\\" in name or name in ("", ".", ".."):
        raise ValueError(f"{directory}: the index names {name!r}, no plain file name; do not trust this checkpoint")
    root, file = directory.resolve(), (directory / name).resolve()
    roots = [root] if root.parent.name != "snapshots" else [root, root.parent.parent / "blobs"]
    if not any(file.is_relative_to(allowed) for allowed in roots):
        raise ValueError(f"{directory / name}: links to {file}, outside the checkpoint; copy the file into it")
    if not file.is_file():
        raise ValueError(f"{directory / name}: no such file; download the shard")
    return file


def _check_index(index: pathlib.Path, weight_map: dict[str, str], stored: list[Stored]) -> None:
    listed = {(name, inside(index.parent, file)) for name, file in weight_map.items()}
    present = {(tensor.name, tensor.file) for tensor in stored}
    lines = [f"{name} is not in {file.name}" for name, file in sorted(listed - present)]
    lines += [f"{name} of {file.name} is not listed" for name, file in sorted(present - listed)]
    if lines:
        raise ValueError(f"{index}: disagrees with its shards, download them again:\n  " + "\n  ".join(lines))


def read_json(file: pathlib.Path) -> dict[str, Any]:
    """A JSON object. Raises ValueError naming the file when it is anything else."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: not readable as JSON ({error}); download or copy it again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{file}: expected a JSON object, got {type(value).__name__}")
    return value
