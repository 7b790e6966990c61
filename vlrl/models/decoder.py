"""Causal decoder over one prefix and its branches.

Each layer computes the prompt once, then all branches of it against the prompt's keys. The same layer serves four
callers: prefill (prompt only), scoring from kept keys (branches only), training (both at once, so that gradients flow
through the prompt's activations, computed once), and a decode step (one token a branch against a growing cache).
"""

import dataclasses
from typing import Any

import flax
import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float, Int

from vlrl.models import attention, layers
from vlrl.models.attention import KeyValue
from vlrl.models.config import VlmConfig
from vlrl.types import Array


@flax.struct.dataclass
class Context:
    """What is the same in every layer."""

    prefix_angles: Float[Array, "P S half"] | None
    prefix_mask: Bool[Array, "P S"]
    branch_angles: Float[Array, "P Q half"] | None = None
    own_mask: Bool[Array, "Q C"] | None = None
    step: Int[Array, ""] | None = None
    """Where a decode step writes its keys; None when branches bring all their tokens."""
    deep: Float[Array, "U P S D"] | None = None
    """Vision features to add to the prompt after layer 0, 1, ... (DeepStack), 0 at text."""


@flax.struct.dataclass
class Stream:
    """What flows from layer to layer; None where a caller has no such part."""

    prefix: Float[Array, "P S D"] | None = None
    branch: Float[Array, "P G Q D"] | None = None
    cache: KeyValue | None = None
    """Keys of the branches of all layers [L, P, J, G, C, K], written in place by decode steps."""


class Block(nn.Module):
    cfg: VlmConfig
    dtype: jnp.dtype
    lora_scale: float
    keep_kv: bool
    """Hand out the prompt's keys: as scan outputs they live for all layers, so only callers that need them ask."""

    def setup(self) -> None:
        cfg = self.cfg
        dense = lambda features, bias=False: layers.Dense(features, bias, self.lora_scale, self.dtype)  # noqa: E731
        self.input_norm = layers.RMSNorm(cfg.rms_norm_eps, self.dtype)
        self.q_proj = dense(cfg.num_heads * cfg.head_dim, bias=cfg.qkv_bias)
        self.k_proj = dense(cfg.num_kv_heads * cfg.head_dim, bias=cfg.qkv_bias)
        self.v_proj = dense(cfg.num_kv_heads * cfg.head_dim, bias=cfg.qkv_bias)
        if cfg.qk_norm:
            self.q_norm = layers.RMSNorm(cfg.rms_norm_eps, self.dtype)
            self.k_norm = layers.RMSNorm(cfg.rms_norm_eps, self.dtype)
        self.o_proj = dense(cfg.hidden_size)
        self.post_norm = layers.RMSNorm(cfg.rms_norm_eps, self.dtype)
        self.gate_proj = dense(cfg.intermediate_size)
        self.up_proj = dense(cfg.intermediate_size)
        self.down_proj = dense(cfg.hidden_size)

    def __call__(
        self, stream: Stream, layer: Int[Array, ""], prefix_kv: KeyValue | None, context: Context
    ) -> tuple[Stream, KeyValue | None]:
        if stream.prefix is not None:
            q, prefix_kv = self._project(stream.prefix, context.prefix_angles[:, None])
            x = self._finish(stream.prefix, attention.prefix_attention(q, prefix_kv))
            stream = dataclasses.replace(stream, prefix=_with_deep(x, context.deep, layer))
        if stream.branch is not None:
            q, own = self._project(stream.branch, context.branch_angles[:, None, None])
            # [P, G, H, ...] to [P, H, G, ...]: the prompt's keys have no G.
            q, own = jax.tree.map(lambda a: a.swapaxes(1, 2), (q, own))
            if stream.cache is not None:
                cache = _write(stream.cache, own, layer, context.step)
                stream, own = dataclasses.replace(stream, cache=cache), jax.tree.map(lambda a: a[layer], cache)
            y = attention.branch_attention(q, prefix_kv, context.prefix_mask, own, context.own_mask)
            stream = dataclasses.replace(stream, branch=self._finish(stream.branch, y.swapaxes(1, 2)))
        return stream, prefix_kv if self.keep_kv else None

    def _project(
        self, x: Float[Array, "*rows T D"], angles: Float[Array, "*ones T half"]
    ) -> tuple[Float[Array, "*rows H T K"], KeyValue]:
        x = self.input_norm(x)
        q = attention.split_heads(self.q_proj(x), self.cfg.num_heads)
        k = attention.split_heads(self.k_proj(x), self.cfg.num_kv_heads)
        v = attention.split_heads(self.v_proj(x), self.cfg.num_kv_heads)
        if self.cfg.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return layers.rotate(q, angles), KeyValue(layers.rotate(k, angles), v)

    def _finish(self, x: Float[Array, "*rows T D"], heads: Float[Array, "*rows H T K"]) -> Float[Array, "*rows T D"]:
        x = x + self.o_proj(attention.join_heads(heads))
        y = self.post_norm(x)
        return x + self.down_proj(jax.nn.silu(self.gate_proj(y)) * self.up_proj(y))


class Decoder(nn.Module):
    cfg: VlmConfig
    dtype: jnp.dtype
    lora_scale: float
    unroll: bool = False
    remat: bool = False

    @nn.compact
    def __call__(
        self, stream: Stream, prefix_kv: KeyValue | None, context: Context, keep_kv: bool = False
    ) -> tuple[Stream, KeyValue | None]:
        """Runs all layers. `prefix_kv` [L, P, J, S, K] stands in for the prompt where the stream does not hold it;
        `keep_kv` returns the prompt's keys of every layer."""
        block = nn.remat(Block, prevent_cse=False) if self.remat else Block
        blocks = nn.scan(
            block,
            variable_axes={"params": 0, "lora": 0},
            split_rngs={"params": True},
            in_axes=(0, 0, nn.broadcast),
            length=self.cfg.num_layers,
            unroll=self.cfg.num_layers if self.unroll else 1,
        )(self.cfg, self.dtype, self.lora_scale, keep_kv, name="layers")
        stream, kept = blocks(stream, jnp.arange(self.cfg.num_layers), prefix_kv, context)
        norm = layers.RMSNorm(self.cfg.rms_norm_eps, self.dtype, name="norm")
        finished: dict[str, Any] = {
            part: norm(value)
            for part, value in (("prefix", stream.prefix), ("branch", stream.branch))
            if value is not None
        }
        return dataclasses.replace(stream, **finished), kept


def _with_deep(
    x: Float[Array, "P S D"], deep: Float[Array, "U P S D"] | None, layer: Int[Array, ""]
) -> Float[Array, "P S D"]:
    if deep is None:
        return x
    return x + jnp.where(layer < deep.shape[0], deep[jnp.minimum(layer, deep.shape[0] - 1)], 0)


def _write(cache: KeyValue, own: KeyValue, layer: Int[Array, ""], step: Int[Array, ""]) -> KeyValue:
    """Puts one step's keys at [layer, :, :, :, step]."""
    start = (layer, 0, 0, 0, step, 0)
    return jax.tree.map(lambda all_layers, new: jax.lax.dynamic_update_slice(all_layers, new[None], start), cache, own)
