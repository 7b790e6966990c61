import dataclasses

import item_rows
import numpy as np
import pytest

from vlrl import annotations
from vlrl.data import examples, pairs, splits, temporal
from vlrl.types import Item, Video


def test_an_item_row_becomes_an_example_with_its_item(tmp_path):
    path = item_rows.write(tmp_path, [item_rows.row(1, "30_1", "fail", site="north", held_s=1.5)])
    (example,) = examples.read(path)
    assert example.item == Item(
        "30_1",
        30.0,
        "gross motor",
        "Stands on one foot",
        "Show both feet.",
        "One foot is off the ground for 2 s.",
        min_duration_s=2.0,
    )
    assert (example.outcome, example.child_id, example.sex, example.site) == ("fail", "c1", "male", "north")
    assert (example.age_months, example.held_s, example.task) == (18.5, 1.5, "item")
    assert example.item.is_temporal


def test_the_check_lists_every_bad_line_and_its_cure(tmp_path):
    good = item_rows.row(1)
    without_outcome = {k: v for k, v in item_rows.row(2).items() if k != "outcome"}
    nobody = {k: v for k, v in item_rows.row(3).items() if k != "child"}
    path = item_rows.write(
        tmp_path,
        [
            good,
            without_outcome,
            nobody,
            item_rows.row(4, item="18_5"),
            item_rows.row(5, outcome="passed"),
            {**item_rows.row(6), "question": "?"},
            *["{"] * 130,
        ],
    )
    with pytest.raises(ValueError, match="malformed annotations") as error:
        annotations.main(["annotations", "check", path])
    lines = str(error.value).splitlines()[1:]
    assert len(lines) == 135  # every one, however many
    assert lines[0] == f"{path}:2: outcome: missing; add it"
    assert lines[1] == f"{path}:3: child: missing; add it"
    assert lines[2] == f"{path}:4: item: '18_5' is not in items.jsonl beside the file; did you mean 18_4, 10_5?"
    assert lines[3] == f"{path}:5: outcome: 'passed' is no outcome; choose one of pass, fail"
    assert lines[4].startswith(f"{path}:6: question: no such field")


def test_a_bad_catalogue_is_named_too(tmp_path):
    items = [*item_rows.ITEMS, item_rows.ITEMS[0], {**item_rows.ITEMS[1], "code": "x", "age_months": 0}]
    path = item_rows.write(tmp_path, [item_rows.row(1)], items)
    with pytest.raises(ValueError, match="described twice") as error:
        examples.read(path)
    assert "items.jsonl:5: age_months: expected a number above 0" in str(error.value)


def many(count=100, items=("18_4", "30_1", "10_5"), children=40):
    catalogue = {item["code"]: Item(**item | {"age_months": float(item["age_months"])}) for item in item_rows.ITEMS}
    made = []
    for n in range(count):
        item = catalogue[items[n % len(items)]]
        values = {k: v for k, v in item_rows.row(n).items() if k not in ("video", "item", "child")}
        site = "north" if n < count // 4 else "south"
        made.append(
            examples.types.Example(
                **values,
                video_path=f"/clips/{n}.mp4",
                question=item.text,
                reference=item.criterion,
                item=item,
                child_id=f"c{n % children}",
                site=site,
            )
        )
    return made


def test_the_per_item_split_takes_a_tenth_of_every_item():
    rows = many(90)
    train, test = splits.per_item(rows, 0.9, 0)
    assert len(train) + len(test) == 90
    for code in ("18_4", "30_1", "10_5"):
        assert sum(e.item.code == code for e in test) == 3  # of 30
    assert splits.per_item(rows[::-1], 0.9, 0)[1] == test[::-1]
    assert splits.per_item(rows, 0.9, 1)[1] != test


@pytest.mark.parametrize(("field", "least", "most"), [("child", 10, 13), ("site", 25, 75)])
def test_a_disjoint_split_has_nobody_on_both_sides(field, least, most):
    rows = many()
    train, test = splits.disjoint(rows, field, 0.9, 0)
    assert splits.leaks(train, test, field) == []
    assert least <= len(test) <= most
    assert len(train) + len(test) == 100


def test_a_disjoint_split_needs_the_field():
    rows = [*many(4), dataclasses.replace(many(5)[4], site="")]
    with pytest.raises(ValueError, match="1 rows have no site, 'v4' first"):
        splits.disjoint(rows, "site", 0.9, 0)


def test_the_split_command_writes_both_sides_and_the_check_finds_leaks(tmp_path, capsys):
    rows = [item_rows.row(n, child=f"child{n % 10}") for n in range(40)]
    path = item_rows.write(tmp_path, rows)
    train, test = str(tmp_path / "train.jsonl"), str(tmp_path / "eval.jsonl")
    annotations.main(["annotations", "split", path, "--by", "child"])
    assert sorted(e.example_id for e in [*examples.read(train), *examples.read(test)]) == sorted(
        f"v{n}" for n in range(40)
    )
    annotations.main(["annotations", "check", train, "--against", test])
    assert "no child is in both files" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"eval.jsonl: exists|train.jsonl: exists"):
        annotations.main(["annotations", "split", path, "--by", "child"])
    annotations.main(["annotations", "split", path, "--by", "item", "--names", "a", "b"])
    with pytest.raises(ValueError, match="are on both sides") as error:
        annotations.main(["annotations", "check", str(tmp_path / "a.jsonl"), "--against", str(tmp_path / "b.jsonl")])
    assert "child3" not in str(error.value)  # people are counted, not named


