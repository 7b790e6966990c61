"""InternViT and InternVL's projector: each tile of one fixed size to features of the decoder's width.

A tile attends to itself only, through its class token as well, which is dropped at the end. There is no norm after the
last block. (transformers modeling_internvl.py; OpenGVLab/InternVL modeling_intern_vit.py)
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float

from vlrl.models import attention, layers
from vlrl.models.config import InternVision
from vlrl.types import Array, VisionInput

QK_NORM_EPS = 1e-6
PROJECTOR_EPS = 1e-5
"""Of torch's LayerNorm; config.json has none for the projector."""


class Block(nn.Module):
    cfg: InternVision
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self, x: Float[Array, "P I N D"], visible: Bool[Array, "P I N N"]
    ) -> tuple[Float[Array, "P I N D"], None]:
        cfg = self.cfg
        dense = lambda features, name, bias=True: layers.Dense(features, bias, dtype=self.dtype, name=name)  # noqa: E731
        norm = lambda name: layers.LayerNorm(cfg.layer_norm_eps, self.dtype, name=name)  # noqa: E731
        y = norm("norm1")(x)
        q, k, v = (dense(cfg.hidden_size, f"{part}_proj", cfg.qkv_bias)(y) for part in "qkv")
        if cfg.qk_norm:  # over all heads together
            q = layers.RMSNorm(QK_NORM_EPS, self.dtype, name="q_norm")(q)
            k = layers.RMSNorm(QK_NORM_EPS, self.dtype, name="k_norm")(k)
        q, k, v = (attention.split_heads(part, cfg.num_heads) for part in (q, k, v))
        y = dense(cfg.hidden_size, "proj")(attention.join_heads(attention.slice_attention(q, k, v, visible)))
        x += self._scaled("scale1", y)
        y = jax.nn.gelu(dense(cfg.intermediate_size, "fc1")(norm("norm2")(x)), approximate=False)
        return x + self._scaled("scale2", dense(cfg.hidden_size, "fc2")(y)), None

    def _scaled(self, name: str, y: Float[Array, "P I N D"]) -> Float[Array, "P I N D"]:
        """Layer scale (arXiv 2103.17239)."""
        scale = self.param(name, nn.initializers.constant(0.1), (y.shape[-1],))
        return jnp.broadcast_to(scale.astype(self.dtype), y.shape) * y


class Projector(nn.Module):
    """Four neighbouring patches become one token of the decoder's width.

    Patches come in merge order, so pixel shuffle is a reshape: channels of a unit are its patches row by row, as in
    transformers' pixel_shuffle.
    """

    cfg: InternVision
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Float[Array, "P I N D"]) -> Float[Array, "P M out"]:
        out = self.cfg.out_hidden_size
        x = x.reshape(x.shape[0], -1, self.cfg.merge_units * self.cfg.hidden_size)
        x = layers.LayerNorm(PROJECTOR_EPS, self.dtype, name="norm")(x)
        x = layers.Dense(out, use_bias=True, dtype=self.dtype, name="fc1")(x)
        return layers.Dense(out, use_bias=True, dtype=self.dtype, name="fc2")(jax.nn.gelu(x, approximate=False))


class VisionTower(nn.Module):
    cfg: InternVision
    dtype: jnp.dtype
    unroll: bool = False

    @nn.compact
    def __call__(self, vision: VisionInput) -> Float[Array, "P M out"]:
        cfg = self.cfg
        x = self._embed(vision)
        real = jnp.pad(vision.window >= 0, ((0, 0), (0, 0), (1, 0)), constant_values=True)
        visible = real[..., :, None] == real[..., None, :]
        blocks = nn.scan(
            Block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,
            length=cfg.depth,
            unroll=cfg.depth if self.unroll else 1,
        )(cfg, self.dtype, name="blocks")
        x, _ = blocks(x, visible)
        return Projector(cfg, self.dtype, name="merger")(x[:, :, 1:])

    def _embed(self, vision: VisionInput) -> Float[Array, "P I N1 D"]:
        """Class token, then patches, each with the learned position of its place in the tile."""
        width, side = self.cfg.hidden_size, self.cfg.image_size // self.cfg.patch_size
        embed = layers.Dense(width, use_bias=True, dtype=self.dtype, name="patch_embed")
        token = self.param("class_token", nn.initializers.zeros, (1, 1, width)).astype(self.dtype)
        positions = self.param("positions", nn.initializers.normal(0.02), (1, 1 + side**2, width))[0].astype(self.dtype)
        place = 1 + vision.rope[..., 0] * side + vision.rope[..., 1]
        patches = embed(vision.patches.astype(self.dtype)) + positions[place]
        first = jnp.broadcast_to(token + positions[None, :1], (*patches.shape[:2], 1, width))
        return jnp.concatenate([first, patches], axis=2)
