"""Policy-gradient losses per token, and the weights that add them up. float32 throughout.

A loss is sum(token_weights * token_loss) with denominators of the whole step, so that adding up micro-batches, in any
split and over any hosts, gives the loss and gradient of the undivided step.
"""

import dataclasses
from collections.abc import Callable, Mapping

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from vlrl.config import GrpoConfig
from vlrl.types import Array

RATIO_LOG_LIMIT = 20.0
"""Bound of log(policy / old policy): exp stays finite in float32."""


@flax.struct.dataclass
class Denominators:
    """Counts over all micro-batches and hosts of the step."""

    sequences: Float[Array, ""]
    """Valid completions."""
    tokens: Float[Array, ""]
    """Tokens of valid completions."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """A loss by its parts: importance ratio, surrogate, and what it averages over."""

    ratio: Callable[..., Float[Array, "P G C"]]
    surrogate: Callable[..., Float[Array, "P G C"]]
    weights: Callable[..., Float[Array, "P G C"]]


def policy_loss(
    logp: Float[Array, "P G C"],
    old_logp: Float[Array, "P G C"],
    ref_logp: Float[Array, "P G C"],
    advantages: Float[Array, "P G"],
    mask: Bool[Array, "P G C"],
    denominators: Denominators,
    cfg: GrpoConfig,
    max_new_tokens: int,
) -> tuple[Float[Array, ""], Mapping[str, Float[Array, ""]]]:
    """This micro-batch's share of loss and metrics: all are sums to add over micro-batches, none is a mean of its own.

    `mask` is `completion_mask`: an invalid completion takes part in nothing, KL included."""
    kl = kl_k3(logp, ref_logp, cfg.kl_log_ratio_limit)
    weights = token_weights(mask, denominators, cfg, max_new_tokens)
    per_token = token_loss(logp, old_logp, advantages, mask, cfg) + cfg.kl_beta * kl
    loss = jnp.sum(weights * jnp.where(mask, per_token, 0.0))

    ratio = rule(cfg).ratio(logp, old_logp, mask)
    low = (ratio < 1 - cfg.clip_low) & (advantages[..., None] < 0)
    high = (ratio > 1 + cfg.clip_high) & (advantages[..., None] > 0)
    each_token = token_mean(mask, denominators, max_new_tokens)
    metrics = {"kl": kl, "clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low | high}
    metrics = {name: jnp.sum(each_token * jnp.where(mask, value, 0.0)) for name, value in metrics.items()}
    return loss, jax.lax.stop_gradient(metrics)


def rule(cfg: GrpoConfig) -> Rule:
    """The rule `cfg.loss`. Raises ValueError naming those there are."""
    if cfg.loss not in LOSSES:
        raise ValueError(f"grpo.loss: no rule {cfg.loss!r}; choose one of {', '.join(LOSSES)}")
    return LOSSES[cfg.loss]


def token_loss(
    logp: Float[Array, "P G C"],
    old_logp: Float[Array, "P G C"],
    advantages: Float[Array, "P G"],
    mask: Bool[Array, "P G C"],
    cfg: GrpoConfig,
) -> Float[Array, "P G C"]:
    """Loss of every token under the rule `cfg.loss`, without KL; 0 outside the mask."""
    logp = jnp.where(mask, logp.astype(jnp.float32), 0.0)
    ratio = rule(cfg).ratio(logp, old_logp, mask)
    advantages = jnp.asarray(advantages, jnp.float32)[..., None]
    return jnp.where(mask, rule(cfg).surrogate(ratio, logp, advantages, cfg), 0.0)


def token_weights(
    mask: Bool[Array, "P G C"], denominators: Denominators, cfg: GrpoConfig, max_new_tokens: int
) -> Float[Array, "P G C"]:
    """Weight of every token under the rule `cfg.loss`; 0 outside the mask."""
    return rule(cfg).weights(mask, denominators, max_new_tokens)


def kl_k3(
    logp: Float[Array, "P G C"], ref_logp: Float[Array, "P G C"], log_ratio_limit: float
) -> Float[Array, "P G C"]:
    """k3 estimate of KL(policy || reference): r - log r - 1 with r = reference / policy, never negative.

    Schulman 2020, joschu.net/blog/kl-approx. Used as a loss its gradient does not vanish in expectation, k1's does. The
    log ratio is clamped, so value and gradient stay finite however far the policies are apart."""
    log_ratio = ref_logp.astype(jnp.float32) - logp.astype(jnp.float32)
    log_ratio = jnp.clip(log_ratio, -log_ratio_limit, log_ratio_limit)
    return jnp.expm1(log_ratio) - log_ratio


def completion_mask(
    length: Int[Array, "P G"], valid: Bool[Array, "P G"], max_length: int
) -> Bool[Array, "P G {max_length}"]:
    """Tokens that count. By length, never by the padding id: that id may be a real end-of-sequence token."""
    return (jnp.arange(max_length)[None, None, :] < jnp.asarray(length)[..., None]) & jnp.asarray(valid)[..., None]


def count(mask: Bool[Array, "P G C"]) -> Denominators:
    """Denominators of these completions: call it on the whole step, before it is split."""
    sequences = jnp.sum(jnp.any(mask, axis=-1)).astype(jnp.float32)
    return Denominators(sequences, jnp.sum(mask).astype(jnp.float32))


def masked_mean(
    x: Float[Array, "*shape"], mask: Bool[Array, "*shape"], axis: int | tuple[int, ...] | None = None
) -> Float[Array, "..."]:
    """Mean of x where mask holds; 0 where it holds nowhere."""
    return jnp.sum(jnp.where(mask, x, 0.0), axis=axis) / jnp.maximum(jnp.sum(mask, axis=axis), 1)


def next_token_logp(
    logits: Float[Array, "*B T V"], tokens: Int[Array, "*B T"], temperature: float
) -> Float[Array, "*B T"]:
    """Entry t is the log-probability of tokens[t] given those before it; entry 0, which nothing precedes, is 0.

    `logits[t]` is what the model says after reading tokens[t]. Temperature as in sampling. The unchunked statement of
    what scoring computes, for short sequences."""
    logp = jax.nn.log_softmax(logits[..., :-1, :].astype(jnp.float32) / temperature, axis=-1)
    chosen = jnp.take_along_axis(logp, tokens[..., 1:, None], axis=-1)[..., 0]
    return jnp.concatenate([jnp.zeros_like(chosen[..., :1]), chosen], axis=-1)


def token_ratio(
    logp: Float[Array, "P G C"], old_logp: Float[Array, "P G C"], mask: Bool[Array, "P G C"]
) -> Float[Array, "P G C"]:
    """policy / old policy of each token."""
    return jnp.exp(_log_ratio(logp, old_logp, mask))


def sequence_ratio(
    logp: Float[Array, "P G C"], old_logp: Float[Array, "P G C"], mask: Bool[Array, "P G C"]
) -> Float[Array, "P G C"]:
    """Geometric mean of a completion's token ratios, at each of its tokens (GSPO, arXiv 2507.18071)."""
    log_ratio = masked_mean(_log_ratio(logp, old_logp, mask), mask, axis=-1)
    return jnp.broadcast_to(jnp.exp(log_ratio)[..., None], mask.shape)


