"""The files of a run: resolved config, manifest, checkpoints, evaluations, results.

config.json  run_manifest.json  metrics.jsonl  rollouts/  checkpoints/  before.json  after.json  results.json
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from vlrl import config as configs
from vlrl import timing
from vlrl.config import Config
from vlrl.io import checkpoint, run_manifest

Table = dict[str, dict[str, list[float]]]


@runtime_checkable
class Resumable(Protocol):
    """The data loader, as far as checkpoints are concerned."""

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...


def open_run(workdir: pathlib.Path, cfg: Config, resume: bool) -> "RunDirectory":
    """Creates the directory, or checks that a resumed run is the run that was begun there.

    Raises ValueError where a new run would write over another, and listing every difference of a resumed one.
    """
    settings = dataclasses.asdict(cfg)
    manifest = run_manifest.build(settings, [cfg.data.train, cfg.data.eval], [cfg.policy.path, cfg.referee.path])
    directory = RunDirectory(workdir, manifest, cfg.checkpoint.keep)
    known = workdir / "run_manifest.json"
    if resume:
        directory.check_same()
    elif known.exists():
        raise ValueError(f"{workdir}: holds another run; add --resume to go on with it, or choose another --workdir")
    workdir.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory.write_json("config.json", settings)
    directory.write_json("run_manifest.json", manifest)
    return directory


def read_config(workdir: pathlib.Path) -> Config:
    """The config of a run, from its JSON: data, never code."""
    file = workdir / "config.json"
    if not file.is_file():
        raise ValueError(f"--workdir {workdir}: no run there (config.json is missing); name a run's directory")
    return configs.from_dict(json.loads(file.read_text()))


def read_state(workdir: pathlib.Path, template: Any) -> Any:
    """The newest intact checkpoint of a run, for a state of this shape."""
    found = checkpoint.restore_latest(workdir / "checkpoints", template)
    if found is None:
        raise ValueError(f"--workdir {workdir}: no checkpoint yet; let the run reach checkpoint.every steps")
    return found[1]


class RunDirectory:
    def __init__(self, path: pathlib.Path, manifest: dict[str, Any], keep: int):
        self.path = path
        self._manifest = manifest
        self._keep = keep
        self._earlier_s = 0.0

    def check_same(self) -> None:
        """Raises ValueError with the differences to the run begun here, warns of other versions."""
        known = self.path / "run_manifest.json"
        if not known.exists():
            raise ValueError(f"{self.path}: no run to resume here; leave --resume out to begin one")
        old = json.loads(known.read_text())
        if different := run_manifest.compare(old, self._manifest):
            raise ValueError(
                f"{self.path}: not the run that was begun here; restore these or begin another run:\n  "
                + "\n  ".join(different)
            )
        for note in run_manifest.notes(old, self._manifest):
            print(f"warning: {note}; results may differ in the last bits", file=sys.stderr)

    def save(self, state: Any, batches: Resumable, num_tokens: int) -> None:
        """A checkpoint of the finished step: everything that the next step depends on, in one directory.

        Nothing is written where this step is saved already."""
        step = int(state.step)
        if step in checkpoint.steps(self.path / "checkpoints"):
            return
        extra = {"loader": batches.get_state(), "num_tokens": num_tokens, "wall_s": self.wall_s()}
        checkpoint.save(self.path / "checkpoints", step, state, extra, self._keep)

    @contextlib.contextmanager
    def saved_on_error(self, state: Any, batches: Resumable, num_tokens: int) -> Iterator[None]:
        """Bad data or numbers found within the block cost no finished step."""
        try:
            yield
        except ValueError:
            self.save(state, batches, num_tokens)
            raise

    def restore(self, state: Any, batches: Resumable) -> tuple[Any, int]:
        """State and token count of the newest intact checkpoint; the given state where there is none yet."""
        found = checkpoint.restore_latest(self.path / "checkpoints", state)
        if found is None:
            return state, 0
        _, state, extra = found
        batches.set_state(extra["loader"])
        self._earlier_s = extra["wall_s"]
        return state, extra["num_tokens"]

    def cached(self, name: str, make: Callable[[], Table | None]) -> Table | None:
        """The evaluation `name`, read from its file where an earlier process finished it."""
        file = self.path / f"{name}.json"
        if file.exists():
            stored = json.loads(file.read_text())
            return {
                mode: {metric: [math.nan if v is None else v for v in column] for metric, column in table.items()}
                for mode, table in stored.items()
            }
        table = make()
        if table is not None:
            self.write_json(file.name, table)
        return table

    def wall_s(self) -> float:
        """Seconds of this run, over all its processes."""
        return self._earlier_s + time.monotonic() - timing.STARTED_S

    def write_json(self, name: str, value: Any) -> None:
        """Replaces the file in one rename; JSON has no NaN, it becomes null."""
        tmp = self.path / f".{name}.tmp"
        tmp.write_text(json.dumps(finite(value), indent=2, allow_nan=False) + "\n")
        os.replace(tmp, self.path / name)


def finite(value: Any) -> Any:
    """The value with NaN and infinity as None, as JSON wants it."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
