"""Metrics of runs as curves: which belong on one chart, and no more points than a screen has room for."""

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence

import numpy as np

from vlrl.reporting import runs, text
from vlrl.reporting.runs import Run

MAX_POINTS = 500
MAX_METRICS = 200
"""A run has some fifty; a damaged file may name any number."""

CHARTS: Mapping[str, tuple[str, ...]] = {
    "Reward": ("reward",),
    "Reward components": ("rewards/*/mean",),
    "Spread of the reward in a group": ("reward_std",),
    "Groups without spread": ("frac_reward_zero_std",),
    "KL to the reference": ("kl",),
    "Entropy": ("entropy",),
    "Tokens of a completion": ("completions/*_length",),
    "Cut off, parsed": ("completions/clipped_ratio", "claims/parse_rate"),
    "Claims of a completion": ("claims/per_rollout", "claims/malformed_per_rollout"),
    "Area of claimed boxes": ("claims/box_area",),
    "Grades of the referee": ("referee/relevance", "referee/localization", "referee/omega"),
    "Judge": ("judge/*",),
    "Invalid, by reason": ("invalid/*",),
    "Loss": ("loss",),
    "Gradient norm": ("grad_norm",),
    "Learning rate": ("learning_rate",),
    "Clipped ratios": ("clip_ratio/*",),
    "Sampler against trainer": ("sampling/*",),
    "Skipped updates": ("skipped_updates",),
    "Seconds of a step": ("time/*", "step_time"),
    "Tokens per second": ("tokens_per_s/*",),
    "Use of the devices": ("mfu", "tflops_per_s"),
    "Other": ("*",),
}
"""Title and patterns of metric names; a metric is on the first chart that has it."""
_ABSENT_IS_0 = "invalid/"
"""Reasons are counted in the steps that have them."""


@dataclasses.dataclass(frozen=True)
class Series:
    label: str
    run: int
    steps: Sequence[float]
    mean: Sequence[float | None]
    """None where there is no finite value."""
    low: Sequence[float | None] = ()
    """Least and greatest value behind each point; empty where each point is one step."""
    high: Sequence[float | None] = ()


@dataclasses.dataclass(frozen=True)
class Chart:
    title: str
    series: tuple[Series, ...]


def charts(all_runs: Sequence[Run]) -> list[Chart]:
    """One run: a chart for each entry of CHARTS that has values. Several: one for each metric, a curve a run."""
    names = list(dict.fromkeys(name for run in all_runs for line in run.metrics for name in line))
    waiting = [name for name in names if name != "step"][:MAX_METRICS]
    found: list[Chart] = []
    for title, patterns in CHARTS.items():
        matched = [name for name in waiting if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
        waiting = [name for name in waiting if name not in matched]
        alone = len(all_runs) > 1 or title == "Other"
        for part in [[name] for name in matched] if alone else [matched]:
            series = [
                s for name in part for i, run in enumerate(all_runs) if (s := _series(run, i, name, len(all_runs)))
            ]
            if series:
                found.append(Chart(text.clean(_title(title, part, matched, alone), 120), tuple(series)))
    return found


def last(run: Run, name: str, share: float = 0.1) -> float | None:
    """Mean over the last tenth of the steps that have the metric, at least one."""
    values = [value for line in run.metrics if (value := line.get(name)) is not None]
    return float(np.mean(values[-max(1, round(share * len(values))) :])) if values else None


def thinned(steps: Sequence[float], values: Sequence[float | None], most: int) -> tuple[list, list, list, list]:
    """Steps, mean, least and greatest value of at most `most` stretches of equal length; as they are if they fit."""
    if len(steps) <= most:
        return list(steps), [runs.number(value) for value in values], [], []
    known = np.array([np.nan if value is None else value for value in values])
    result: tuple[list, list, list, list] = [], [], [], []
    for part in np.array_split(np.arange(len(steps)), most):
        finite = known[part][np.isfinite(known[part])]
        figures = (finite.mean(), finite.min(), finite.max()) if finite.size else (None, None, None)
        result[0].append(runs.number(float(np.mean([steps[i] for i in part])), 7))
        for column, figure in zip(result[1:], figures, strict=True):
            column.append(None if figure is None else runs.number(float(figure)))
    return result


def smoothed(values: Sequence[float | None], weight: float) -> list[float | None]:
    """Exponential mean without the bias of its start (Kingma and Ba 2015, section 3); None stays None."""
    total = share = 0.0
    result: list[float | None] = []
    for value in values:
        if value is None:
            result.append(None)
            continue
        total, share = weight * total + (1 - weight) * value, weight * share + (1 - weight)
        result.append(total / share)
    return result


def _series(run: Run, index: int, name: str, num_runs: int) -> Series | None:
    lines = [line for line in run.metrics if name in line or name.startswith(_ABSENT_IS_0)]
    values = [line.get(name, 0.0) for line in lines]
    if all(value is None for value in values) or not any(name in line for line in lines):
        return None
    label = run.name if num_runs > 1 else text.clean(name, 80)
    return Series(label, index, *thinned([line["step"] or 0.0 for line in lines], values, MAX_POINTS))


def _title(title: str, part: Sequence[str], matched: Sequence[str], alone: bool) -> str:
    if title == "Other":
        return part[0]
    return f"{title}: {part[0]}" if alone and len(matched) > 1 else title
