"""Completion text -> claims, answer, times, boxes. Strings only, and only the completion: never the prompt.

The policy writes this text, so hostile text is normal: nothing here raises, and time is linear in the text. Therefore
no regular expression below repeats a repetition, and none reads again what a failed earlier start has read.
"""

import functools
import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from vlrl.types import Box, Claim, Parsed, TimedBox

ToBox = Callable[[Sequence[float]], Box | None]
"""Four finite numbers in the coordinates of the text -> box in 0..1 of the frame, None where they make no box."""

MAX_PHRASE_CHARS = 120
"""A longer phrase does not name an object; the referee would have to read it twice a claim."""
MAX_NUMBER_CHARS = 32
"""float() of very long digit strings takes quadratic time."""

_TAG = re.compile(r"</?(?:obj|box|t)>")
_SECONDS_UNIT = re.compile(r"\s*s")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_TAGGED_BOX = re.compile(r"<box>[^<]*</box>")
_TIME_TAG = re.compile(r"</?t>")
_TIME = r"[0-9]{1,9}(?::[0-9]{1,2}){0,2}(?:\.[0-9]{1,9})?"
_SPAN = re.compile(
    rf"(?<![0-9.:\-])({_TIME})\s{{0,4}}(?:s(?:ec(?:s|onds?)?)?)?\s{{0,4}}(?:to|and|-|\u2013|\u2014)\s{{0,4}}"
    rf"({_TIME})(?![0-9:]|\.[0-9])",
    re.IGNORECASE,
)
# Ten letters: the widest multiple choice among the supported benchmarks (VideoMMMU).
_OPTION = re.compile(
    r"[(\[]([A-Ja-j])[)\]]"
    r"|(?i:answer|option)(?: is)?:? {0,2}([A-J])(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9])([A-J])(?![A-Za-z0-9]|'[a-z])"
)
_WORD_FOLLOWS = re.compile(r"\s+(?!is\b)[a-z]")
_BOX_KEYS = ("bbox_2d", "bbox", "box")
_TIME_KEYS = ("time", "time_s", "timestamp", "t")
_MAX_JSON_DEPTH = 4


def parse_all(texts: Sequence[Sequence[str]], to_boxes: Sequence[ToBox]) -> tuple[tuple[Parsed, ...], ...]:
    """`parse` of every completion [P][G]; `to_boxes` [P] because absolute coordinates depend on the prompt's frames."""
    return tuple(tuple(parse(text, to_box) for text in group) for group, to_box in zip(texts, to_boxes, strict=True))


def parse(text: str, to_box: ToBox) -> Parsed:
    """What a completion says.

    Rationale: the first <think>..</think>; claims count only in there. Answer: the last closed <answer>..</answer>
    after the rationale (anywhere, where there is none). A claim is <obj>..</obj><box>[..]</box>at<t>..</t>s with free
    white space; of several boxes the first counts; equal claims count once. An <obj> that begins no valid claim is
    malformed: empty phrase, not four finite numbers, corners swapped or equal after clamping to the frame, time not
    finite.
    """
    rationale, rest = _split_rationale(text)
    answer = _last_answer(rest)
    claims, num_malformed = _claims(rationale or "", to_box)
    return Parsed(
        rationale=rationale,
        answer=answer,
        claims=claims,
        num_malformed_claims=num_malformed,
        option=option(answer or ""),
        span_s=span(answer or ""),
        boxes=boxes(answer or "", to_box),
    )


def option(text: str) -> str | None:
    """The option letter stated last, in upper case; lower case counts alone, in brackets or after a colon."""
    alone = text.rpartition(":")[2].strip(" \t\r\n.;,()[]*'\"")
    if len(alone) == 1 and alone in "abcdefghij":
        return alone.upper()
    letter = None
    for match in _OPTION.finditer(text):
        bare = match.group(3)
        # "A red circle" and "I think" hold a word, not an option.
        if bare is not None and bare in "AI" and _WORD_FOLLOWS.match(text, match.end()):
            continue
        letter = match.group(match.lastindex or 0).upper()
    return letter


