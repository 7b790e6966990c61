"""Overlaps by hand."""

import pytest

from vlrl import geometry


def test_box_overlaps_itself_fully():
    assert geometry.iou((0.0, 0.0, 0.5, 0.5), (0.0, 0.0, 0.5, 0.5)) == 1.0


def test_iou_is_intersection_over_union():
    # 1/8 shared; 1/4 + 1/4 - 1/8 covered.
    assert geometry.iou((0.0, 0.0, 0.5, 0.5), (0.25, 0.0, 0.75, 0.5)) == pytest.approx(1 / 3)


def test_apart_touching_and_empty_boxes_overlap_nothing():
    assert geometry.iou((0.0, 0.0, 0.2, 0.2), (0.5, 0.5, 1.0, 1.0)) == 0.0
    assert geometry.iou((0.0, 0.0, 0.5, 0.5), (0.5, 0.0, 1.0, 0.5)) == 0.0
    assert geometry.iou((0.3, 0.3, 0.3, 0.3), (0.3, 0.3, 0.3, 0.3)) == 0.0


def test_area_is_the_share_of_the_frame():
    assert geometry.area((0.0, 0.0, 1.0, 1.0)) == 1.0
    assert geometry.area((0.25, 0.5, 0.75, 1.0)) == 0.25
    assert geometry.area((0.5, 0.5, 0.25, 1.0)) == 0.0


@pytest.mark.parametrize(
    ("answer_s", "expected"),
    [((0.0, 17.3), 0.978), ((0.0, 65.0), 0.260)],
)
def test_tiou_gives_the_values_of_the_papers_first_case_study(answer_s, expected):
    assert geometry.tiou((0.0, 16.91), answer_s) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(
    ("true_s", "answer_s", "expected"),
    [
        ((4.0, 10.2), (4.0, 10.0), 6 / 6.2),
        ((4.0, 10.2), (0.0, 10.0), 6 / 10.2),
        ((2.0, 8.0), (4.0, 10.0), 0.5),
        ((1.0, 2.0), (3.0, 4.0), 0.0),
        ((5.0, 5.0), (5.0, 5.0), 0.0),
        ((1.0, 9.0), (5.0, 5.0), 0.0),
    ],
)
def test_tiou_of_spans(true_s, answer_s, expected):
    assert geometry.tiou(true_s, answer_s) == pytest.approx(expected)
    assert geometry.tiou(answer_s, true_s) == pytest.approx(expected)
