"""Training checkpoints: one directory a step, complete or not there at all, checked byte by byte before it is believed.

    step_00000050/  arrays/      Orbax: adapter, optimizer, step, random key data
                    tree.json    name, shape and dtype of every array
                    state.json   loader state, run manifest, whatever else is JSON
                    sha256.json  of every file above

Orbax notices a missing file but not a flipped bit, and casts to the dtype it is asked for without a word; hence the
hashes and the comparison with the template. `save` is synchronous: an adapter is small, and a failed save stops the
run. Only one process may save.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

_STEP = re.compile(r"step_(\d{8,})")
_TMP = ".tmp_"


def save(directory: str | pathlib.Path, step: int, arrays: Any, state: dict[str, Any], keep: int = 3) -> pathlib.Path:
    """Writes step `step` and then removes all but the newest `keep` steps; returns the step's directory.

    Args:
        directory: of all checkpoints of the run; unfinished saves of killed processes are removed from it.
        step: number of finished updates.
        arrays: pytree of jax or numpy arrays; a random key goes in as `jax.random.key_data(key)`.
        state: JSON values; floats must be finite.
        keep: steps that stay.

    Raises:
        ValueError: a leaf that is no plain array, an intact checkpoint of this or a later step, several processes.
        OSError: the disk is full or not writable; nothing is left behind.
    """
    directory = pathlib.Path(directory).absolute()
    if jax.process_count() > 1:
        raise ValueError(f"{directory}: {jax.process_count()} processes; only a single one can save here")
    if keep < 1:
        raise ValueError(f"checkpoint.keep is {keep}; keep at least 1")
    leaves = named(arrays)
    _check_leaves(leaves)
    directory.mkdir(parents=True, exist_ok=True)
    _clean(directory)
    _drop_broken_from(directory, step)
    tmp, final = directory / f"{_TMP}{_name(step)}", directory / _name(step)
    tmp.mkdir()
    try:
        ocp.save(str(tmp / "arrays"), leaves)
        _write_json(tmp / "tree.json", {name: _described(leaf) for name, leaf in leaves.items()})
        _write_json(tmp / "state.json", state)
        _write_json(tmp / "sha256.json", {str(f.relative_to(tmp)): _sha256(f) for f in _files(tmp)})
        _sync(tmp)
        tmp.rename(final)
    except BaseException:
        shutil.rmtree(tmp, ignore_errors=True)
        raise
    _sync_path(directory)
    for old in steps(directory)[:-keep]:
        _remove(directory / _name(old))
    return final


def steps(directory: str | pathlib.Path) -> list[int]:
    """Finished steps of the directory, ascending; not yet checked."""
    directory = pathlib.Path(directory)
    if not directory.is_dir():
        return []
    return sorted(int(match[1]) for path in directory.iterdir() if (match := _STEP.fullmatch(path.name)))


def restore_latest(directory: str | pathlib.Path, template: Any) -> tuple[int, Any, dict[str, Any]] | None:
    """(step, arrays, state) of the newest intact step, None when nothing was ever saved. Changes nothing on disk.

    A damaged step is passed over with a warning that names the step and the file.

    Raises:
        ValueError: every step is damaged, or the arrays are not those of `template` (see `restore`).
    """
    found, damaged = steps(directory), []
    for step in reversed(found):
        problem = damage(directory, step)
        if problem is None:
            return (step, *restore(directory, step, template, checked=True))
        damaged.append(problem)
        warnings.warn(f"checkpoint step {step} is damaged: {problem}; trying the step before", stacklevel=2)
    if damaged:
        raise ValueError(f"{directory}: all {len(found)} checkpoints are damaged; start in another directory:\n  "
                         + "\n  ".join(damaged))  # fmt: skip
    return None


def restore(
    directory: str | pathlib.Path, step: int, template: Any, checked: bool = False
) -> tuple[Any, dict[str, Any]]:
    """(arrays, state) of one step.

    Args:
        directory: of all checkpoints of the run.
        step: which one.
        template: the tree to fill, from `jax.eval_shape` or a live state. A leaf with a sharding is restored into it,
            a numpy leaf as numpy, any other on the default device.
        checked: the step's files were verified just now.

    Raises:
        ValueError: the step is missing or damaged, or an array is missing, unexpected, or of another shape or dtype
            than in `template`; all of them at once.
    """
    problem = None if checked else damage(directory, step)
    if problem is not None:
        raise ValueError(f"checkpoint step {step}: {problem}; use one of {steps(directory)}")
    folder = pathlib.Path(directory).absolute() / _name(step)
    wanted = named(template)
    _compare(folder, json.loads((folder / "tree.json").read_text()), wanted)
    loaded = ocp.load(str(folder / "arrays"), {name: _target(leaf) for name, leaf in wanted.items()})
    filled = [
        value if _sharded(leaf) or isinstance(leaf, np.ndarray) else jnp.asarray(value)
        for value, leaf in ((loaded[name], leaf) for name, leaf in wanted.items())
    ]
    arrays = jax.tree.unflatten(jax.tree.structure(template), filled)
    return arrays, json.loads((folder / "state.json").read_text())


def described(directory: str | pathlib.Path, step: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape and type of every array of a step, by name."""
    saved = json.loads((pathlib.Path(directory) / _name(step) / "tree.json").read_text())
    return {name: jax.ShapeDtypeStruct(tuple(x["shape"]), jnp.dtype(x["dtype"])) for name, x in saved.items()}


