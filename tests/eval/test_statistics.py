"""Intervals and ranks by hand or by the normal approximation."""

import numpy as np
import pytest

from vlrl.eval import statistics


def test_interval_of_many_values_matches_the_normal_approximation():
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    interval = statistics.bootstrap_mean(values, 4000, seed=0)
    error = values.std() / np.sqrt(400)
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert interval.high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)


def test_equal_values_have_an_interval_without_width():
    assert statistics.bootstrap_mean(np.full(7, 0.25), 50, seed=0) == statistics.Interval(0.25, 0.25, 0.25)


def test_missing_values_are_left_out():
    with_gaps = np.array([1.0, np.nan, 3.0, np.nan, 8.0])
    assert statistics.bootstrap_mean(with_gaps, 250, seed=3) == statistics.bootstrap_mean(
        np.array([1.0, 3.0, 8.0]), 250, seed=3
    )


def test_nothing_to_average_is_not_a_number():
    for values in (np.array([]), np.array([np.nan, np.nan])):
        interval = statistics.bootstrap_mean(values, 100, seed=0)
        assert np.isnan([interval.mean, interval.low, interval.high]).all()


def test_interval_is_fixed_by_the_seed():
    values = np.arange(20.0)
    assert statistics.bootstrap_mean(values, 130, seed=5) == statistics.bootstrap_mean(values, 130, seed=5)
    assert statistics.bootstrap_mean(values, 130, seed=5) != statistics.bootstrap_mean(values, 130, seed=6)


def test_difference_is_taken_example_by_example():
    # Examples spread widely, but each rises by exactly 1: pairing leaves no spread.
    before = np.array([0.0, 50.0, 100.0, np.nan, 7.0])
    after = np.array([1.0, 51.0, 101.0, 5.0, np.nan])
    assert statistics.paired_difference(before, after, 200, seed=0) == statistics.Interval(1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 1000], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        # Rank differences 1, 1, 0, 1, 1: 1 - 6 * 4 / (5 * 24)
        ([1, 2, 3, 4, 5], [2, 1, 3, 5, 4], 0.8),
        # Ranks 1.5, 1.5, 3 against 1, 2, 3: covariance 1.5, norms sqrt(1.5) and sqrt(2).
        ([1, 1, 2], [1, 2, 3], 1.5 / np.sqrt(3)),
        ([1, 2, np.nan, 3], [1, 2, -5, 3], 1.0),
    ],
)
def test_rank_correlation(x, y, expected):
    assert statistics.spearman(np.array(x, float), np.array(y, float)) == pytest.approx(expected)


def test_rank_correlation_needs_spread():
    assert np.isnan(statistics.spearman(np.ones(4), np.arange(4.0)))
    assert np.isnan(statistics.spearman(np.array([]), np.array([])))