def span(text: str) -> tuple[float, float] | None:
    """Seconds of the interval stated last: "From <t>2</t>s to <t>5.5</t>s", "1:23 to 1:30", "12.5s - 20s".

    None where there is none or it ends before it starts."""
    matches = _SPAN.findall(_TIME_TAG.sub("", _TAGGED_BOX.sub(" ", text)))
    if not matches:
        return None
    start_s, end_s = seconds(matches[-1][0]), seconds(matches[-1][1])
    if start_s is None or end_s is None or end_s < start_s:
        return None
    return start_s, end_s


def boxes(text: str, to_box: ToBox) -> tuple[TimedBox | Box, ...]:
    """Boxes of an answer, with their times where stated: tagged ones; without any, those of a fenced JSON block (lists,
    objects with bbox_2d | bbox | box, objects keyed by seconds); without any, each [x1, y1, x2, y2]."""
    tags = list(_TAG.finditer(text))
    found: list[TimedBox | Box] = []
    for i, (left, right) in enumerate(itertools.pairwise(tags)):
        if (left.group(), right.group()) == ("<box>", "</box>"):
            time_s = _time_after(text, tags, i + 1)
            found += _with_time(_boxes_of_list(_gap(text, tags, i), to_box), time_s)
    if any(tag.group() == "<box>" for tag in tags):
        return tuple(found)
    return tuple(_fenced_boxes(text, to_box) or _with_time([_box(m, to_box) for m in _BRACKETS.findall(text)], None))


def seconds(text: str) -> float | None:
    """Seconds of "3.5", "1:23" or "1:02:03.5"; None for anything else."""
    fields = [number(field) for field in text.strip().split(":", 3)]
    if len(fields) == 1:
        return fields[0]
    clock = [field for field in fields if field is not None and field >= 0]
    if len(clock) != len(fields) or len(fields) > 3 or max(clock[1:]) >= 60:
        return None
    return functools.reduce(lambda total, field: total * 60 + field, clock)


def number(text: str) -> float | None:
    """A finite decimal number, or None."""
    text = text.strip()
    if len(text) > MAX_NUMBER_CHARS or not set(text) <= set("0123456789+-.eE"):
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _split_rationale(text: str) -> tuple[str | None, str]:
    start = text.find("<think>")
    end = text.find("</think>", start) if start >= 0 else -1
    if end < 0:
        return None, text
    return text[start + len("<think>") : end].strip(), text[end + len("</think>") :]


def _last_answer(text: str) -> str | None:
    start = text.rfind("<answer>", 0, max(text.rfind("</answer>"), 0))
    if start < 0:
        return None
    return text[start + len("<answer>") : text.find("</answer>", start)].strip()


def _claims(text: str, to_box: ToBox) -> tuple[tuple[Claim, ...], int]:
    tags = list(_TAG.finditer(text))
    starts = [i for i, tag in enumerate(tags) if tag.group() == "<obj>"]
    claims: dict[tuple[str, Box, float], Claim] = {}
    num_malformed = 0
    for start in starts:
        claim = _claim(text, tags, start, to_box)
        if claim is None:
            num_malformed += 1
        else:
            # Copies of one claim would be paid like several (Rex-Omni#146).
            claims.setdefault((claim.phrase.casefold(), claim.box, claim.time_s), claim)
    return tuple(claims.values()), num_malformed


def _claim(text: str, tags: Sequence[re.Match[str]], start: int, to_box: ToBox) -> Claim | None:
    if not _reads(tags, start, "<obj>", "</obj>", "<box>", "</box>") or _gap(text, tags, start + 1).strip():
        return None
    last = start + 3
    while _reads(tags, last + 1, "<box>", "</box>") and not _gap(text, tags, last).strip():
        last += 2
    phrase = " ".join(_gap(text, tags, start).split())
    box = next(iter(_boxes_of_list(_gap(text, tags, start + 2), to_box)), None)
    time_s = _time_after(text, tags, last)
    if not 0 < len(phrase) <= MAX_PHRASE_CHARS or box is None or time_s is None:
        return None
    return Claim(phrase, box, time_s)


