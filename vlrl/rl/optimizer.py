"""AdamW with warm-up, decay and a bound on the gradient norm."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Bool, Float, Int

from vlrl.config import OptConfig
from vlrl.types import Array


def make(cfg: OptConfig, steps: int) -> optax.GradientTransformation:
    """The optimizer of a run of `steps` updates. Its state's count is the number of updates made."""
    if cfg.schedule not in SCHEDULES:
        raise ValueError(f"opt.schedule: no schedule {cfg.schedule!r}; choose one of {', '.join(SCHEDULES)}")
    if steps < 1:
        raise ValueError(f"steps: {steps} leaves nothing to schedule; set at least 1")
    if cfg.max_grad_norm <= 0:
        raise ValueError(f"opt.max_grad_norm: {cfg.max_grad_norm} stops every update; use a large number for no bound")
    return optax.chain(
        optax.clip_by_global_norm(cfg.max_grad_norm),
        optax.adamw(
            lambda count: learning_rate(cfg, steps, jnp.asarray(count)),
            b1=cfg.b1,
            b2=cfg.b2,
            eps=cfg.eps,
            weight_decay=cfg.weight_decay,
        ),
    )


def learning_rate(cfg: OptConfig, steps: int, step: int | Int[Array, ""]) -> Float[Array, ""]:
    """Rate of update `step` (from 0): linear from lr / warmup_steps to lr, then the schedule up to `steps`."""
    step = jnp.asarray(step, jnp.float32)
    warm = jnp.minimum((step + 1) / max(cfg.warmup_steps, 1), 1.0)
    progress = jnp.clip((step - cfg.warmup_steps) / max(steps - cfg.warmup_steps, 1), 0.0, 1.0)
    return cfg.lr * warm * SCHEDULES[cfg.schedule](progress)


def cosine(progress: Float[Array, ""]) -> Float[Array, ""]:
    """Half a cosine from 1 to 0."""
    return 0.5 * (1 + jnp.cos(jnp.pi * progress))


def constant(progress: Float[Array, ""]) -> Float[Array, ""]:
    """1 throughout."""
    return jnp.ones_like(progress)


def all_finite(tree: Any) -> Bool[Array, ""]:
    """Whether every number in the tree is finite. The update uses it to skip a step: moments and weights stay."""
    return functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)], jnp.array(True))


SCHEDULES = {"cosine": cosine, "constant": constant}
