"""Command lines: one config file, overrides of its fields, a few flags; errors as one line and status 2."""

import argparse
import difflib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_collections

from vlrl import config


def parse(
    argv: list[str],
    description: str,
    flags: Mapping[str, Any],
    config_required: bool = True,
    positional: Sequence[str] = (),
) -> Any:
    """Flags as attributes, `config` among them as a frozen Config (None where it is not required and not given), and
    the positional arguments by name, as text; a name that ends in * takes one or more.

    `--config FILE` is executed as Python; `--config.a.b=value` sets a field, read as the type the field has.
    Raises ValueError naming an unknown field and the nearest names.
    """
    overrides, rest = _split(argv[1:])
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=config_required, default="", help="Python file with get_config()")
    for name in positional:
        parser.add_argument(name.removesuffix("*"), nargs="+" if name.endswith("*") else None)
    for name, default in flags.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", default=default, required=default is None)
    found, unknown = parser.parse_known_args(rest)
    if unknown:
        names = ["--config", *(f"--{name}" for name in flags)]
        near = difflib.get_close_matches(unknown[0].partition("=")[0], names, n=3, cutoff=0.4) or names
        raise ValueError(f"{unknown[0]}: no such argument; did you mean {', '.join(near)}?")
    if not found.config:
        return found
    fields = config.load_fields(found.config)
    for place, text in overrides:
        _override(fields, place, text)
    return types.SimpleNamespace(**{**vars(found), "config": config.freeze(fields)})


def run(main: Callable[[list[str]], None], argv: list[str]) -> None:
    """Runs a command; bad input is answered with its one sentence instead of a traceback."""
    try:
        main(argv)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _split(arguments: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """(field, text) of every --config.field=text or --config.field text, and the other arguments."""
    overrides, rest = [], []
    waiting = iter(arguments)
    for argument in waiting:
        if not argument.startswith("--config."):
            rest.append(argument)
            continue
        place, equals, text = argument.removeprefix("--config.").partition("=")
        overrides.append((place, text if equals else next(waiting, "")))
    return overrides, rest


def _override(fields: ml_collections.ConfigDict, place: str, text: str) -> None:
    *path, last = place.split(".")
    part = fields
    for name in path:
        part = _known(part, name, place)
        if not isinstance(part, ml_collections.ConfigDict):
            raise ValueError(f"--config.{place}: {name} is a value, not a group of fields")
    old = _known(part, last, place)
    part[last] = _read(old, text, place)


def _known(part: ml_collections.ConfigDict, name: str, place: str) -> Any:
    if name not in part:
        near = difflib.get_close_matches(name, list(part), n=3, cutoff=0.4) or sorted(part)
        raise ValueError(f"--config.{place}: no field {name!r}; did you mean {', '.join(near)}?")
    return part[name]


def _read(old: Any, text: str, place: str) -> Any:
    """The text as the type of the value it replaces; freeze() checks what is inside tuples."""
    if isinstance(old, ml_collections.ConfigDict):
        raise ValueError(f"--config.{place}: a group of fields; set one of {', '.join(sorted(old))}")
    try:
        if isinstance(old, bool):
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if isinstance(old, tuple):
            inner = type(old[0]) if old else str
            if inner is tuple:
                raise ValueError("set this field in the config file")
            return tuple(inner(part.strip()) for part in text.strip("()[] ").split(",") if part.strip())
        return type(old)(text)
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"--config.{place}={text}: expected {type(old).__name__} like {old!r} ({error}); correct the value"
        ) from error
