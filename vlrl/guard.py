"""What ends a run, or warns, before a week of it is lost: updates that are not finite, an adapter that does not move,
metrics past their limits.
"""

import collections
import math
import pathlib
import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vlrl.config import GuardConfig
from vlrl.io import checkpoint
from vlrl.rl import update
from vlrl.types import Branches, PrefixInput, VisionInput

LIMITS: dict[str, tuple[str, str, str]] = {
    # GuardConfig field: (metric, which side of the limit is wrong, cure)
    "max_logp_difference": (
        *("sampling/logp_difference", "above"),
        "sampler and trainer disagree on a distribution: compare dtype, attention and adapter of both",
    ),
    "max_zero_std": (
        *("frac_reward_zero_std", "above"),
        "groups earn the same and teach nothing: raise rollout.group_size, or the questions are too easy or too hard",
    ),
    "max_clipped_ratio": ("completions/clipped_ratio", "above", "answers are cut: raise rollout.max_new_tokens"),
    "min_parse_rate": ("claims/parse_rate", "below", "answers lack claims: look at rollouts/ and prompt.instruction"),
    "max_invalid_rate": ("invalid/rate", "above", "rewards abstain: invalid/<reason> says why"),
}


class Guard:
    """Watches the steps of a run. Its memory is `cfg.window` steps and is not saved: a resumed run watches anew."""

    def __init__(self, cfg: GuardConfig, workdir: pathlib.Path):
        self._cfg = cfg
        self._workdir = workdir
        self._skipped = 0
        self._recent: collections.deque[Mapping[str, Any]] = collections.deque(maxlen=cfg.window)
        self._warned: set[str] = set()

    def check(
        self, step: int, state: update.TrainState, experience: update.Experience, metrics: Mapping[str, float]
    ) -> None:
        """Warns on stderr of each limit once, until its metric has been well again.

        Raises:
            ValueError: the first update changed nothing, or `cfg.max_skipped_updates` updates in a row were not finite;
                state and experience of the last of them are then in the run's `replay` directory.
        """
        self._skipped = self._skipped + 1 if metrics["skipped_updates"] else 0
        if self._skipped >= self._cfg.max_skipped_updates:
            write_replay(self._workdir / "replay", step, state, experience)
            raise ValueError(
                f"{self._skipped} updates in a row were not finite, the last at step {step}; look at it with "
                f"`python -m vlrl.replay {self._workdir} {step}`, then lower opt.lr or repair what it names"
            )
        if step == 0 and not self._skipped and metrics["grad_norm"] > 0 and not moved(state):
            raise ValueError(
                "the first update changed no weight although its gradient is not zero; is opt.lr "
                f"{metrics['learning_rate']:g} too small for the adapter's dtype?"
            )
        self._recent.append(metrics)
        if len(self._recent) == self._cfg.window:
            found = exceeded(self._recent, self._cfg)
            for text in [text for name, text in found.items() if name not in self._warned]:
                print(f"warning: {text}", file=sys.stderr, flush=True)
            self._warned = set(found)


def exceeded(recent: Iterable[Mapping[str, float]], cfg: GuardConfig) -> dict[str, str]:
    """A sentence for each limit that the mean over these steps is past; NaN (nothing to average) is left out."""
    steps = list(recent)
    found = {}
    for field, (metric, side, cure) in LIMITS.items():
        values = [step[metric] for step in steps if metric in step and math.isfinite(step[metric])]
        mean, limit = sum(values) / max(len(values), 1), getattr(cfg, field)
        if values and (mean > limit if side == "above" else mean < limit):
            found[field] = f"{metric} is {mean:.3g} over {len(steps)} steps, {side} guard.{field} {limit:g}: {cure}"
    return found


def moved(state: update.TrainState) -> bool:
    """Whether any weight of the adapter differs from where it began."""
    pairs = zip(jax.tree.leaves(state.adapter), jax.tree.leaves(state.start_adapter), strict=True)
    return any(bool(jnp.any(now != start)) for now, start in pairs)


def write_replay(folder: pathlib.Path, step: int, state: update.TrainState, experience: update.Experience) -> None:
    """The update's inputs, in place of those of an earlier step."""
    named = checkpoint.named({"state": state, "experience": experience})
    shutil.rmtree(folder, ignore_errors=True)
    # Patches are not in it (their features are), and Orbax stores no empty arrays.
    checkpoint.save(folder, step, {name: x for name, x in named.items() if x.size}, {}, keep=1)


def read_replay(
    folder: pathlib.Path, step: int, state: update.TrainState
) -> tuple[update.TrainState, update.Experience]:
    """What write_replay wrote; `state` is one of the run's, the experience has the shapes that were saved."""
    saved = checkpoint.described(folder, step)
    wanted = checkpoint.named({"state": state})
    shapes = {name: shape for name, shape in saved.items() if not name.startswith("state/")}
    arrays, _ = checkpoint.restore(folder, step, wanted | shapes)
    read = lambda name: arrays[f"experience/{name}"]  # noqa: E731
    names = ("tokens", "length", "positions", "next_position", "vision_index")
    rows = len(read("prefix/tokens"))
    shown = VisionInput(np.zeros((rows, 0, 0, 0), np.float32), *(np.zeros((rows, 0, 0, *x), int) for x in ((2,), ())))
    experience = update.Experience(
        PrefixInput(**{name: read(f"prefix/{name}") for name in names}, vision=shown),
        read("features"),
        Branches(read("branches/tokens"), read("branches/length")),
        *(read(name) for name in ("sampler_logp", "advantages", "valid")),
    )
    return jax.tree.unflatten(jax.tree.structure(state), [arrays[name] for name in wanted]), experience
