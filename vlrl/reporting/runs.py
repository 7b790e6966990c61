"""A run directory as the report reads it: finished, running or cut off; what is damaged costs itself and a note."""

import dataclasses
import hashlib
import json
import math
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow
import pyarrow.parquet

from vlrl.reporting import text

MAX_NOTES = 20
_STEP = re.compile(r"step_(\d{6,12})\.parquet")


@dataclasses.dataclass(frozen=True)
class Run:
    directory: pathlib.Path
    name: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, float | None]]
    """One mapping a step with "step" in it, in order of steps."""
    steps: tuple[int, ...]
    """Those with a table of rollouts."""
    evaluations: Mapping[str, Any]
    """before and after: mode, metric, one value an example; results: as `eval.runner.comparison`."""
    notes: list[str]

    @property
    def log_media(self) -> bool:
        """Whether frames and paths may be shown."""
        return group(self.config, "log").get("log_media") is True

    @property
    def total_steps(self) -> int:
        steps = self.config.get("steps")
        return steps if isinstance(steps, int) else len(self.metrics)

    def rows(self, step: int) -> list[dict[str, Any]]:
        """The completions of a step; none where the table is damaged or gone."""
        return self._table(f"rollouts/step_{step:06d}.parquet")

    def frames(self, step: int) -> list[dict[str, Any]]:
        """Frames of a step (`step_media.rows`); none without log.log_media, whatever lies there."""
        name = f"rollouts/media/step_{step:06d}.parquet"
        return self._table(name) if self.log_media and (self.directory / name).is_file() else []

    def note(self, sentence: str) -> None:
        if len(self.notes) < MAX_NOTES and sentence not in self.notes:
            self.notes.append(sentence)

    def _table(self, name: str) -> list[dict[str, Any]]:
        try:
            return pyarrow.parquet.read_table(self.directory / name).to_pylist()
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            self.note(f"{name} cannot be read ({type(error).__name__}) and is left out")
            return []


def read(directory: pathlib.Path) -> Run:
    """Raises ValueError where the directory holds no run."""
    if not (directory / "config.json").is_file():
        raise ValueError(f"{directory}: no run there (config.json is missing); name the directory of a run")
    notes: list[str] = []
    tables = (directory / "rollouts").glob("*.parquet")
    run = Run(
        directory=directory,
        name=text.clean(directory.resolve().name, 80),
        config=_json(directory / "config.json", notes),
        metrics=sorted(_metrics(directory / "metrics.jsonl", notes), key=lambda line: line["step"] or 0.0),
        steps=tuple(sorted(int(match[1]) for path in tables if (match := _STEP.fullmatch(path.name)))),
        evaluations={name: _json(directory / f"{name}.json", notes) for name in ("before", "after", "results")},
        notes=notes,
    )
    if not run.metrics:
        run.note("no step is finished yet")
    return run


def group(values: Any, name: str) -> Mapping[str, Any]:
    """The mapping `name` of a mapping, an empty one where there is none: files of a run may be of another version."""
    inner = values.get(name) if isinstance(values, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def number(value: Any, digits: int = 5) -> float | None:
    """The value with so many significant digits; None for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    except OverflowError:  # JSON's whole numbers have no limit
        return None


def setting(value: Any, log_media: bool) -> str:
    """A value of the config as text; of what may be a path only a mark, unless media are shown."""
    shown = value if isinstance(value, str) else json.dumps(value)
    if not log_media and re.search(r"[/\\]", shown):
        return f"(not shown, {hashlib.sha256(shown.encode('utf-8', 'replace')).hexdigest()[:6]})"
    return text.clean(shown, 200)


def settings(config: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of a nested config with its dotted name."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from settings(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


def _json(file: pathlib.Path, notes: list[str]) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        notes.append(f"{file.name} cannot be read ({type(error).__name__}) and is left out")
        return {}
    return value if isinstance(value, dict) else {}


def _metrics(file: pathlib.Path, notes: list[str]) -> list[dict[str, float | None]]:
    """`metric_log.read` refuses a damaged line, as a run must; here it costs its step. Lines of one step are joined."""
    lines = file.read_bytes().split(b"\n")[:-1] if file.is_file() else []  # what follows the last end is half a line
    by_step: dict[int, dict[str, float | None]] = {}
    for at, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            step = values["step"]
            if type(step) is not int:
                raise ValueError(f"step {step!r}")
        except (ValueError, KeyError, TypeError, RecursionError):
            if len(notes) < MAX_NOTES:
                notes.append(f"metrics.jsonl: line {at} is damaged and left out")
            continue
        by_step.setdefault(step, {}).update({name: number(value, 7) for name, value in values.items()})
        by_step[step]["step"] = float(step)
    return list(by_step.values())
