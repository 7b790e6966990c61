"""Makes again the update that ended a run, from what the run wrote when its numbers were not finite.

python -m vlrl.replay runs/mine 1234
python -m vlrl.replay runs/mine 1234 --debug_nans     ends with the traceback of the first operation that made a NaN
"""

import contextlib
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp

from vlrl import build, command_line, guard
from vlrl.io import checkpoint, run_directory
from vlrl.models import lora
from vlrl.rl import optimizer, update


def replay(workdir: pathlib.Path, step: int) -> dict[str, float]:
    """Metrics of the update; prints which inputs were not finite.

    With grpo.inner_iterations above 1 it begins where the step ended: its finite updates are in the state already.

    Raises ValueError where nothing was written for this step.
    """
    folder = workdir / "replay"
    if step not in checkpoint.steps(folder):
        raise ValueError(
            f"{folder}: holds no step {step}, only {checkpoint.steps(folder) or 'nothing'}; name one of them"
        )
    cfg = run_directory.read_config(workdir)
    transform = optimizer.make(cfg.opt, cfg.steps)
    parts = build.parts(cfg)
    with contextlib.closing(parts.pool):
        state = update.init(lora.init(jax.random.key(0), parts.base, cfg.lora), transform)
        state, experience = guard.read_replay(folder, step, state)
        for name in not_finite({"state": state, "experience": experience, "base": parts.base}):
            print(f"not finite before the update: {name}")
        _, metrics = update.train_step(
            parts.policy, transform, state, parts.base, experience, parts.suppressed, cfg.grpo, cfg.rollout.temperature
        )
    return {name: float(value) for name, value in metrics.items()}


def not_finite(tree: Any) -> list[str]:
    """Names of the arrays that hold NaN or infinity."""
    floats = {name: x for name, x in checkpoint.named(tree).items() if jnp.issubdtype(x.dtype, jnp.floating)}
    return [name for name, x in floats.items() if not bool(jnp.all(jnp.isfinite(x)))]


def main(argv: list[str]) -> None:
    flags = command_line.parse(
        argv, __doc__ or "", {"debug_nans": False}, config_required=False, positional=("run", "step")
    )
    if not flags.step.isdecimal():
        raise ValueError(f"step {flags.step!r}: expected the number of a step, as named by the run that ended")
    jax.config.update("jax_debug_nans", flags.debug_nans)
    for name, value in sorted(replay(pathlib.Path(flags.run), int(flags.step)).items()):
        print(f"{name:<28} {value:.6g}")


if __name__ == "__main__":
    command_line.run(main, sys.argv)
