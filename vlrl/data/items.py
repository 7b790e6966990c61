"""The catalogue of developmental items: `items.jsonl` beside the annotation file, one item a line.

    {"code": "18_4", "age_months": 18, "domain": "gross motor", "text": "Walks backward", "guidance": "...",
     "criterion": "...", "under_reversal": "flips", "under_shuffle": "", "min_duration_s": null}

The last three are optional. They say what an edited video of the item shows (`vlrl.data.temporal`): played backwards a
recorded outcome "flips" or "keeps", with its frames shuffled a pass "fails" or everything "keeps", and how long the
behaviour must last. Empty: not known, no such video is made.
"""

import pathlib

from vlrl import types
from vlrl.data import fields

FILE = "items.jsonl"
REQUIRED = ("code", "age_months", "domain", "text", "guidance", "criterion")
OPTIONAL = ("under_reversal", "under_shuffle", "min_duration_s")


def read(file: pathlib.Path) -> tuple[dict[str, types.Item], list[str]]:
    """Items by code, and one message for every problem; nothing of either where there is no such file."""
    items: dict[str, types.Item] = {}
    errors: list[str] = []
    for number, line in fields.numbered(file) if file.is_file() else ():
        row, problems = fields.load(line)
        if not problems:
            values, problems = fields.parse(row, REQUIRED, OPTIONAL, _PARSERS)
            if not problems and values["code"] in items:
                problems = [("code", f"{values['code']!r} is described twice; keep one line for each item")]
            if not problems:
                items[values["code"]] = types.Item(**values)
        errors += [f"{file}:{number}: {field}: {problem}" for field, problem in problems]
    return items, errors


_PARSERS: fields.Parsers = {
    **dict.fromkeys(("code", "domain", "text", "guidance", "criterion"), fields.text),
    "age_months": fields.positive,
    "under_reversal": fields.one_of(("", "flips", "keeps"), "effect of reversal"),
    "under_shuffle": fields.one_of(("", "fails", "keeps"), "effect of shuffling"),
    "min_duration_s": fields.positive,
}
