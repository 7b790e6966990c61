"""Item rows as annotation files hold them."""

import json

ITEMS = [
    {
        "code": "18_4",
        "age_months": 18,
        "domain": "gross motor",
        "text": "Walks backward",
        "guidance": "Film from the side.",
        "criterion": "At least two steps backward.",
        "under_reversal": "flips",
        "under_shuffle": "fails",
    },
    {
        "code": "30_1",
        "age_months": 30,
        "domain": "gross motor",
        "text": "Stands on one foot",
        "guidance": "Show both feet.",
        "criterion": "One foot is off the ground for 2 s.",
        "min_duration_s": 2.0,
    },
    {
        "code": "10_5",
        "age_months": 10,
        "domain": "personal-social",
        "text": "Expresses no",
        "guidance": "Offer something unwanted.",
        "criterion": "Turns away, pushes away or shakes the head.",
    },
]


def row(number, item="18_4", outcome="pass", child=None, **rest):
    return {
        "example_id": f"v{number}",
        "video": f"clips/{number}.mp4",
        "task": "item",
        "item": item,
        "outcome": outcome,
        "child": child or f"c{number}",
        "sex": ("female", "male")[number % 2],
        "age_months": 18.5,
        **rest,
    }


def write(folder, rows, items=ITEMS, name="all.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    path = folder / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)
