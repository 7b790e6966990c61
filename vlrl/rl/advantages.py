"""Rewards of a prompt's group -> advantages. float32 throughout."""

import jax.numpy as jnp
from jaxtyping import Bool, Float

from vlrl.config import GrpoConfig
from vlrl.types import Array

NOISE = 1e-6
"""A standard deviation below this share of max(1, |mean|) is rounding, not signal (float32 resolves 1.2e-7)."""


def group_normalized(rewards: Float[Array, "P G"], valid: Bool[Array, "P G"], cfg: GrpoConfig) -> Float[Array, "P G"]:
    """Advantages by the rule `cfg.advantage`; invalid members get 0 and are outside of mean and spread.

    Exactly 0 for a whole group that has one valid member, none, or no spread above rounding."""
    if cfg.advantage not in ADVANTAGES:
        raise ValueError(f"grpo.advantage: no rule {cfg.advantage!r}; choose one of {', '.join(ADVANTAGES)}")
    # An abstaining reward may hold anything, NaN included: replaced before any arithmetic.
    rewards = jnp.where(jnp.asarray(valid), jnp.asarray(rewards, jnp.float32), 0.0)
    count = jnp.sum(valid, axis=1, keepdims=True).astype(jnp.float32)
    mean = jnp.sum(rewards, axis=1, keepdims=True) / jnp.maximum(count, 1)
    centred = jnp.where(valid, rewards - mean, 0.0)
    std = jnp.sqrt(jnp.sum(centred**2, axis=1, keepdims=True) / jnp.maximum(count - 1, 1))
    signal = (count > 1) & (std > NOISE * jnp.maximum(jnp.abs(mean), 1))
    return jnp.where(signal & valid, ADVANTAGES[cfg.advantage](centred, std, count, cfg), 0.0)


def grpo(
    centred: Float[Array, "P G"], std: Float[Array, "P 1"], count: Float[Array, "P 1"], cfg: GrpoConfig
) -> Float[Array, "P G"]:
    """(r - mean) / (std + eps) with the unbiased std (DeepSeekMath, arXiv 2402.03300)."""
    return centred / (std + cfg.advantage_eps)


def dr_grpo(
    centred: Float[Array, "P G"], std: Float[Array, "P 1"], count: Float[Array, "P 1"], cfg: GrpoConfig
) -> Float[Array, "P G"]:
    """r - mean: dividing by the std favours prompts that are nearly solved or hopeless (arXiv 2503.20783)."""
    return centred


def rloo(
    centred: Float[Array, "P G"], std: Float[Array, "P 1"], count: Float[Array, "P 1"], cfg: GrpoConfig
) -> Float[Array, "P G"]:
    """r minus the mean of the other members, which is n / (n - 1) times (r - mean) (arXiv 2402.14740)."""
    return centred * count / jnp.maximum(count - 1, 1)


ADVANTAGES = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}
