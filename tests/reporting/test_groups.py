"""Which rollouts a report holds, and what it says of each."""

import base64
import json

import made
import pytest

from vlrl.reporting import groups, runs, text


def read(tmp_path, *args, name="run", **kwargs):
    return runs.read(made.run(tmp_path / name, *args, **kwargs))


def chosen(*all_runs, **limits):
    return groups.choose(all_runs, groups.Limits(**limits))


def claims_of(found):
    return [claim for group in found.groups for rollout in group["rollouts"] for claim in rollout["claims"]]


def test_rollouts_of_a_prompt_are_one_group(tmp_path):
    rows = [made.row(0, "e0", g) for g in range(3)] + [made.row(0, "e1", g) for g in range(3)]
    found = chosen(read(tmp_path, [rows]))
    assert [(group["id"], len(group["rollouts"])) for group in found.groups] == [("e0", 3), ("e1", 3)]
    assert found.groups[0]["rollouts"][0] == {
        "completion": "<think>seen</think><answer>there</answer>",
        "reward": 2.125,
        "valid": True,
        "reason": "",
        "advantage": 0.5,
        "parts": {"answer": 0.5, "format": 1.0, "evidence": 0.25},
        "claims": [],
    }


def test_example_that_comes_twice_in_a_step_is_two_groups(tmp_path):
    rows = [made.row(0, "e0", g % 2) for g in range(4)]
    assert [len(group["rollouts"]) for group in chosen(read(tmp_path, [rows])).groups] == [2, 2]


def test_claims_share_what_the_evidence_pays(tmp_path):
    verdicts = (made.verdict(), made.verdict(omega=1.0), made.verdict(failure="referee_prompt_too_long"))
    first, second, failed = claims_of(chosen(read(tmp_path, [[made.row(verdicts=verdicts)]])))
    # weight .5, two graded claims: .5 * (.5 * 1 * .5) / 2 and .5 * (1 * 1 * .5) / 2
    assert (first["pay"], second["pay"], failed["pay"]) == (0.0625, 0.125, None)
    assert (first["letters"], first["grades"], first["box"]) == (["A", "C"], [1.0, 0.5], [0.25, 0.5, 0.5, 0.75])
    assert failed["failure"] == "referee_prompt_too_long"


def test_verdicts_without_grades_have_no_pay(tmp_path):
    old = {name: value for name, value in made.verdict().items() if not name.endswith("_grade")}
    (claim,) = claims_of(chosen(read(tmp_path, [[made.row(verdicts=(old,))]])))
    assert (claim["letters"], claim["grades"], claim["pay"]) == (["A", "C"], [None, None], None)


@pytest.mark.parametrize("verdicts", ["{", '{"a": 1}', "[1]", '[{"judge": "pass"}]', "[" * 9999, '"x"'])
def test_verdicts_of_another_kind_are_shown_as_they_are(tmp_path, verdicts):
    (group,) = chosen(read(tmp_path, [[made.row() | {"verdicts": verdicts}]])).groups
    assert group["rollouts"][0]["claims"] == []
    assert group["rollouts"][0]["more"]["verdicts"] == text.clean(verdicts, 2000)


@pytest.mark.parametrize("box", [None, [1, 2], ["a"] * 4, [float("nan")] * 4, {"x": 1}])
def test_box_that_is_none_leaves_the_claim_without_a_picture(tmp_path, box):
    (claim,) = claims_of(chosen(read(tmp_path, [[made.row(verdicts=(made.verdict(box=box),))]])))
    assert claim["box"] is None


def test_further_columns_are_shown(tmp_path):
    (group,) = chosen(read(tmp_path, [[made.row(judge_text="clear", empty="")]])).groups
    assert group["rollouts"][0]["more"] == {"judge_text": "clear"}


def test_claimed_frame_comes_with_its_crop(tmp_path):
    rows = [made.row(verdicts=(made.verdict(),))]
    run = read(tmp_path, [rows], media={0: [made.frame(), made.frame(time_s=3.0)]}, config=made.MEDIA)
    found = chosen(run)
    (claim,) = claims_of(found)
    jpeg = base64.b64decode(found.media[claim["frame"]])
    assert jpeg == run.frames(0)[0]["jpeg"]
    assert claim["size_px"] == [80, 40]
    assert claim["crop_px"] == [20, 20, 40, 30]  # of 80 x 40: .25..5 and .5..75


