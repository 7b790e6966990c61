"""Boxed frames and crops, pixel by pixel."""

import numpy as np
import pytest

from vlrl.referees import views

GREY = 90


def numbered(height, width):
    """Every pixel different."""
    y, x = np.mgrid[:height, :width]
    return np.stack([y, x, (y + x) // 2], axis=-1).astype(np.uint8)


def test_line_runs_just_outside_the_box_black_outside_white():
    frame = np.full((40, 60, 3), GREY, np.uint8)
    drawn = views.boxed_frame(frame, (0.25, 0.25, 0.5, 0.75))  # x 15..30, y 10..30; two pixels of line
    expected = frame.copy()
    expected[8:32, 13:32] = 0
    expected[9:31, 14:31] = 255
    expected[10:30, 15:30] = GREY
    np.testing.assert_array_equal(drawn, expected)
    assert (frame == GREY).all()


def test_line_grows_with_the_frame():
    drawn = views.boxed_frame(np.full((560, 600, 3), GREY, np.uint8), (0.5, 0.5, 0.6, 0.6))  # x 300..360, y 280..336
    assert drawn[300, 288:302, 0].tolist() == [GREY] * 2 + [0] * 5 + [255] * 5 + [GREY] * 2


def test_box_at_the_edge_of_the_frame_keeps_its_content_and_the_lines_that_fit():
    frame = numbered(20, 20)
    np.testing.assert_array_equal(views.boxed_frame(frame, (0.0, 0.0, 1.0, 1.0)), frame)
    drawn = views.boxed_frame(frame, (0.5, 0.0, 1.0, 0.5))
    np.testing.assert_array_equal(drawn[:10, 10:], frame[:10, 10:])
    assert drawn[0, 8:10, 0].tolist() == [0, 255]
    assert drawn[10:12, 15, 0].tolist() == [255, 0]


@pytest.mark.parametrize("box", [(0.3, 0.3, 0.3001, 0.3001), (1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0)])
def test_box_smaller_than_a_pixel_shows_one(box):
    frame = numbered(20, 30)
    x, y = min(int(box[0] * 30 + 0.5), 29), min(int(box[1] * 20 + 0.5), 19)
    np.testing.assert_array_equal(views.crop(frame, box), frame[y : y + 1, x : x + 1])
    np.testing.assert_array_equal(views.boxed_frame(frame, box)[y, x], frame[y, x])


def test_crop_is_the_content_of_the_box():
    frame = numbered(40, 60)
    np.testing.assert_array_equal(views.crop(frame, (0.25, 0.25, 0.5, 0.75)), frame[10:30, 15:30])


def test_sliver_is_widened_on_both_sides_to_a_quarter_of_its_length():
    frame = numbered(40, 60)
    # 2 x 32 px: six columns are missing, three on each side.
    np.testing.assert_array_equal(views.crop(frame, (30 / 60, 0.1, 32 / 60, 0.9)), frame[4:36, 27:35])
    # 40 x 3 px: seven rows are missing, three above.
    np.testing.assert_array_equal(views.crop(frame, (0.0, 20 / 40, 40 / 60, 23 / 40)), frame[17:27, 0:40])


def test_sliver_at_the_edge_is_widened_inwards():
    frame = numbered(40, 60)
    np.testing.assert_array_equal(views.crop(frame, (59 / 60, 0.0, 1.0, 1.0)), frame[:, 50:60])
    np.testing.assert_array_equal(views.crop(frame, (0.0, 0.0, 1 / 60, 1.0)), frame[:, 0:10])


def test_sliver_of_a_narrow_frame_is_as_wide_as_the_frame():
    frame = numbered(100, 5)
    np.testing.assert_array_equal(views.crop(frame, (0.2, 0.0, 0.4, 1.0)), frame)
