"""Attention in the three shapes that vlrl needs: within vision slices, within a prefix, from branches to a prefix.

Heads lead ([P, J, ..., T, K]) so that every product is a batched matrix product with leading batch axes: XLA's CPU
backend runs other layouts several times slower.
"""

import flax
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from vlrl.types import Array

MASKED = -1e30  # finite: a row without any visible key must give numbers, not NaN


@flax.struct.dataclass
class KeyValue:
    """Keys and values of one layer, or of all layers with a leading L."""

    k: Float[Array, "... T K"]
    v: Float[Array, "... T K"]


def split_heads(x: Float[Array, "*rows T HK"], num_heads: int) -> Float[Array, "*rows H T K"]:
    """[..., T, H*K] to [..., H, T, K]."""
    x = x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads)
    return jnp.swapaxes(x, -2, -3)


def join_heads(x: Float[Array, "*rows H T K"]) -> Float[Array, "*rows T HK"]:
    """Inverse of split_heads."""
    x = jnp.swapaxes(x, -2, -3)
    return x.reshape(*x.shape[:-2], -1)


def slice_attention(
    q: Float[Array, "P I H N K"],
    k: Float[Array, "P I H N K"],
    v: Float[Array, "P I H N K"],
    visible: Bool[Array, "P I N N"],
) -> Float[Array, "P I H N K"]:
    """Full attention inside each vision slice, restricted to `visible` pairs."""
    scores = jnp.where(visible[:, :, None], _scores(q, k), MASKED)
    return _softmax(scores, q.dtype) @ v


def prefix_attention(q: Float[Array, "P H S K"], own: KeyValue) -> Float[Array, "P H S K"]:
    """Causal attention of right-padded prompts: no real token comes after padding, so no length mask is needed."""
    num_prompts, num_heads, length, head_dim = q.shape
    grouped = q.reshape(num_prompts, own.k.shape[1], -1, head_dim)  # the heads of a key head follow each other
    scores = _scores(grouped, own.k).reshape(num_prompts, num_heads, length, length)
    weights = _softmax(jnp.where(jnp.tri(length, dtype=bool), scores, MASKED), q.dtype)
    return (weights.reshape(num_prompts, own.k.shape[1], -1, length) @ own.v).reshape(q.shape)


def branch_attention(
    q: Float[Array, "P H G Q K"],
    prefix: KeyValue,
    prefix_mask: Bool[Array, "P S"],
    own: KeyValue,
    own_mask: Bool[Array, "Q C"],
) -> Float[Array, "P H G Q K"]:
    """Each branch attends to the prompt's keys [P, J, S, K], held once, and to its own [P, J, G, C, K].

    One softmax over both score blocks: same value as attention over the concatenation, without repeating the prompt's
    keys G times.
    """
    num_prompts, num_heads, num_branches, num_queries, head_dim = q.shape
    num_kv, prefix_length = prefix.k.shape[1], prefix.k.shape[2]
    per_kv = num_heads // num_kv
    rows = (num_prompts, num_kv, per_kv, num_branches, num_queries)
    all_queries = q.reshape(num_prompts, num_kv, per_kv * num_branches * num_queries, head_dim)
    to_prefix = _scores(all_queries, prefix.k).reshape(*rows, prefix_length)
    by_branch = q.reshape(*rows, head_dim).swapaxes(2, 3).reshape(num_prompts, num_kv, num_branches, -1, head_dim)
    to_own = _scores(by_branch, own.k).reshape(num_prompts, num_kv, num_branches, per_kv, num_queries, -1)
    scores = jnp.concatenate(
        [
            jnp.where(prefix_mask[:, None, None, None, None], to_prefix, MASKED),
            jnp.where(own_mask, to_own.swapaxes(2, 3), MASKED),
        ],
        axis=-1,
    )
    weights = _softmax(scores, q.dtype)
    from_prefix = weights[..., :prefix_length].reshape(num_prompts, num_kv, -1, prefix_length) @ prefix.v
    own_weights = weights[..., prefix_length:].swapaxes(2, 3)
    from_own = own_weights.reshape(num_prompts, num_kv, num_branches, per_kv * num_queries, -1) @ own.v
    from_own = from_own.reshape(num_prompts, num_kv, num_branches, per_kv, num_queries, head_dim).swapaxes(2, 3)
    return from_prefix.reshape(q.shape) + from_own.reshape(q.shape)


def _scores(q: Float[Array, "*rows Q K"], k: Float[Array, "*rows T K"]) -> Float[Array, "*rows Q T"]:
    return (q * q.shape[-1] ** -0.5) @ jnp.swapaxes(k, -1, -2)


def _softmax(scores: Float[Array, "... T"], dtype: jnp.dtype) -> Float[Array, "... T"]:
    # float32: bfloat16 loses the tail of long rows.
    return jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(dtype)
