"""Before and after: the evaluations of a run, example by example and as intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vlrl.reporting import runs, text
from vlrl.reporting.runs import Run

MAX_EXAMPLES = 2000
"""Drawn as pairs; the intervals are over all."""
MAX_METRICS = 20

Part = dict[str, Any]


def of_run(run: Run) -> list[Part]:
    """For each mode (greedy, sampled): the table of intervals and the pairs of each metric. Empty before the first
    evaluation is there."""
    return [_mode(run, mode) for mode in run.evaluations["before"] if isinstance(mode, str)][:4]


def by_task(run: Run) -> list[Part]:
    """Rows of results.json's by_task: task, examples, and means before and after by metric."""
    tasks = runs.group(run.evaluations["results"], "by_task")
    before, after = runs.group(tasks, "before"), runs.group(tasks, "after")
    return [
        {
            "task": text.clean(task, 40),
            "examples": runs.number(runs.group(before, task).get("examples")),
            "means": {
                text.clean(name, 60): [
                    runs.number(runs.group(before, task)[name]),
                    runs.number(_get(after, task, name)),
                ]
                for name in runs.group(before, task)
                if name != "examples"
            },
        }
        for task in before
    ]


def _mode(run: Run, mode: str) -> Part:
    before = runs.group(run.evaluations["before"], mode)
    after = runs.group(run.evaluations["after"], mode)
    results = run.evaluations["results"]
    intervals = results if mode == "greedy" else runs.group(results, mode)
    rows, pairs = [], {}
    for name in list(before)[:MAX_METRICS]:
        first, last = _column(before.get(name)), _column(after.get(name))
        row = {part: _interval(intervals, part, name) for part in ("before", "after", "paired_difference")}
        row["before"] = row["before"] or _mean(first)  # no results yet: the mean, without an interval
        rows.append({"metric": text.clean(name, 60), **row})
        if last and len(first) == len(last):
            both = zip(first[:MAX_EXAMPLES], last[:MAX_EXAMPLES], strict=True)
            pairs[text.clean(name, 60)] = [
                [i, a, b] for i, (a, b) in enumerate(both) if a is not None and b is not None
            ]
    return {"mode": text.clean(mode, 40), "examples": _longest(before), "rows": rows, "pairs": pairs}


def _interval(results: Mapping[str, Any], part: str, name: str) -> list[float | None] | None:
    """Mean, low and high end."""
    found = runs.group(runs.group(results, part), name)
    return [runs.number(found.get(end)) for end in ("mean", "low", "high")] if "mean" in found else None


def _mean(values: Sequence[float | None]) -> list[float | None] | None:
    known = [value for value in values if value is not None]
    return [runs.number(float(np.mean(known))), None, None] if known else None


def _column(values: Any) -> list[float | None]:
    return [runs.number(value, 4) for value in values] if isinstance(values, list) else []


def _longest(table: Mapping[str, Any]) -> int:
    return max((len(column) for column in table.values() if isinstance(column, list)), default=0)


def _get(table: Mapping[str, Any], task: str, name: str) -> Any:
    return runs.group(table, task).get(name)
