"""Several runs beside each other: where they ended and which settings differ."""

import fnmatch
from collections.abc import Sequence
from typing import Any

from vlrl.reporting import curves, runs, text
from vlrl.reporting.runs import Run

FIGURES = (
    *("reward", "rewards/*/mean", "reward_std", "frac_reward_zero_std", "kl", "entropy", "completions/mean_length"),
    *("completions/clipped_ratio", "claims/per_rollout", "referee/*", "judge/*", "invalid/total", "step_time"),
)
"""Names and patterns of what is told of every run, where it has it."""


def figures(all_runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row a metric: its mean over the last tenth of the steps of each run."""
    names = list(dict.fromkeys(name for run in all_runs for line in run.metrics[-1:] for name in line))
    chosen = dict.fromkeys(name for pattern in FIGURES for name in fnmatch.filter(names, pattern))
    rows = [
        {"name": text.clean(name, 80), "values": [runs.number(curves.last(run, name), 4) for run in all_runs]}
        for name in chosen
    ]
    return [row for row in rows if any(value is not None for value in row["values"])]


def settings(all_runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row for each setting that is not equal in all runs, of a single run for every setting."""
    tables = [dict(runs.settings(run.config)) for run in all_runs]
    names = list(dict.fromkeys(name for table in tables for name in table))
    rows = []
    for name in names:
        values = [table.get(name, "(absent)") for table in tables]
        if len(all_runs) == 1 or any(value != values[0] for value in values):
            pairs = zip(values, all_runs, strict=True)
            shown = [runs.setting(value, run.log_media) for value, run in pairs]
            rows.append({"name": text.clean(name, 80), "values": shown})
    return rows