def test_group_without_claims_shows_one_frame(tmp_path):
    (group,) = chosen(read(tmp_path, [[made.row()]], media={0: [made.frame()]}, config=made.MEDIA)).groups
    assert group["frame"] == 0


def test_without_log_media_no_frame_is_read_even_if_there_are_some(tmp_path):
    found = chosen(read(tmp_path, [[made.row(verdicts=(made.verdict(),))]], media={0: [made.frame()]}))
    assert found.media == []
    assert "frame" not in claims_of(found)[0]


def test_frames_that_are_no_jpeg_are_left_out(tmp_path):
    for number, bad in enumerate(({"jpeg": b"<svg onload=alert(1)>"}, {"jpeg": None}, {"height_px": 0})):
        media = {0: [made.frame() | bad]}
        found = chosen(read(tmp_path, [[made.row()]], name=str(number), media=media, config=made.MEDIA))
        assert found.media == []


def test_frames_go_first_to_the_best_worst_and_invalid_groups_until_the_room_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(groups, "PICTURED", 1)
    rows = [made.row(0, f"e{p}", reward=float(p), valid=p != 2, completion="") for p in range(5)]
    run = read(tmp_path, [rows], media={0: [made.frame(f"e{p}") for p in range(5)]}, config=made.MEDIA)
    one_frame = 4 * len(run.frames(0)[0]["jpeg"]) // 3 + 8
    all_words = sum(len(text.embed(group)) + 1 for group in groups.of_rows(rows, run, 0))
    room = all_words + 3 * one_frame
    assert 2 * all_words < room  # words take half of the room at most
    found = chosen(run, bytes=room)
    assert {group["id"] for group in found.groups if "frame" in group} == {"e0", "e2", "e4"}
    assert found.left_out == ["run: 2 groups are shown without their frames, which did not fit"]


def test_steps_are_read_from_both_ends_then_failures_then_between():
    metrics = [{"step": float(step), "invalid/total": {3: 1.0, 5: 2.0}.get(step)} for step in range(9)]
    assert list(groups.reading_order(range(9), metrics)) == [8, 0, 5, 3, 4, 2, 7, 1, 6]


def test_every_step_is_read_once():
    for count in range(20):
        assert sorted(groups.reading_order(range(count), [])) == list(range(count))


def test_number_of_rollouts_is_bounded_and_the_report_says_what_is_missing(tmp_path):
    steps = [[made.row(step, "e0", g) for g in range(4)] for step in range(9)]
    found = chosen(read(tmp_path, steps), rollouts=12)
    assert [group["step"] for group in found.groups] == [8, 4, 0]
    assert found.left_out == ["run: rollouts of 3 of 9 steps are shown, spread evenly"]


def test_size_is_bounded(tmp_path):
    steps = [[made.row(step, "e0", g, completion="<" * 2000) for g in range(4)] for step in range(9)]
    found = chosen(read(tmp_path, steps), bytes=150_000)
    assert 50_000 < len(text.embed(found.groups)) <= 150_000


def test_runs_share_the_room(tmp_path):
    steps = [[made.row(step, "e0", g) for g in range(2)] for step in range(5)]
    found = chosen(read(tmp_path, steps, name="a"), read(tmp_path, steps, name="b"), rollouts=8)
    assert [group["run"] for group in found.groups] == [0, 0, 1, 1]


def test_steps_can_be_chosen(tmp_path):
    steps = [[made.row(step)] for step in range(9)]
    found = chosen(read(tmp_path, steps), first_step=2, last_step=4)
    assert [group["step"] for group in found.groups] == [4, 3, 2]
    assert found.left_out == []


def test_numbers_that_json_lacks_are_absent(tmp_path):
    (group,) = chosen(read(tmp_path, [[made.row(reward=float("nan"), advantage=float("inf"))]])).groups
    json.loads(text.embed(group))
    assert (group["rollouts"][0]["reward"], group["rollouts"][0]["advantage"]) == (None, None)
