"""Claimed times and the frames that were really sampled (SER section 3.1)."""

import math

import numpy as np
from jaxtyping import Float


def nearest_frame(times_s: Float[np.ndarray, " F"], claimed_s: float) -> int:
    """j = argmin |tau - t_j| over the true times of the sampled frames; the earliest of a tie."""
    return int(np.argmin(np.abs(np.asarray(times_s) - claimed_s)))


def omega(claimed_s: float, frame_s: float, sigma_s: float) -> float:
    """exp(-(tau - t_j)^2 / (2 sigma^2)), in (0, 1]: a time far outside the video is worth nothing."""
    return math.exp(-((claimed_s - frame_s) ** 2) / (2 * sigma_s**2))
