"""Intervals and rank correlation over examples."""

import dataclasses

import numpy as np
from jaxtyping import Float

_RESAMPLES_AT_ONCE = 100


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean with its 95 % percentile bootstrap interval; all NaN where there was nothing to average."""

    mean: float
    low: float
    high: float


def bootstrap_mean(values: Float[np.ndarray, " B"], samples: int, seed: int) -> Interval:
    """Mean over examples and its interval from `samples` resamplings of them; NaN entries are left out."""
    values = np.asarray(values, np.float64)
    values = values[~np.isnan(values)]
    if values.size == 0:
        return Interval(np.nan, np.nan, np.nan)
    rng = np.random.default_rng(seed)
    means = []
    for start in range(0, samples, _RESAMPLES_AT_ONCE):
        rows = min(_RESAMPLES_AT_ONCE, samples - start)
        means.append(values[rng.integers(0, values.size, (rows, values.size))].mean(axis=1))
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return Interval(float(values.mean()), float(low), float(high))


def paired_difference(
    before: Float[np.ndarray, " B"], after: Float[np.ndarray, " B"], samples: int, seed: int
) -> Interval:
    """Mean of after - before over the examples that have both, with its interval. Row i of both is the same example."""
    return bootstrap_mean(np.asarray(after, np.float64) - np.asarray(before, np.float64), samples, seed)


def spearman(x: Float[np.ndarray, " B"], y: Float[np.ndarray, " B"]) -> float:
    """Rank correlation, ties at their mean rank; pairs with a NaN are left out; NaN where a side has no spread."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    both = ~(np.isnan(x) | np.isnan(y))
    if not both.any():
        return float("nan")
    x_rank, y_rank = _ranks(x[both]), _ranks(y[both])
    x_rank, y_rank = x_rank - x_rank.mean(), y_rank - y_rank.mean()
    scale = np.sqrt(np.sum(x_rank**2) * np.sum(y_rank**2))
    return float(np.sum(x_rank * y_rank) / scale) if scale > 0 else float("nan")


def _ranks(values: Float[np.ndarray, " B"]) -> Float[np.ndarray, " B"]:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[group]
