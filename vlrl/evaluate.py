"""Evaluates a run's newest checkpoint, or a base model, on held-out examples.

python -m vlrl.evaluate --workdir runs/tiny_ser --json results.json
python -m vlrl.evaluate --config configs/tiny_ser.py
"""

import contextlib
import dataclasses
import json
import pathlib
import sys
from typing import Any

import jax

from vlrl import build, command_line, config, stopping
from vlrl.eval import runner
from vlrl.io import run_directory
from vlrl.models import lora
from vlrl.rl import optimizer, update


def evaluate(cfg: config.Config, workdir: pathlib.Path | None, output: pathlib.Path | None) -> None:
    """Prints (and writes) every metric with its interval; the base model where there is no work directory."""
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)  # now: an evaluation may take hours
    parts = build.parts(cfg)
    key = jax.random.key(cfg.seed)
    state = update.init(lora.init(key, parts.base, cfg.lora), optimizer.make(cfg.opt, cfg.steps))
    if workdir is not None:
        state = run_directory.read_state(workdir, state)
    with contextlib.closing(parts.pool), stopping.on_signals() as stop:
        table = runner.run(parts, state.adapter, cfg, jax.random.fold_in(key, 2), stop.requested)
    if table is None:
        print("stopped; nothing written", flush=True)
        return
    result: dict[str, Any] = {
        "step": int(state.step),
        "examples": len(parts.eval),
        "failed_videos": runner.failed_videos(table),
        **runner.summary(table, cfg),
        "by_task": runner.by_task(parts.eval, table["greedy"]),
    }
    for mode in table:
        for name in runner.SHOWN:
            interval = result[mode][name]
            print(f"{mode:<8} {name:<12} {interval['mean']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}]")
    if output is not None:
        output.write_text(json.dumps(run_directory.finite(result), indent=2) + "\n")


def main(argv: list[str]) -> None:
    flags = command_line.parse(argv, __doc__ or "", {"workdir": "", "data": "", "json": ""}, config_required=False)
    if not flags.workdir and not flags.config:
        raise ValueError("name what to evaluate: --workdir DIR of a run, or --config FILE for the base model")
    workdir = pathlib.Path(flags.workdir) if flags.workdir else None
    cfg = flags.config or run_directory.read_config(pathlib.Path(flags.workdir))
    if flags.data:
        cfg = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, eval=flags.data))
    evaluate(cfg, workdir, pathlib.Path(flags.json) if flags.json else None)


if __name__ == "__main__":
    command_line.run(main, sys.argv)
