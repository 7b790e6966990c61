"""Metrics of one completion by hand."""

import dataclasses
import math

import numpy as np
import pytest

from vlrl.eval import metrics
from vlrl.types import Claim, Example, Parsed, Score, TimedBox

LEFT, RIGHT, HALF = (0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 1.0, 1.0), (0.0, 0.0, 0.25, 1.0)
TRACKS = {
    "red circle": tuple(TimedBox(i / 10, LEFT) for i in range(21)),
    "blue square": tuple(TimedBox(i / 10, RIGHT) for i in range(21)),
    "green star": tuple(TimedBox(i / 10, HALF) for i in range(21)),
}


def example(**kwargs):
    fields = {"subjects": ("red circle", "blue square"), "tracks": TRACKS} | kwargs
    return Example(example_id="e", video_path="v.mp4", task="mcq", question="q", reference="r", **fields)


def completion(*claims, **kwargs):
    fields = {"rationale": "x", "answer": "B", "claims": claims, "num_malformed_claims": 0, "option": "B"}
    return Parsed(**(fields | {"span_s": None, "boxes": ()} | kwargs))


PAID = Score(1.0)


def evaluate(asked, parsed, reward=PAID):
    return metrics.evaluate_completion(asked, parsed, reward)


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (Claim("red circle", LEFT, 1.0), 1.0),
        (Claim("Red  Circle", HALF, 1.04), 0.5),
        (Claim("red circle", RIGHT, 1.0), 0.0),
        (Claim("blue square", RIGHT, 1.0), 1.0),
        (Claim("red circle", LEFT, 2.5), 1.0),
        # Not visible any more, an object beside the question, one that does not exist.
        (Claim("red circle", LEFT, 2.6), 0.0),
        (Claim("green star", HALF, 1.0), 0.0),
        (Claim("yellow circle", LEFT, 1.0), 0.0),
    ],
)
def test_claim_counts_for_the_object_it_names_at_its_time(claim, expected):
    assert metrics.claim_iou(example(), claim) == expected


def test_visual_iou_is_the_mean_over_all_claims():
    claims = (Claim("red circle", LEFT, 1.0), Claim("red circle", HALF, 0.5), Claim("green star", HALF, 1.0))
    assert evaluate(example(), completion(*claims)).viou == pytest.approx(0.5)


def test_no_claims_count_zero_not_missing():
    row = evaluate(example(answer_option="B"), completion())
    assert (row.viou, row.viou_any_name, row.parse_rate) == (0.0, 0.0, 0.0)


def test_wrong_name_keeps_its_box_only_where_names_are_ignored():
    row = evaluate(example(), completion(Claim("blue square", LEFT, 1.0)))
    assert (row.viou, row.viou_any_name) == (0.0, 1.0)


def test_subject_without_track_counts_zero():
    asked = example(tracks={"red circle": ()})
    assert evaluate(asked, completion(Claim("red circle", LEFT, 1.0))).viou == 0.0


def test_what_accuracy_exists_for_multiple_choice_alone():
    assert evaluate(example(answer_option="B"), completion()).what_acc == 1.0
    assert evaluate(example(answer_option="C"), completion()).what_acc == 0.0
    assert math.isnan(evaluate(example(answer_span_s=(0.0, 1.0)), completion()).what_acc)


def test_temporal_iou_exists_for_spans_alone():
    assert math.isnan(evaluate(example(answer_option="B"), completion()).tiou)
    assert evaluate(example(answer_span_s=(2.0, 8.0)), completion(span_s=(4.0, 10.0))).tiou == 0.5
    assert evaluate(example(answer_span_s=(2.0, 8.0)), completion()).tiou == 0.0


@pytest.mark.parametrize(
    ("asked", "said", "expected"),
    [
        ({"answer_option": "A"}, {}, 1.0),
        ({"answer_option": "A"}, {"option": None}, 0.0),
        ({"answer_span_s": (0.0, 1.0)}, {}, 0.0),
        ({"answer_span_s": (0.0, 1.0)}, {"span_s": (5.0, 6.0)}, 1.0),
        ({"answer_boxes": (TimedBox(0.0, LEFT),)}, {"boxes": (RIGHT,)}, 1.0),
        ({"answer_span_s": (0.0, 1.0), "answer_boxes": (TimedBox(0.0, LEFT),)}, {"span_s": (5.0, 6.0)}, 0.0),
        ({}, {}, 1.0),
        ({}, {"answer": None}, 0.0),
        ({"answer_option": "A"}, {"claims": ()}, 0.0),
    ],
)
def test_completion_parses_when_it_has_every_asked_kind_and_a_claim(asked, said, expected):
    parsed = completion(Claim("red circle", LEFT, 1.0), **said)
    assert evaluate(example(**asked), parsed).parse_rate == expected


def test_invalid_reward_is_missing():
    assert evaluate(example(), completion(), Score(2.5)).reward == 2.5
    assert math.isnan(evaluate(example(), completion(), Score(0.0, valid=False, reason="decode")).reward)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", 3.0), ("Score: 3", 3.0), ("2/3", 2.0), ("I give 2 out of 3.", 2.0), ("3\n3", 3.0), ("0", 0.0)],
)
def test_score_of_a_judge_is_read_from_its_sentence(text, expected):
    assert metrics.judge_score(text, highest=3) == expected


@pytest.mark.parametrize("text", ["", "good", "7", "2.5", "-1", "2 or 3", "9" * 5000])
def test_unreadable_score_is_missing_and_counted(text):
    score = metrics.judge_score(text, highest=3)
    assert math.isnan(score)
    assert metrics.unread_rate(np.array([3.0, score, 0.0, 1.0])) == 0.25


def test_rows_become_columns():
    row = evaluate(example(answer_option="B"), completion(Claim("red circle", LEFT, 1.0)))
    table = metrics.columns([row, metrics.NOT_EVALUATED])
    assert list(table) == [field.name for field in dataclasses.fields(metrics.Evaluation)]
    np.testing.assert_array_equal(table["viou"], [1.0, np.nan])
