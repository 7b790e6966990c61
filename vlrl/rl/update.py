"""One GRPO update of the adapter: reference and old log-probabilities, gradient over micro-batches, optimizer step."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Bool, Float, Int

from vlrl.config import GrpoConfig
from vlrl.models import vlm
from vlrl.rl import losses, optimizer
from vlrl.types import Array, Branches, PrefixInput

Adapter = Any


@flax.struct.dataclass
class TrainState:
    step: Int[Array, ""]
    """Steps taken, skipped ones included."""
    adapter: Adapter
    start_adapter: Adapter
    """The policy at step 0 is the reference: without the adapter only where the adapter starts at nothing."""
    optimizer: Any


@flax.struct.dataclass
class Experience:
    """What a step learns from; rows of prompts, so that it can be cut into micro-batches."""

    prefix: PrefixInput
    features: Float[Array, "P M E"]
    branches: Branches
    sampler_logp: Float[Array, "P G C"]
    advantages: Float[Array, "P G"]
    valid: Bool[Array, "P G"]


@flax.struct.dataclass
class Material:
    """Experience beside what the loss holds fixed."""

    experience: Experience
    reference: Float[Array, "P G C"]
    """Log-probabilities of the policy at step 0."""
    old: Float[Array, "P G C"] | None
    """Log-probabilities of the policy that the step begins with; None: that is the policy itself."""
    mask: Bool[Array, "P G C"]


def init(adapter: Adapter, transform: optax.GradientTransformation) -> TrainState:
    """The state before the first step. Its arrays are donated to `train_step`."""
    start = jax.tree.map(jnp.copy, adapter)  # a copy: the state is donated, the reference must outlive the adapter
    return TrainState(jnp.int32(0), adapter, start, transform.init(adapter))


@functools.partial(jax.jit, static_argnames=("policy", "transform", "cfg", "temperature"), donate_argnames="state")
def train_step(
    policy: vlm.Vlm,
    transform: optax.GradientTransformation,
    state: TrainState,
    base: Any,
    experience: Experience,
    suppressed: Bool[Array, " V"],
    cfg: GrpoConfig,
    temperature: float,
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """`cfg.inner_iterations` updates on the same experience. A non-finite gradient changes nothing.

    Metrics are those of the last update; the denominators of loss and metrics are the whole step's, so that any split
    into micro-batches gives the same sums. Raises ValueError where micro-batches do not divide the prompts.
    """
    mask = losses.completion_mask(experience.branches.length, experience.valid, experience.branches.tokens.shape[-1])
    score = functools.partial(_scored, policy, base, suppressed, cfg, temperature)
    reference = _by_micro_batch(functools.partial(score, state.start_adapter), experience, cfg)
    # One update: the old policy is the policy, its log-probabilities those of the only forward pass, detached.
    one = cfg.inner_iterations == 1
    old = None if one else _by_micro_batch(functools.partial(score, state.adapter), experience, cfg)
    material = Material(experience, reference, old, mask)
    loss = functools.partial(_loss, policy, base, suppressed, cfg, temperature, losses.count(mask))
    metrics: dict[str, Float[Array, ""]] = {}
    for _ in range(cfg.inner_iterations):
        gradient, metrics = _gradient(loss, state.adapter, material, cfg)
        state, metrics = _apply(transform, state, gradient, metrics)
    return dataclasses.replace(state, step=state.step + 1), metrics


def _apply(
    transform: optax.GradientTransformation, state: TrainState, gradient: Adapter, metrics: dict[str, Float[Array, ""]]
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    finite = optimizer.all_finite(gradient)
    change, new_optimizer = transform.update(gradient, state.optimizer, state.adapter)
    proposed = dataclasses.replace(state, adapter=optax.apply_updates(state.adapter, change), optimizer=new_optimizer)
    state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), proposed, state)
    return state, {**metrics, "grad_norm": optax.tree.norm(gradient), "skipped_updates": 1.0 - finite}


def _gradient(
    loss: Callable[[Adapter, Material], tuple[Float[Array, ""], dict[str, Float[Array, ""]]]],
    adapter: Adapter,
    material: Material,
    cfg: GrpoConfig,
) -> tuple[Adapter, dict[str, Float[Array, ""]]]:
    """Gradient and metrics, summed over micro-batches."""
    parts, structure = _micro_batches(material, cfg)

    def one(part: list[Array]) -> tuple[Adapter, dict[str, Float[Array, ""]]]:
        (_, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(adapter, structure.unflatten(part))
        return gradient, metrics

    def accumulate(total: Any, part: list[Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, one(part)), None

    shapes = jax.eval_shape(one, [x[0] for x in parts])
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(accumulate, zeros, parts)[0]


def _loss(
    policy: vlm.Vlm,
    base: Any,
    suppressed: Bool[Array, " V"],
    cfg: GrpoConfig,
    temperature: float,
    denominators: losses.Denominators,
    adapter: Adapter,
    part: Material,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """A micro-batch's share of the step's loss and metrics."""
    experience, mask = part.experience, part.mask
    logp, entropy = vlm.joint_logp(
        policy,
        {"params": base, "lora": adapter},
        experience.prefix,
        experience.features,
        experience.branches,
        temperature,
        suppressed,
        cfg.logp_chunk,
    )
    logp = jnp.where(mask, logp, 0.0)  # padding may be a suppressed token, and -inf - -inf a NaN in the gradient
    old = jax.lax.stop_gradient(logp) if part.old is None else part.old
    max_new_tokens = mask.shape[-1]
    value, metrics = losses.policy_loss(
        logp, old, part.reference, experience.advantages, mask, denominators, cfg, max_new_tokens
    )
    weights = losses.token_mean(mask, denominators, max_new_tokens)
    gap = jnp.abs(logp - experience.sampler_logp)
    extra = {
        "loss": value,
        "entropy": jnp.sum(weights * jnp.where(mask, entropy, 0.0)),
        "sampling/logp_difference": jnp.sum(weights * jnp.where(mask, gap, 0.0)),
    }
    return value, jax.lax.stop_gradient({**metrics, **extra})


def _scored(
    policy: vlm.Vlm,
    base: Any,
    suppressed: Bool[Array, " V"],
    cfg: GrpoConfig,
    temperature: float,
    adapter: Adapter,
    experience: Experience,
) -> Float[Array, "P G C"]:
    """Log-probabilities of the completions, without gradient."""
    variables = {"params": base, "lora": adapter}
    prompt = vlm.prefill(policy, variables, experience.prefix, experience.features)
    return vlm.branch_logp(policy, variables, prompt, experience.branches, temperature, suppressed, cfg.logp_chunk)[0]


def _by_micro_batch(
    score: Callable[[Experience], Float[Array, "P G C"]], experience: Experience, cfg: GrpoConfig
) -> Float[Array, "P G C"]:
    parts, structure = _micro_batches(experience, cfg)
    rows = jax.lax.map(lambda part: score(structure.unflatten(part)), parts)
    return rows.reshape(-1, *rows.shape[2:])


def _micro_batches(rows: Any, cfg: GrpoConfig) -> tuple[list[Array], Any]:
    """Leaves [P, ...] as [P / micro, micro, ...], and the structure that puts one micro-batch's leaves together."""
    leaves, structure = jax.tree.flatten(rows)
    count = leaves[0].shape[0]
    micro = cfg.micro_batch_prompts or count
    if count % micro:
        raise ValueError(
            f"grpo.micro_batch_prompts: {micro} does not divide data.prompts_per_step {count}; choose a divisor"
        )
    return [x.reshape(count // micro, micro, *x.shape[1:]) for x in leaves], structure
