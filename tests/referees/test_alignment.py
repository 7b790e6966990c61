"""Times to frames and their weight, by hand."""

import numpy as np
import pytest

from vlrl.referees import alignment

TIMES = np.array([0.0, 1.0, 2.5, 4.0])


@pytest.mark.parametrize(("distance_s", "weight"), [(0, 1.0), (1, 0.8825), (2, 0.6065), (4, 0.1353)])
def test_omega_falls_off_with_a_sigma_of_two_seconds(distance_s, weight):
    assert alignment.omega(3.0 + distance_s, 3.0, 2.0) == pytest.approx(weight, abs=5e-5)
    assert alignment.omega(3.0 - distance_s, 3.0, 2.0) == pytest.approx(weight, abs=5e-5)


@pytest.mark.parametrize(
    ("claimed_s", "frame"),
    [(0.0, 0), (0.9, 1), (1.6, 1), (1.9, 2), (4.0, 3), (0.5, 0), (1.75, 1), (-7.0, 0), (99.0, 3)],
)
def test_nearest_frame_is_the_closest_in_time_and_the_earliest_of_a_tie(claimed_s, frame):
    assert alignment.nearest_frame(TIMES, claimed_s) == frame


def test_time_outside_the_clip_is_worth_next_to_nothing():
    frame = alignment.nearest_frame(TIMES, 60.0)
    assert alignment.omega(60.0, float(TIMES[frame]), 2.0) < 1e-100
