"""Vision tower of Qwen3-VL: patches of each slice to merged features and the feature maps of DeepStack.

A slice (one image, or one pair of frames) attends to itself only, in every layer. Learned positions are a square table
that is stretched over each frame's grid; rotary positions count patches. After the blocks that `deepstack_indexes`
names, a merger of its own makes one further map (DeepStack, arXiv 2406.04334), which the decoder adds after its first
layers. (transformers modeling_qwen3_vl.py)
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float, Int

from vlrl.models import attention, layers
from vlrl.models.config import Qwen3Vision
from vlrl.types import Array, VisionInput

NORM_EPS = 1e-6


class Block(nn.Module):
    cfg: Qwen3Vision
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self,
        carry: tuple[Float[Array, "P I N D"], Float[jax.Array, "U P I N D"]],
        map_number: Int[Array, ""],
        angles: Float[Array, "P I N half"],
        visible: Bool[Array, "P I N N"],
    ) -> tuple[tuple[Float[Array, "P I N D"], Float[jax.Array, "U P I N D"]], None]:
        """Also writes its output to map `map_number`; a number past the last map writes nothing."""
        x, maps = carry
        cfg = self.cfg
        dense = lambda features, name: layers.Dense(features, use_bias=True, dtype=self.dtype, name=name)  # noqa: E731
        norm = lambda name: layers.LayerNorm(NORM_EPS, self.dtype, name=name)  # noqa: E731
        qkv = dense(3 * cfg.hidden_size, "qkv")(norm("norm1")(x))
        q, k, v = (attention.split_heads(part, cfg.num_heads) for part in jnp.split(qkv, 3, axis=-1))
        q, k = (layers.rotate(part, angles[:, :, None]) for part in (q, k))
        x += dense(cfg.hidden_size, "proj")(attention.join_heads(attention.slice_attention(q, k, v, visible)))
        y = jax.nn.gelu(dense(cfg.intermediate_size, "fc1")(norm("norm2")(x)), approximate=True)
        x += dense(cfg.hidden_size, "fc2")(y)
        return (x, maps.at[map_number].set(x, mode="drop") if cfg.num_deep else maps), None


class Merger(nn.Module):
    """Four neighbouring patches become one token of the decoder's width; those of DeepStack norm all four together."""

    cfg: Qwen3Vision
    dtype: jnp.dtype
    norm_merged: bool

    @nn.compact
    def __call__(self, _: None, x: Float[Array, "P I N D"]) -> tuple[None, Float[Array, "P M out"]]:
        """A step of a scan over mergers, without a carry."""
        norm = layers.LayerNorm(NORM_EPS, self.dtype, name="norm")
        merged = (x.shape[0], -1, self.cfg.merge_units * self.cfg.hidden_size)
        x = norm(x.reshape(merged)) if self.norm_merged else norm(x).reshape(merged)
        x = layers.Dense(x.shape[-1], use_bias=True, dtype=self.dtype, name="fc1")(x)
        out = layers.Dense(self.cfg.out_hidden_size, use_bias=True, dtype=self.dtype, name="fc2")
        return None, out(jax.nn.gelu(x, approximate=False))


class VisionTower(nn.Module):
    cfg: Qwen3Vision
    dtype: jnp.dtype
    unroll: bool = False

    @nn.compact
    def __call__(self, vision: VisionInput) -> Float[Array, "P M E"]:
        """The merged features, then the maps of DeepStack in the order of their blocks, on the last axis."""
        cfg = self.cfg
        x = layers.Dense(cfg.hidden_size, use_bias=True, dtype=self.dtype, name="patch_embed")(
            vision.patches.astype(self.dtype)
        )
        table = nn.Embed(cfg.num_position_embeddings, cfg.hidden_size, name="positions").embedding
        x += interpolated(table, vision.rope).astype(self.dtype)
        real = vision.window >= 0
        # Blocks that make no map get a number past the last one.
        map_number = (
            jnp.full(cfg.depth, cfg.num_deep).at[jnp.array(cfg.deepstack_indexes, int)].set(jnp.arange(cfg.num_deep))
        )
        blocks = nn.scan(
            Block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast),
            length=cfg.depth,
            unroll=cfg.depth if self.unroll else 1,
        )(cfg, self.dtype, name="blocks")
        angles = layers.axial_angles(vision.rope, cfg.hidden_size // cfg.num_heads)
        maps = jnp.zeros((cfg.num_deep, *x.shape), self.dtype)
        (x, maps), _ = blocks((x, maps), map_number, angles, real[..., :, None] == real[..., None, :])
        _, merged = Merger(cfg, self.dtype, norm_merged=False, name="merger")(None, x)
        deep = self._deep(maps) if cfg.num_deep else ()
        return jnp.concatenate([merged, *deep], axis=-1)

    def _deep(self, maps: Float[jax.Array, "U P I N D"]) -> Float[Array, "U P M out"]:
        """Each map through its own merger."""
        mergers = nn.scan(Merger, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.cfg.num_deep)(
            self.cfg, self.dtype, norm_merged=True, name="deep_mergers"
        )
        return mergers(None, maps)[1]


def interpolated(table: Float[Array, "rows D"], rope: Int[Array, "P I N 2"]) -> Float[Array, "P I N D"]:
    """Learned positions of patches at (row, column) of their frames: the square table stretched over the frame, corner
    on corner, bilinear between its four nearest entries; float32.

    A frame's last row and column are those of its real patches: padding is at (0, 0).
    """
    side = round(table.shape[0] ** 0.5)
    last = jnp.maximum(jnp.max(rope, axis=2, keepdims=True), 1)
    place = rope.astype(jnp.float32) * (side - 1) / last.astype(jnp.float32)
    low = jnp.clip(jnp.floor(place).astype(jnp.int32), 0, side - 1)
    high = jnp.minimum(low + 1, side - 1)
    upper = place - low
    table = table.astype(jnp.float32)
    total: Array = jnp.zeros((*rope.shape[:-1], table.shape[1]), jnp.float32)
    for rows, row_share in ((low[..., 0], 1 - upper[..., 0]), (high[..., 0], upper[..., 0])):
        for columns, share in ((low[..., 1], 1 - upper[..., 1]), (high[..., 1], upper[..., 1])):
            total += (row_share * share)[..., None] * table[rows * side + columns]
    return total