def _log_ratio(
    logp: Float[Array, "P G C"], old_logp: Float[Array, "P G C"], mask: Bool[Array, "P G C"]
) -> Float[Array, "P G C"]:
    log_ratio = jnp.where(mask, logp.astype(jnp.float32) - old_logp.astype(jnp.float32), 0.0)
    return jnp.clip(log_ratio, -RATIO_LOG_LIMIT, RATIO_LOG_LIMIT)


def clipped(
    ratio: Float[Array, "P G C"], logp: Float[Array, "P G C"], advantages: Float[Array, "P G 1"], cfg: GrpoConfig
) -> Float[Array, "P G C"]:
    """The lesser of the plain and the clipped surrogate, whatever the sign of the advantage (PPO, arXiv 1707.06347)."""
    inside = jnp.clip(ratio, 1 - cfg.clip_low, 1 + cfg.clip_high)
    return -jnp.minimum(ratio * advantages, inside * advantages)


def clipped_weight(
    ratio: Float[Array, "P G C"], logp: Float[Array, "P G C"], advantages: Float[Array, "P G 1"], cfg: GrpoConfig
) -> Float[Array, "P G C"]:
    """CISPO (arXiv 2506.13585): the capped ratio only weighs log-probabilities, so every token keeps a gradient.

    Capped from above alone, as its authors ran it."""
    weight = jax.lax.stop_gradient(jnp.minimum(ratio, 1 + cfg.clip_high))
    return -weight * advantages * logp


def sequence_mean(mask: Bool[Array, "P G C"], denominators: Denominators, max_new_tokens: int) -> Float[Array, "P G C"]:
    """Mean over the tokens of a completion, then over completions (DeepSeekMath, arXiv 2402.03300)."""
    length = jnp.sum(mask, axis=-1, keepdims=True)
    return mask / jnp.maximum(length, 1) / jnp.maximum(denominators.sequences, 1)


def token_mean(mask: Bool[Array, "P G C"], denominators: Denominators, max_new_tokens: int) -> Float[Array, "P G C"]:
    """Mean over all tokens of the step (DAPO, arXiv 2503.14476)."""
    return mask / jnp.maximum(denominators.tokens, 1)


def fixed_length(mask: Bool[Array, "P G C"], denominators: Denominators, max_new_tokens: int) -> Float[Array, "P G C"]:
    """Sum over tokens divided by a constant: no reward for being short or long (Dr. GRPO, arXiv 2503.20783)."""
    return mask / (jnp.maximum(denominators.sequences, 1) * max_new_tokens)


LOSSES = {
    "grpo": Rule(token_ratio, clipped, sequence_mean),
    "dr_grpo": Rule(token_ratio, clipped, fixed_length),
    "dapo": Rule(token_ratio, clipped, token_mean),
    "gspo": Rule(sequence_ratio, clipped, sequence_mean),
    "cispo": Rule(token_ratio, clipped_weight, token_mean),
}
