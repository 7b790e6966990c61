"""Annotation files: JSON lines, one Example each, video paths relative to the file and inside its folder.

    {"example_id": "a1", "video": "clips/a1.mp4", "task": "both", "question": "...", "reference": "...",
     "options": [], "answer_option": null, "answer_span_s": [2.0, 5.5], "answer_boxes": [[t, x1, y1, x2, y2], ...],
     "subjects": ["red circle"], "tracks": {"red circle": [[t, x1, y1, x2, y2], ...]}}

    {"example_id": "b1", "video": "clips/b1.mp4", "task": "item", "item": "18_4", "outcome": "fail", "child": "c031",
     "sex": "female", "age_months": 17.5, "site": "north", "held_s": 1.5}

Times are seconds from the start of the video, boxes 0..1 of the frame. Items are described once, in `items.jsonl`
beside the file (`vlrl.data.items`); `site` and `held_s` (how long the behaviour lasts) are optional. Whether a video
exists and decodes is found out when it is decoded: that fails one prompt, a malformed line fails the file.
"""

import difflib
import pathlib
import string
import urllib.parse
from collections.abc import Mapping
from typing import Any, get_args

from vlrl import types
from vlrl.data import fields, items
from vlrl.data.fields import Problems

REQUIRED = ("example_id", "video", "task", "question", "reference")
OPTIONAL = ("options", "answer_option", "answer_span_s", "answer_boxes", "subjects", "tracks")
ITEM_REQUIRED = ("example_id", "video", "task", "item", "outcome", "child", "sex", "age_months")
ITEM_OPTIONAL = ("site", "held_s")
TASKS = get_args(types.Task)
SEXES = ("female", "male", "unknown")


def read(path: str) -> list[types.Example]:
    """All examples of the file, in order. Raises one ValueError that lists every malformed line."""
    examples, errors = check(path)
    if errors:
        raise fields.complaint(errors)
    return examples


def check(path: str) -> tuple[list[types.Example], list[str]]:
    """The well-formed examples of the file, and one message for every problem of the others."""
    file = pathlib.Path(path)
    if not file.is_file():
        raise ValueError(f"{path}: no such annotation file; set data.train or data.eval to a JSONL file")
    root = file.parent.resolve()
    catalogue, errors = items.read(root / items.FILE)
    examples: list[types.Example] = []
    lines_of: dict[str, int] = {}
    for number, line in fields.numbered(file):
        example, problems = _example(line, root, catalogue)
        if example is not None and example.example_id in lines_of:
            first = lines_of[example.example_id]
            problems = [("example_id", f"{example.example_id!r} is also on line {first}; make it unique")]
        elif example is not None:
            lines_of[example.example_id] = number
            examples.append(example)
        errors += [f"{path}:{number}: {field}: {problem}" for field, problem in problems]
    if not examples and not errors:
        raise ValueError(f"{path}: holds no example; write one JSON object a line")
    return examples, errors


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


def _example(
    line: bytes, root: pathlib.Path, catalogue: Mapping[str, types.Item]
) -> tuple[types.Example | None, Problems]:
    row, problems = fields.load(line)
    if problems:
        return None, problems
    is_item = row.get("task") == "item"
    required, optional = (ITEM_REQUIRED, ITEM_OPTIONAL) if is_item else (REQUIRED, OPTIONAL)
    values, problems = fields.parse(row, required, optional, _PARSERS)
    if "video" in values:
        try:
            values["video_path"] = video_path(values.pop("video"), root)
        except ValueError as error:
            problems.append(("video", str(error)))
    if "item" in values and values["item"] not in catalogue:
        near = difflib.get_close_matches(values["item"], catalogue, n=3)
        cure = f"did you mean {', '.join(near)}?" if near else "describe it there"
        problems.append(("item", f"{values['item']!r} is not in {items.FILE} beside the file; {cure}"))
    if problems:
        return None, problems
    if is_item:
        return _item_example(values, catalogue[values["item"]]), []
    example = types.Example(**values)
    problems = _answer_problems(example)
    return (None if problems else example), problems


def _item_example(values: dict[str, Any], item: types.Item) -> types.Example:
    return types.Example(
        question=item.text,
        reference=item.criterion,
        child_id=values.pop("child"),
        **(values | {"item": item}),
    )


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


_PARSERS: fields.Parsers = {
    **dict.fromkeys(("example_id", "video", "question", "reference", "answer_option"), fields.text),
    **dict.fromkeys(("item", "child", "site"), fields.text),
    "task": fields.one_of(TASKS, "task"),
    "options": fields.texts,
    "answer_span_s": fields.span,
    "answer_boxes": fields.timed_boxes,
    "subjects": fields.texts,
    "tracks": fields.tracks,
    "outcome": fields.one_of(get_args(types.Outcome), "outcome"),
    "sex": fields.one_of(SEXES, "recorded sex"),
    "age_months": fields.positive,
    "held_s": fields.not_negative,
}
