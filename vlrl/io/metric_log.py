"""What a run says about itself: metrics.jsonl (the truth), TensorBoard, rollouts as parquet, a line on the screen."""

import io
import json
import math
import os
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import tensorboardX
import tqdm

_TABLE = re.compile(r"step_(\d{6,})\.parquet")


class MetricLog:
    """The open log of a run directory. Use as a context manager, or call `close`.

    Opening it at `first_step` makes the run directory that of a run which is about to do this step: lines and rollouts
    of this step and later ones, and a line cut by a crash, are removed, as the step will be done again.
    """

    def __init__(
        self,
        directory: str | pathlib.Path,
        tensorboard: bool,
        first_step: int = 0,
        total_steps: int = 0,
        shown: Sequence[str] = ("reward", "reward_std", "kl", "step_time"),
        screen: io.TextIOBase | None = None,
    ):
        """
        Args:
            directory: the run directory.
            tensorboard: also write event files, to directory/tensorboard.
            first_step: the step that is done next.
            total_steps: of the run, for the progress display.
            shown: metrics on the screen, those of them that a step has.
            screen: where progress goes (default: stderr): a bar on a terminal, otherwise one plain line a step.
        """
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._shown = tuple(shown)
        self._screen: Any = sys.stderr if screen is None else screen
        self._total = total_steps
        metrics = self.directory / "metrics.jsonl"
        _truncate(metrics, first_step)
        for folder in ("rollouts", "rollouts/media"):
            _remove_tables(self.directory / folder, first_step)
        self._file = metrics.open("a", encoding="utf-8")
        self._board = None
        if tensorboard:
            folder = str(self.directory / "tensorboard")
            # purge_step hides what an earlier process wrote for steps that are done again.
            self._board = tensorboardX.SummaryWriter(folder, purge_step=first_step, write_to_disk=True)
        self._bar = None
        if self._screen.isatty():
            self._bar = tqdm.tqdm(total=total_steps, initial=first_step, file=self._screen, dynamic_ncols=True)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """One line {"step": step, name: number, ...}, on disk before this returns.

        Values are numbers or scalar arrays. JSON has no NaN and no infinity: both become null in the file, and leave
        their point out in TensorBoard.
        """
        values = {name: _number(name, value) for name, value in metrics.items()}
        safe = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._file.write(json.dumps({"step": step, **safe}, allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        if self._board is not None:
            for name, value in safe.items():
                if value is not None:
                    self._board.add_scalar(name, value, step)
            self._board.flush()
        self._show(step, values)

    def write_rollouts(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Table rollouts/step_<step>.parquet, a column for every name that any row has (null where a row lacks it).

        Text is kept as the data it is, control characters included: whoever shows it must escape it.

        Raises:
            ValueError: values of a column are of different kinds.
        """
        _write_table(self.directory / "rollouts", step, rows)

    def write_media(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Table rollouts/media/step_<step>.parquet of the frames of `step_media.rows`: one file a step."""
        _write_table(self.directory / "rollouts" / "media", step, rows)

    def close(self) -> None:
        """Flushes and closes everything."""
        self._file.close()
        if self._board is not None:
            self._board.close()
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> "MetricLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _show(self, step: int, values: Mapping[str, float | int]) -> None:
        text = " ".join(f"{name}={values[name]:.4g}" for name in self._shown if name in values)
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(1)
        else:
            print(f"step {step + 1}/{self._total} {text}".rstrip(), file=self._screen, flush=True)


def read(directory: str | pathlib.Path) -> list[dict[str, Any]]:
    """Every complete line of metrics.jsonl, in order; a last line without its end is not one."""
    text = (pathlib.Path(directory) / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n")[:-1]]


def _truncate(metrics: pathlib.Path, first_step: int) -> None:
    """Keeps the lines of steps before `first_step`, byte for byte."""
    if not metrics.exists():
        return
    kept = []
    for number, line in enumerate(metrics.read_bytes().split(b"\n")[:-1], start=1):
        try:
            step = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{metrics}:{number}: no line of metrics ({error}); move the file away") from error
        if step < first_step:
            kept.append(line + b"\n")
    tmp = metrics.with_name(".metrics.tmp")
    tmp.write_bytes(b"".join(kept))
    tmp.replace(metrics)


def _write_table(folder: pathlib.Path, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    try:
        table = pyarrow.table({name: [_storable(row.get(name)) for row in rows] for name in names})
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise ValueError(f"{folder.name} of step {step}: a column mixes kinds of values: {error}; use one") from error
    folder.mkdir(parents=True, exist_ok=True)
    tmp = folder / f".step_{step:06d}.tmp"
    pyarrow.parquet.write_table(table, tmp)
    tmp.replace(folder / f"step_{step:06d}.parquet")


def _remove_tables(folder: pathlib.Path, first_step: int) -> None:
    for path in folder.glob("*") if folder.is_dir() else ():
        match = _TABLE.fullmatch(path.name)
        if path.suffix == ".tmp" or (match and int(match[1]) >= first_step):
            path.unlink()


def _number(name: str, value: Any) -> float | int:
    array = np.asarray(value)
    if array.size != 1 or not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise ValueError(f"metric {name}: {value!r} is no number; reduce it before logging")
    return array.item()


def _storable(value: Any) -> Any:
    """The value, with surrogates that are not Unicode text (they come from broken byte sequences) written out."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value
