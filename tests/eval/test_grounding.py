"""Intervals and options of answers, and their means, by hand."""

import numpy as np
import pytest

from vlrl.eval import choice, grounding


@pytest.mark.parametrize(
    ("true", "answered", "expected"),
    # Case studies of the SER paper; their intervals are rounded themselves.
    [
        ((0.0, 16.91), (0.0, 17.3), 0.978),
        ((0.0, 16.91), (0.0, 65.0), 0.260),
        ((4.0, 10.2), (4.0, 10.0), 0.968),
        ((4.0, 10.2), (0.0, 10.0), 0.588),
    ],
)
def test_overlap_of_the_case_studies(true, answered, expected):
    assert grounding.iou(answered, true) == pytest.approx(expected, abs=6e-4)


def test_summary_by_hand_and_the_edge_counts_except_when_strict():
    ious = np.array([0.3, 0.5, 0.8, 0.0, np.nan])
    assert grounding.summary(ious) == pytest.approx({"mIoU": 0.4, "R@0.3": 0.75, "R@0.5": 0.5, "R@0.7": 0.25})
    assert grounding.summary(ious, strict=True) == pytest.approx(
        {"mIoU": 0.4, "R@0.3": 0.5, "R@0.5": 0.25, "R@0.7": 0.25}
    )


def test_nothing_to_average_is_no_zero():
    assert np.isnan(list(grounding.summary(np.array([np.nan])).values())).all()


@pytest.mark.parametrize(
    ("text", "ours", "published"),
    [
        ("<answer>4.5 to 10</answer>", (4.5, 10), (4.5, 10)),
        ("<think>1 to 2</think><answer>4 and 10</answer>", (4, 10), (4, 10)),
        ("<answer>1:23 to 1:30</answer>", (83, 90), None),
        ("<answer>12.5s to 20s</answer>", (12.5, 20), None),
        ("The event happens in 4.5 - 10.2 seconds", (4.5, 10.2), None),
        ("<answer>From <t>2</t>s to <t>5</t>s</answer>", (2, 5), None),
        ("<answer>10 to 4</answer>", None, (10, 4)),
        ("<answer>soon</answer>", None, None),
    ],
)
def test_interval_that_a_response_states(text, ours, published):
    assert grounding.span(text) == ours
    found = grounding.span(text, official=True)
    assert found == published or (published is None and found not in (ours, published))


def test_clock_times_are_misread_by_the_published_rule():
    assert grounding.span("<answer>1:23 to 1:30</answer>", official=True) == (23, 1)


def test_interval_that_ends_before_it_starts_overlaps_nothing():
    assert grounding.iou((10.0, 4.0), (4.0, 10.0)) == 0.0
    assert grounding.iou(None, (4.0, 10.0)) == 0.0


@pytest.mark.parametrize(
    ("text", "ours", "published"),
    [
        ("B", "B", "B"),
        ("<think>It is A.</think><answer>(B)</answer>", "B", "A"),
        ("The best answer is B", "B", "B"),
        ("An apple, so B", "B", "A"),
        ("j", "J", None),
        ("", None, None),
    ],
)
def test_option_that_a_response_settles_on(text, ours, published):
    assert choice.option(text) == ours
    assert choice.option(text, official=True) == published


def test_accuracy_counts_a_missing_option_as_wrong():
    assert choice.accuracy(["A", None, "c", "D"], ["A", "B", "C", "A"]) == 0.5
    assert np.isnan(choice.accuracy([], []))