def _time_after(text: str, tags: Sequence[re.Match[str]], box_end: int) -> float | None:
    """Seconds of the `at<t>..</t>s` that follows the tag </box> at index `box_end`."""
    if not _reads(tags, box_end + 1, "<t>", "</t>") or _gap(text, tags, box_end).strip() != "at":
        return None
    if not _SECONDS_UNIT.match(text, tags[box_end + 2].end()):
        return None
    return seconds(_gap(text, tags, box_end + 1))


def _reads(tags: Sequence[re.Match[str]], start: int, *names: str) -> bool:
    return tuple(tag.group() for tag in tags[start : start + len(names)]) == names


def _gap(text: str, tags: Sequence[re.Match[str]], i: int) -> str:
    """Text between tag i and the next one."""
    return text[tags[i].end() : tags[i + 1].start()]


def _boxes_of_list(text: str, to_box: ToBox) -> list[Box | None]:
    """Boxes of "[x1,y1,x2,y2]" or "[[..],[..]]"; None stands for one that is malformed."""
    text = text.strip()
    if len(text) < 2 or text[0] != "[" or text[-1] != "]":
        return []
    inner = text[1:-1].strip()
    if not inner.startswith("["):
        return [_box(inner, to_box)]
    if _BRACKETS.sub("", inner).strip(", \t\r\n"):
        return []
    return [_box(values, to_box) for values in _BRACKETS.findall(inner)]


def _box(values: str, to_box: ToBox) -> Box | None:
    if values.count(",") != 3:
        return None
    return _checked_box([number(value) for value in values.split(",")], to_box)


def _checked_box(values: Sequence[float | None], to_box: ToBox) -> Box | None:
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    box = to_box(numbers) if len(numbers) == len(values) == 4 else None
    if box is None:
        return None
    x1, y1, x2, y2 = (min(max(float(side), 0.0), 1.0) for side in box)
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None


def _with_time(found: Sequence[Box | None], time_s: float | None) -> list[TimedBox | Box]:
    return [box if time_s is None else TimedBox(time_s, box) for box in found if box is not None]


def _fenced_boxes(text: str, to_box: ToBox) -> list[TimedBox | Box]:
    _, fence, rest = text.partition("```")
    if not fence:
        return []
    body = rest.partition("```")[0].removeprefix("json")
    try:
        value = json.loads(body, parse_int=_json_number, parse_float=_json_number, parse_constant=_json_number)
    except (ValueError, RecursionError):
        return []
    return _json_boxes(value, None, 0, to_box)


def _json_number(text: str) -> float:
    value = number(text)
    return math.nan if value is None else value


def _json_boxes(value: Any, time_s: float | None, depth: int, to_box: ToBox) -> list[TimedBox | Box]:
    if depth > _MAX_JSON_DEPTH:
        return []
    if isinstance(value, list):
        if len(value) == 4 and all(isinstance(side, float) for side in value):
            return _with_time([_checked_box(value, to_box)], time_s)
        return [box for item in value for box in _json_boxes(item, time_s, depth + 1, to_box)]
    if not isinstance(value, dict):
        return []
    key = next((key for key in _BOX_KEYS if key in value), None)
    if key is None:
        return [box for at, item in value.items() for box in _json_boxes(item, seconds(at), depth + 1, to_box)]
    stated = next((value[name] for name in _TIME_KEYS if name in value), None)
    if isinstance(stated, (str, float)):
        time_s = seconds(str(stated))
    return _json_boxes(value[key], time_s, depth + 1, to_box)