def test_mismatched_pairs_are_a_quarter_from_another_domain_and_follow_the_seed():
    rows = many(90)
    mixed = pairs.with_mismatched(rows, 0.25, "domain", seed=3)
    added = mixed[90:]
    assert len(added) == 30  # 30 of 120
    own = {e.video_path: e.item for e in rows}
    for pair in added:
        assert pair.mismatched
        assert pair.outcome is None
        assert pair.item.domain != own[pair.video_path].domain
        assert (pair.question, pair.reference) == (pair.item.text, pair.item.criterion)
    assert len({pair.example_id for pair in added}) == 30
    assert pairs.with_mismatched(rows, 0.25, "domain", 3) == mixed
    assert {e.example_id for e in pairs.with_mismatched(rows[::-1], 0.25, "domain", 3)} == {e.example_id for e in mixed}
    assert {e.example_id for e in pairs.with_mismatched(rows, 0.25, "domain", 4)} != {e.example_id for e in mixed}
    assert pairs.with_mismatched(rows, 0.0, "domain", 3) == tuple(rows)


def test_pairing_says_what_cannot_be_paired():
    rows = many(10, items=("18_4", "30_1"))  # one domain
    with pytest.raises(ValueError, match="no item is an unrelated one for"):
        pairs.with_mismatched(rows, 0.25, "domain", 0)
    assert all(
        e.item.code != "18_4" or not e.example_id.startswith("v0~") for e in pairs.with_mismatched(rows, 0.5, "item", 0)
    )
    with pytest.raises(ValueError, match="choose one of domain, item"):
        pairs.with_mismatched(rows, 0.25, "age", 0)
    with pytest.raises(ValueError, match="must be from 0 to below 1"):
        pairs.with_mismatched(rows, 1.0, "item", 0)


def edited(example, *kinds, speed=2.0):
    return {e.edit: e.outcome for e in temporal.added([example], kinds, speed)[1:]}


def test_reversal_flips_a_directional_item_and_leaves_others_alone():
    walks, stands, refuses = many(3)
    assert edited(walks, "reversal") == {"reversed": "fail"}
    assert edited(dataclasses.replace(walks, outcome="fail"), "reversal") == {"reversed": "pass"}
    assert edited(refuses, "reversal") == {}
    symmetric = dataclasses.replace(stands, item=dataclasses.replace(stands.item, under_reversal="keeps"))
    assert edited(symmetric, "reversal") == {"reversed": "pass"}


def test_another_order_fails_an_item_of_order():
    walks, _, refuses = many(3)
    assert edited(walks, "order") == {"shuffled": "fail"}
    assert edited(dataclasses.replace(walks, outcome="fail"), "order") == {"shuffled": "fail"}
    assert edited(refuses, "order", "duration") == {}


def test_duration_examples_change_the_outcome_by_the_time_held():
    stands = many(2)[1]  # must hold 2 s
    long = dataclasses.replace(stands, held_s=3.0)
    assert edited(long, "duration") == {"speed:2.0": "fail"}  # 1.5 s
    assert edited(dataclasses.replace(long, outcome="fail", held_s=1.0), "duration") == {"speed:0.5": "pass"}  # 2 s
    assert edited(dataclasses.replace(long, held_s=9.0), "duration") == {}  # 4.5 s is still enough
    assert edited(stands, "duration") == {}  # not recorded


def clip():
    frames = np.arange(4, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 3), np.uint8)
    return Video(frames, np.array([0.0, 1.0, 3.0, 4.0]), 5.0, 1.0)


def test_edits_change_frames_and_times():
    backwards = temporal.apply(clip(), "reversed", "a")
    assert backwards.frames[:, 0, 0, 0].tolist() == [3, 2, 1, 0]
    assert backwards.times_s.tolist() == [0.0, 1.0, 3.0, 4.0]  # gaps 1, 2, 1 mirrored
    mixed = temporal.apply(clip(), "shuffled", "a")
    assert sorted(mixed.frames[:, 0, 0, 0].tolist()) == [0, 1, 2, 3] != mixed.frames[:, 0, 0, 0].tolist()
    assert np.array_equal(mixed.frames, temporal.apply(clip(), "shuffled", "a").frames)
    fast = temporal.apply(clip(), "speed:2.0", "a")
    assert (fast.times_s.tolist(), fast.duration_s, fast.fps) == ([0.0, 0.5, 1.5, 2.0], 2.5, 2.0)
    assert temporal.apply(clip(), "", "a").times_s.tolist() == [0.0, 1.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="use reversed, shuffled or speed:FACTOR"):
        temporal.apply(clip(), "blurred", "a")


def test_unknown_kinds_and_idle_speeds_are_refused():
    with pytest.raises(ValueError, match="choose from reversal, order, duration"):
        temporal.added(many(1), ["mirror"], 2.0)
    with pytest.raises(ValueError, match="must be above 1"):
        temporal.added(many(1), ["duration"], 1.0)
