"""Annotation files: JSON lines, one Example each, video paths relative to the file and inside its folder.

    {"example_id": "a1", "video": "clips/a1.mp4", "task": "both", "question": "...", "reference": "...",
     "options": [], "answer_option": null, "answer_span_s": [2.0, 5.5], "answer_boxes": [[t, x1, y1, x2, y2], ...],
     "subjects": ["red circle"], "tracks": {"red circle": [[t, x1, y1, x2, y2], ...]}}

Times are seconds from the start of the video, boxes 0..1 of the frame. Whether a video exists and decodes is found out
when it is decoded: that is a failure of one prompt, a malformed line is one of the file.
"""

import difflib
import json
import math
import pathlib
import string
import urllib.parse
from collections.abc import Callable
from typing import Any, get_args

from vlrl import types

REQUIRED = ("example_id", "video", "task", "question", "reference")
OPTIONAL = ("options", "answer_option", "answer_span_s", "answer_boxes", "subjects", "tracks")
TASKS = get_args(types.Task)
MAX_LISTED = 100

Problems = list[tuple[str, str]]
"""(field, what is wrong and the cure)."""


def read(path: str) -> list[types.Example]:
    """All examples of the file, in order. Raises one ValueError that lists every malformed line."""
    file = pathlib.Path(path)
    if not file.is_file():
        raise ValueError(f"{path}: no such annotation file; set data.train or data.eval to a JSONL file")
    root = file.parent.resolve()
    examples: list[types.Example] = []
    errors: list[str] = []
    lines_of: dict[str, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        example, problems = _example(line, root)
        if example is not None and example.example_id in lines_of:
            first = lines_of[example.example_id]
            problems = [("example_id", f"{example.example_id!r} is also on line {first}; make it unique")]
        elif example is not None:
            lines_of[example.example_id] = number
            examples.append(example)
        errors += [f"{path}:{number}: {field}: {problem}" for field, problem in problems]
    if errors:
        listed = errors[:MAX_LISTED] + [f"and {len(errors) - MAX_LISTED} more"] * (len(errors) > MAX_LISTED)
        raise ValueError("malformed annotations, nothing was read:\n" + "\n".join(listed))
    if not examples:
        raise ValueError(f"{path}: holds no example; write one JSON object a line")
    return examples


def video_path(text: str, root: pathlib.Path) -> str:
    """The file that a relative path means, as an absolute path. Raises ValueError for whatever leaves the folder."""
    # %2e%2e is looked at too: some reader further on may decode it
    plain = urllib.parse.unquote(text)
    parts = plain.replace("\\", "/").split("/")
    if not text or "\0" in plain:
        raise ValueError(f"{text!r} is no path; write one relative to the annotation file")
    if ":" in parts[0]:
        raise ValueError(f"{text!r} is a URL; download the video and write its relative path")
    if plain.startswith(("/", "\\", "~")) or ".." in parts:
        raise ValueError(f"{text!r} leaves the folder of the annotation file; move the video below it")
    resolved = (root / text).resolve()
    if not resolved.is_relative_to(root):
        raise ValueError(f"{text!r} links to {resolved}, outside the annotation file's folder; copy the video there")
    return str(resolved)


def _example(line: bytes, root: pathlib.Path) -> tuple[types.Example | None, Problems]:
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except ValueError as error:  # also UnicodeDecodeError
        return None, [("line", f"no valid JSON ({error}); write one object a line")]
    if not isinstance(row, dict):
        return None, [("line", f"expected an object, got {type(row).__name__}; write {{...}}")]
    problems: Problems = [(name, "missing; add it") for name in REQUIRED if name not in row]
    for name in row:
        if name not in REQUIRED + OPTIONAL:
            near = difflib.get_close_matches(name, REQUIRED + OPTIONAL, n=1) or REQUIRED + OPTIONAL
            problems.append((name, f"no such field; did you mean {', '.join(near)}?"))
    # null means absent, but not where a value must be
    given = {k: v for k, v in row.items() if v is not None or k in REQUIRED}
    fields: dict[str, Any] = {}
    for name, parse in _PARSERS.items():
        if name in given:
            try:
                fields[name] = parse(given[name])
            except ValueError as error:
                problems.append((name, str(error)))
    if "video" in fields:
        try:
            fields["video_path"] = video_path(fields.pop("video"), root)
        except ValueError as error:
            problems.append(("video", str(error)))
    if problems:
        return None, problems
    example = types.Example(**fields)
    problems = _answer_problems(example)
    return (None if problems else example), problems


def _answer_problems(example: types.Example) -> Problems:
    """Whether the answer that the task is scored by is there."""
    problems: Problems = []
    if example.task == "mcq":
        letters = string.ascii_uppercase[: len(example.options)]
        if not 2 <= len(example.options) <= len(string.ascii_uppercase):
            problems.append(("options", f"{len(example.options)} options for task mcq; give 2 to 26"))
        elif example.answer_option not in tuple(letters):
            problems.append(("answer_option", f"{example.answer_option!r} is no option; write one letter of {letters}"))
    if example.task in ("when", "both") and example.answer_span_s is None:
        problems.append(("answer_span_s", f"missing for task {example.task}; write [start, end] in seconds"))
    if example.task in ("where", "both") and not example.answer_boxes:
        problems.append(("answer_boxes", f"missing for task {example.task}; write [[t, x1, y1, x2, y2], ...]"))
    return problems


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected text, got {value!r}; write a string that is not empty")
    return value


def _task(value: Any) -> str:
    if value not in TASKS:
        raise ValueError(f"{value!r} is no task; choose one of {', '.join(TASKS)}")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list of texts, got {value!r}; write [...]")
    return tuple(_text(item) for item in value)


def _numbers(value: Any, count: int, form: str) -> list[float]:
    good = isinstance(value, list) and len(value) == count
    if not good or not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in value):
        raise ValueError(f"expected {count} numbers, got {value!r}; write {form}")
    if not all(math.isfinite(v) for v in value) or value[0] < 0:
        raise ValueError(f"times are seconds from 0 on, numbers finite, got {value!r}; write {form}")
    return [float(v) for v in value]


def _span(value: Any) -> tuple[float, float]:
    start_s, end_s = _numbers(value, 2, "[start, end] in seconds")
    if end_s < start_s:
        raise ValueError(f"ends before it starts: {value!r}; swap the two")
    return start_s, end_s


def _timed_boxes(value: Any) -> tuple[types.TimedBox, ...]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list of boxes, got {value!r}; write [[t, x1, y1, x2, y2], ...]")
    boxes = []
    for item in value:
        time_s, x1, y1, x2, y2 = _numbers(item, 5, "[t, x1, y1, x2, y2]")
        if not (0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1):
            raise ValueError(f"{item!r}: boxes are x1 < x2, y1 < y2 from 0 to 1; divide pixels by width and height")
        boxes.append(types.TimedBox(time_s, (x1, y1, x2, y2)))
    return tuple(boxes)


def _tracks(value: Any) -> dict[str, tuple[types.TimedBox, ...]]:
    if not isinstance(value, dict):
        raise ValueError(f"expected boxes by phrase, got {value!r}; write {{phrase: [[t, x1, y1, x2, y2], ...]}}")
    return {_text(phrase): _timed_boxes(boxes) for phrase, boxes in value.items()}


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "example_id": _text,
    "video": _text,
    "task": _task,
    "question": _text,
    "reference": _text,
    "options": _texts,
    "answer_option": _text,
    "answer_span_s": _span,
    "answer_boxes": _timed_boxes,
    "subjects": _texts,
    "tracks": _tracks,
}
