"""Fields of annotation files: one JSON object a line, every value checked, every problem named with its cure."""

import difflib
import json
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from vlrl import types

MAX_LISTED = 100

Problems = list[tuple[str, str]]
"""(field, what is wrong and the cure)."""
Parsers = Mapping[str, Callable[[Any], Any]]


def numbered(file: pathlib.Path) -> list[tuple[int, bytes]]:
    """Line numbers (from 1) and bytes of every line that is not blank."""
    return [(n, line) for n, line in enumerate(file.read_bytes().splitlines(), 1) if line.strip()]


def complaint(errors: list[str], most: int | None = MAX_LISTED) -> ValueError:
    """One error that lists the first `most` problems (None: all of them)."""
    listed = errors[:most]
    cut = len(errors) - len(listed)
    return ValueError(
        "\n".join(["malformed annotations, nothing was read:", *listed, *[f"and {cut} more"] * (cut > 0)])
    )


def load(line: bytes) -> tuple[dict[str, Any], Problems]:
    """The object of a line; empty where there is none, with the problem."""
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except ValueError as error:  # also UnicodeDecodeError
        return {}, [("line", f"no valid JSON ({error}); write one object a line")]
    if not isinstance(row, dict):
        return {}, [("line", f"expected an object, got {type(row).__name__}; write {{...}}")]
    return row, []


def parse(
    row: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...], parsers: Parsers
) -> tuple[dict[str, Any], Problems]:
    """The values that parse, and what is missing, misnamed or wrong."""
    known = required + optional
    problems: Problems = [(name, "missing; add it") for name in required if name not in row]
    for name in row:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1) or known
            problems.append((name, f"no such field; did you mean {', '.join(near)}?"))
    # null means absent, but not where a value must be
    given = {k: v for k, v in row.items() if k in known and (v is not None or k in required)}
    fields: dict[str, Any] = {}
    for name in known:
        if name in given:
            try:
                fields[name] = parsers[name](given[name])
            except ValueError as error:
                problems.append((name, str(error)))
    return fields, problems


def text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected text, got {value!r}; write a string that is not empty")
    return value


def texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list of texts, got {value!r}; write [...]")
    return tuple(text(item) for item in value)


def one_of(allowed: tuple[str, ...], what: str) -> Callable[[Any], str]:
    """Parser of a word out of a short list."""

    def choose(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"{value!r} is no {what}; choose one of {', '.join(allowed)}")
        return value

    return choose


def positive(value: Any) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    if not good:
        raise ValueError(f"expected a number above 0, got {value!r}")
    return float(value)


def not_negative(value: Any) -> float:
    return 0.0 if value == 0 and not isinstance(value, bool) else positive(value)


def numbers(value: Any, count: int, form: str) -> list[float]:
    good = isinstance(value, list) and len(value) == count
    if not good or not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in value):
        raise ValueError(f"expected {count} numbers, got {value!r}; write {form}")
    if not all(math.isfinite(v) for v in value) or value[0] < 0:
        raise ValueError(f"times are seconds from 0 on, numbers finite, got {value!r}; write {form}")
    return [float(v) for v in value]


def span(value: Any) -> tuple[float, float]:
    start_s, end_s = numbers(value, 2, "[start, end] in seconds")
    if end_s < start_s:
        raise ValueError(f"ends before it starts: {value!r}; swap the two")
    return start_s, end_s


def timed_boxes(value: Any) -> tuple[types.TimedBox, ...]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list of boxes, got {value!r}; write [[t, x1, y1, x2, y2], ...]")
    boxes = []
    for item in value:
        time_s, x1, y1, x2, y2 = numbers(item, 5, "[t, x1, y1, x2, y2]")
        if not (0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1):
            raise ValueError(f"{item!r}: boxes are x1 < x2, y1 < y2 from 0 to 1; divide pixels by width and height")
        boxes.append(types.TimedBox(time_s, (x1, y1, x2, y2)))
    return tuple(boxes)


def tracks(value: Any) -> dict[str, tuple[types.TimedBox, ...]]:
    if not isinstance(value, dict):
        raise ValueError(f"expected boxes by phrase, got {value!r}; write {{phrase: [[t, x1, y1, x2, y2], ...]}}")
    return {text(phrase): timed_boxes(boxes) for phrase, boxes in value.items()}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
