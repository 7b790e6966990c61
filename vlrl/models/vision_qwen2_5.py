"""Vision tower of Qwen2.5-VL: patches of each slice to merged features.

A slice (one image, or one pair of frames) attends to itself only. Most layers attend within 112 px windows, the layers
named by `fullatt_block_indexes` within the whole slice. Windows are a mask, so features stay in raster order of merged
units and nothing is permuted.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float

from vlrl.models import attention, layers
from vlrl.models.config import Qwen25Vision
from vlrl.types import Array, VisionInput

NORM_EPS = 1e-6


class Block(nn.Module):
    cfg: Qwen25Vision
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "P I N D"],
        is_full: Bool[Array, ""],
        angles: Float[Array, "P I N half"],
        same_window: Bool[Array, "P I N N"],
        same_slice: Bool[Array, "P I N N"],
    ) -> tuple[Float[Array, "P I N D"], None]:
        dense = lambda features, name: layers.Dense(features, use_bias=True, dtype=self.dtype, name=name)  # noqa: E731
        qkv = dense(3 * self.cfg.hidden_size, "qkv")(layers.RMSNorm(NORM_EPS, self.dtype, name="norm1")(x))
        q, k, v = (attention.split_heads(part, self.cfg.num_heads) for part in jnp.split(qkv, 3, axis=-1))
        q, k = (layers.rotate(part, angles[:, :, None]) for part in (q, k))
        visible = jnp.where(is_full, same_slice, same_window)
        x += dense(self.cfg.hidden_size, "proj")(attention.join_heads(attention.slice_attention(q, k, v, visible)))
        y = layers.RMSNorm(NORM_EPS, self.dtype, name="norm2")(x)
        gate = jax.nn.silu(dense(self.cfg.intermediate_size, "gate_proj")(y))
        x += dense(self.cfg.hidden_size, "down_proj")(gate * dense(self.cfg.intermediate_size, "up_proj")(y))
        return x, None


class Merger(nn.Module):
    """Four neighbouring patches become one token of the decoder's width."""

    cfg: Qwen25Vision
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Float[Array, "P I N D"]) -> Float[Array, "P M out"]:
        x = layers.RMSNorm(NORM_EPS, self.dtype, name="norm")(x)
        x = x.reshape(x.shape[0], -1, self.cfg.merge_units * self.cfg.hidden_size)
        x = layers.Dense(x.shape[-1], use_bias=True, dtype=self.dtype, name="fc1")(x)
        return layers.Dense(self.cfg.out_hidden_size, use_bias=True, dtype=self.dtype, name="fc2")(
            jax.nn.gelu(x, approximate=False)
        )


class VisionTower(nn.Module):
    cfg: Qwen25Vision
    dtype: jnp.dtype
    unroll: bool = False

    @nn.compact
    def __call__(self, vision: VisionInput) -> Float[Array, "P M out"]:
        cfg = self.cfg
        x = layers.Dense(cfg.hidden_size, dtype=self.dtype, name="patch_embed")(vision.patches.astype(self.dtype))
        angles = layers.axial_angles(vision.rope, cfg.hidden_size // cfg.num_heads)
        window = vision.window
        same_window = window[..., :, None] == window[..., None, :]
        same_slice = (window >= 0)[..., :, None] == (window >= 0)[..., None, :]
        is_full = jnp.zeros(cfg.depth, bool).at[jnp.array(cfg.fullatt_block_indexes, int)].set(True)
        blocks = nn.scan(
            Block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
            length=cfg.depth,
            unroll=cfg.depth if self.unroll else 1,
        )(cfg, self.dtype, name="blocks")
        x, _ = blocks(x, is_full, angles, same_window, same_slice)
        return Merger(cfg, self.dtype, name="merger")(x)
