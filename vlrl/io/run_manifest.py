"""What a run was made of, by content: so that a resumed run is the same run, or refuses and says what changed."""

import hashlib
import importlib.metadata
import json
import pathlib
import platform
from collections.abc import Iterable, Mapping
from typing import Any

import jax

import vlrl

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "av", "decord", "tokenizers")

FREE = ("log", "checkpoint", "guard")
"""Parts of the config that may differ on resume: they do not touch what is computed."""

SECRET_ENDINGS = ("_key", "_token", "secret", "password")


def build(
    config: Mapping[str, Any], data_files: Iterable[str | pathlib.Path], base_dirs: Iterable[str | pathlib.Path]
) -> dict[str, Any]:
    """The manifest of a run, as JSON values.

    Args:
        config: the whole resolved config, nested; values of fields that look like secrets are left out.
        data_files: annotation files; empty names (no such data) are passed over.
        base_dirs: Hugging Face directories of the frozen models; empty names are passed over.

    Raises:
        ValueError: a file or directory that is not there.
    """
    public = json.loads(json.dumps(_without_secrets(config)))
    return {
        "config": public,
        "config_sha256": hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest(),
        "data": {str(name): _sha256(pathlib.Path(name)) for name in data_files if str(name)},
        "base": {str(name): _directory(pathlib.Path(name)) for name in base_dirs if str(name)},
        "code": _code(),
        "versions": {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "platform": {
            "system": platform.platform(),
            "machine": platform.machine(),
            "backend": jax.default_backend(),
            "devices": [device.device_kind for device in jax.devices()],
        },
    }


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Every difference that makes `new` another run than `old`: config, data, base weights, code. Empty: may resume."""
    config = [line for line in _differences(old["config"], new["config"], "config") if not _is_free(line)]
    return config + [line for part in ("data", "base", "code") for line in _differences(old[part], new[part], part)]


def notes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Differences of versions and platform: the run may go on, but not to the bit."""
    return [line for part in ("versions", "platform") for line in _differences(old[part], new[part], part)]


def _is_free(line: str) -> bool:
    return line.split(":")[0].split(".")[1] in FREE


def _differences(old: Any, new: Any, place: str) -> list[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(key for key in new if key not in old)]
        return [
            line
            for key in keys
            for line in _differences(old.get(key, "(absent)"), new.get(key, "(absent)"), f"{place}.{key}")
        ]
    return [] if old == new else [f"{place}: {_short(old)} -> {_short(new)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _without_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: "(secret)"
        if key.lower().endswith(SECRET_ENDINGS)
        else _without_secrets(value)
        if isinstance(value, Mapping)
        else value
        for key, value in config.items()
    }


def _directory(directory: pathlib.Path) -> dict[str, str]:
    """Hash of every file of a model directory; hidden ones and subdirectories hold no weights."""
    if not directory.is_dir():
        raise ValueError(f"{directory}: no such directory; give a Hugging Face checkpoint on this machine")
    files = sorted(path for path in directory.iterdir() if path.is_file() and not path.name.startswith("."))
    return {path.name: _sha256(path) for path in files}


def _code() -> dict[str, str]:
    root = pathlib.Path(vlrl.__path__[0])
    return {str(path.relative_to(root)): _sha256(path) for path in sorted(root.rglob("*.py"))}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(absent)"


def _sha256(file: pathlib.Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"{file}: cannot be read for the run manifest ({error}); correct the path") from error
