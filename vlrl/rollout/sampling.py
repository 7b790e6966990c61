"""Rules that turn logits into a token. Neutral by default; nothing is taken from a checkpoint's generation_config."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from vlrl.config import RolloutConfig
from vlrl.models.config import MARKS, VlmConfig
from vlrl.types import Array


def described(cfg: RolloutConfig) -> str:
    """The sampling parameters in one line, for the log of a run."""
    return (
        f"sampling: temperature {cfg.temperature:g}, top_p {cfg.top_p:g}, top_k {cfg.top_k or 'off'}, no penalties, "
        f"at most {cfg.max_new_tokens} new tokens (sampling parameters of the checkpoint's generation_config are not "
        "used)"
    )


def suppressed_tokens(cfg: VlmConfig, tokenizer: Any) -> Bool[Array, " V"]:
    """Tokens that no completion may hold: those around and in the place of media, which would ask for pixels that are
    not there, and the embedding's padding rows behind the tokenizer's last id."""
    vision: list[int | None] = [
        *(cfg.image_token_id, cfg.video_token_id, cfg.vision_start_token_id, cfg.vision_end_token_id)
    ]
    if cfg.family in MARKS:
        marks = MARKS[cfg.family]  # InternVL's config.json names the placeholder alone
        names = (marks.start, marks.end, marks.image, marks.video)
        vision += [tokenizer.convert_tokens_to_ids(name) for name in names]
    ids = jnp.arange(cfg.vocab_size)
    return jnp.isin(ids, jnp.array([i for i in vision if i is not None], int)) | (ids >= len(tokenizer))


def filtered(logp: Float[Array, "*rows V"], cfg: RolloutConfig) -> Float[Array, "*rows V"]:
    """Log-probabilities with the tokens outside top-k and top-p at -inf (not renormalised)."""
    if cfg.top_k > 0:
        smallest = jax.lax.top_k(logp, min(cfg.top_k, logp.shape[-1]))[0][..., -1:]
        logp = jnp.where(logp >= smallest, logp, -jnp.inf)
    if cfg.top_p < 1.0:
        ordered = jnp.sort(logp, axis=-1, descending=True)
        share = jax.nn.softmax(ordered, axis=-1)
        # A token stays while the share before it is below top_p: the likeliest always stays.
        count = jnp.sum(jnp.cumsum(share, axis=-1) - share < cfg.top_p, axis=-1, keepdims=True)
        smallest = jnp.take_along_axis(ordered, jnp.maximum(count - 1, 0), axis=-1)
        logp = jnp.where(logp >= smallest, logp, -jnp.inf)
    return logp


def choose(key: PRNGKeyArray, logp: Float[Array, "P G V"], cfg: RolloutConfig) -> Int[Array, "P G"]:
    """A token of each branch; temperature 0 takes the likeliest."""
    if cfg.temperature == 0.0:
        return jnp.argmax(logp, axis=-1)
    return jax.random.categorical(key, filtered(logp, cfg), axis=-1)
