"""The decode loop: G branches of every prompt, one token a step, over the prompt's keys held once."""

import functools
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from vlrl.config import RolloutConfig
from vlrl.models import vlm
from vlrl.models.attention import KeyValue
from vlrl.rollout import sampling
from vlrl.types import Array, Branches, PrefixInput, Rollouts, Variables


@flax.struct.dataclass
class Decoding:
    """State of the loop."""

    step: Int[Array, ""]
    tokens: Int[Array, "P G C"]
    logp: Float[Array, "P G C"]
    length: Int[Array, "P G"]
    finished: Bool[Array, "P G"]
    next_logits: Float[Array, "P G V"]
    cache: KeyValue


def sample(
    policy: vlm.Vlm,
    variables: Variables,
    features: Float[Array, "P M E"],
    prefix: PrefixInput,
    key: PRNGKeyArray,
    tokenizer: Any,
    eos_ids: tuple[int, ...],
    cfg: RolloutConfig,
) -> Rollouts:
    """G completions of every prompt, with text. Completions end on any of `eos_ids`, which they include."""
    suppressed = sampling.suppressed_tokens(policy.cfg, tokenizer)
    branches, logp, finished = sample_tokens(policy, variables, features, prefix, suppressed, key, eos_ids, cfg)
    return Rollouts(branches, logp, finished, texts(tokenizer, branches, finished))


@functools.partial(jax.jit, static_argnames=("policy", "eos_ids", "cfg"))
def sample_tokens(
    policy: vlm.Vlm,
    variables: Variables,
    features: Float[Array, "P M E"],
    prefix: PrefixInput,
    suppressed: Bool[Array, " V"],
    key: PRNGKeyArray,
    eos_ids: tuple[int, ...],
    cfg: RolloutConfig,
) -> tuple[Branches, Float[Array, "P G C"], Bool[Array, "P G"]]:
    """Tokens, their log-probabilities (before top-k and top-p) and whether each branch ended by itself.

    The loop stops when every branch has ended, not at the length limit.
    """
    temperature = cfg.temperature or 1.0  # greedy: the log-probabilities of the untempered distribution
    num_prompts, num_branches = prefix.tokens.shape[0], cfg.group_size
    prompt = vlm.prefill(policy, variables, prefix, features)
    shape = (num_prompts, num_branches, cfg.max_new_tokens)
    logits = vlm.next_logits(policy, variables, prompt.last_hidden)[:, None]
    start = Decoding(
        step=jnp.int32(0),
        tokens=jnp.zeros(shape, jnp.int32),
        logp=jnp.zeros(shape, jnp.float32),
        length=jnp.zeros(shape[:2], jnp.int32),
        finished=jnp.zeros(shape[:2], bool),
        next_logits=jnp.broadcast_to(logits, (*shape[:2], logits.shape[-1])),
        cache=vlm.empty_cache(policy, *shape),
    )

    def going(state: Decoding) -> Bool[Array, ""]:
        return (state.step < cfg.max_new_tokens) & ~jnp.all(state.finished)

    def advance(state: Decoding) -> Decoding:
        logp = vlm.log_probabilities(state.next_logits, temperature, suppressed)
        token = sampling.choose(jax.random.fold_in(key, state.step), logp, cfg).astype(jnp.int32)
        token = jnp.where(state.finished, 0, token)
        chosen = jnp.take_along_axis(logp, token[..., None], axis=-1)[..., 0]
        tokens = jax.lax.dynamic_update_index_in_dim(state.tokens, token, state.step, axis=2)
        kept = jax.lax.dynamic_update_index_in_dim(
            state.logp, jnp.where(state.finished, 0.0, chosen), state.step, axis=2
        )
        next_logits, cache = vlm.decode_step(policy, variables, prompt, state.cache, token, state.step)
        ended = jnp.isin(token, jnp.array(eos_ids, jnp.int32)) & ~state.finished
        return Decoding(
            step=state.step + 1,
            tokens=tokens,
            logp=kept,
            length=state.length + ~state.finished,
            finished=state.finished | ended,
            next_logits=next_logits,
            cache=cache,
        )

    end = jax.lax.while_loop(going, advance, start)
    return Branches(end.tokens, end.length), end.logp, end.finished


def texts(tokenizer: Any, branches: Branches, finished: Bool[Array, "P G"]) -> tuple[tuple[str, ...], ...]:
    """Completions as text, without the token that ended them."""
    tokens, length, ended = (np.asarray(x) for x in (branches.tokens, branches.length, finished))
    stop = length - ended
    return tuple(
        tuple(tokenizer.decode(row[:n]) for row, n in zip(group, stops, strict=True))
        for group, stops in zip(tokens, stop, strict=True)
    )