def damage(directory: str | pathlib.Path, step: int) -> str | None:
    """What is wrong with the files of a step, None when every one has the bytes that were saved."""
    folder = pathlib.Path(directory) / _name(step)
    try:
        expected = json.loads((folder / "sha256.json").read_text())
    except (OSError, ValueError) as error:
        return f"{folder / 'sha256.json'} cannot be read ({error})"
    if not isinstance(expected, dict):
        return f"{folder / 'sha256.json'} holds no hashes"
    for name in sorted({*expected, "tree.json", "state.json"}):
        file = folder / name
        if not file.is_file():
            return f"{file} is missing"
        if _sha256(file) != expected.get(name):
            return f"{file} does not match its sha256"
    return None


def named(tree: Any) -> dict[str, Any]:
    """{path: leaf}, in the order of the tree's leaves."""
    named = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }
    if len(named) != len(jax.tree.leaves(tree)):
        raise ValueError("checkpoint: two leaves of the tree have the same path; rename one")
    return named


def _check_leaves(leaves: dict[str, Any]) -> None:
    for name, leaf in leaves.items():
        if not isinstance(leaf, (jax.Array, np.ndarray)):
            raise ValueError(f"checkpoint {name}: {type(leaf).__name__} is no array; wrap it or put it into the state")
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise ValueError(f"checkpoint {name}: is a random key; save jax.random.key_data of it")
        if leaf.size == 0:
            raise ValueError(f"checkpoint {name}: shape {leaf.shape} is empty, Orbax cannot save it; leave it out")


def _described(leaf: Any) -> dict[str, Any]:
    return {"shape": list(leaf.shape), "dtype": str(leaf.dtype)}


def _compare(folder: pathlib.Path, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    lines = [f"missing {name} {_described(leaf)}" for name, leaf in wanted.items() if name not in saved]
    lines += [f"unexpected {name} {shape}" for name, shape in saved.items() if name not in wanted]
    lines += [
        f"different {name}: saved {saved[name]}, wanted {_described(leaf)}"
        for name, leaf in wanted.items()
        if name in saved and saved[name] != _described(leaf)
    ]
    if lines:
        raise ValueError(f"{folder}: holds other arrays than this run trains; use the config it was saved with:\n  "
                         + "\n  ".join(lines))  # fmt: skip


def _sharded(leaf: Any) -> bool:
    return not isinstance(leaf, np.ndarray) and leaf.sharding is not None


def _target(leaf: Any) -> Any:
    """What Orbax restores a leaf into: its sharding where it has one, host memory otherwise."""
    if _sharded(leaf):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    return np.zeros(leaf.shape, leaf.dtype)


def _drop_broken_from(directory: pathlib.Path, step: int) -> None:
    """A run that fell back meets the damaged steps again and replaces them; intact ones belong to another run."""
    for later in [found for found in steps(directory) if found >= step]:
        if damage(directory, later) is None:
            raise ValueError(f"{directory}: has an intact step {later}, not older than {step}; resume from it or "
                             "use another directory")  # fmt: skip
        _remove(directory / _name(later))


def _clean(directory: pathlib.Path) -> None:
    for path in directory.glob(f"{_TMP}*"):
        shutil.rmtree(path)


def _remove(folder: pathlib.Path) -> None:
    """In one rename, so that no half-removed step is ever seen."""
    doomed = folder.with_name(f"{_TMP}{folder.name}")
    folder.rename(doomed)
    shutil.rmtree(doomed)


def _name(step: int) -> str:
    return f"step_{step:08d}"


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sha256(file: pathlib.Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write_json(file: pathlib.Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=1, allow_nan=False), encoding="utf-8")


def _sync(folder: pathlib.Path) -> None:
    """Everything to the disk before the rename, so that a power cut cannot leave a named but empty step."""
    for path in [*folder.rglob("*"), folder]:
        _sync_path(path)


def _sync_path(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
