"""Layers shared by towers and decoder: linear maps with an optional adapter, norms, rotary angles."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Float, Int

from vlrl.types import Array


class Dense(nn.Module):
    """y = x W (+ b) (+ alpha/rank * x A B where the `lora` collection holds A and B for this place).

    Without the collection this is the frozen base: the reference policy is the same apply with one collection less.
    """

    features: int
    use_bias: bool = False
    lora_scale: float = 0.0
    dtype: jnp.dtype = jnp.dtype("float32")

    @nn.compact
    def __call__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        # Rows in one axis: with several, XLA's CPU backend makes the weight gradient half as fast.
        rows = x.reshape(-1, x.shape[-1])
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], self.features))
        y = rows @ kernel.astype(self.dtype)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
            y += jnp.broadcast_to(bias.astype(self.dtype), y.shape)
        if self.has_variable("lora", "a"):
            a: Array = self.get_variable("lora", "a")
            b: Array = self.get_variable("lora", "b")
            y += self.lora_scale * ((rows @ a.astype(self.dtype)) @ b.astype(self.dtype))
        return y.reshape(*x.shape[:-1], self.features)


class RMSNorm(nn.Module):
    eps: float
    dtype: jnp.dtype = jnp.dtype("float32")

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        # float32: the mean of squares overflows bfloat16's 8 bits of mantissa long before it overflows its range.
        x = x.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.eps)
        return jnp.broadcast_to(scale.astype(self.dtype), x.shape) * x.astype(self.dtype)


class LayerNorm(nn.Module):
    eps: float
    dtype: jnp.dtype = jnp.dtype("float32")

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        x = x.astype(jnp.float32)
        x = x - jnp.mean(x, axis=-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.eps)
        # Scaled before it is rounded, as torch does.
        scale, bias = (jnp.broadcast_to(part.astype(jnp.float32), x.shape) for part in (scale, bias))
        return (x * scale + bias).astype(self.dtype)


def mrope_angles(
    positions: Int[Array, "P 3 T"],
    head_dim: int,
    sections: tuple[int, int, int] | None,
    theta: float,
    interleaved: bool = False,
) -> Float[Array, "P T half"]:
    """Angles of multimodal rotary positions: frequency i turns with time, row or column (axis_of_frequency); without
    sections all turn with the first of the three."""
    half = head_dim // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    axis = axis_of_frequency(sections or (half, 0, 0), interleaved)
    chosen = jnp.take(positions.astype(jnp.float32), axis, axis=1)
    return jnp.swapaxes(chosen, 1, 2) * frequencies[None, None]


def axis_of_frequency(sections: tuple[int, int, int], interleaved: bool) -> Int[np.ndarray, " half"]:
    """0 time, 1 row, 2 column: in sections one after the other (Qwen2.5-VL), or in turns T H W T H W ... until the
    shorter ones are spent, then time (Qwen3-VL; transformers modeling_qwen3_vl.py apply_interleaved_mrope)."""
    if not interleaved:
        return np.repeat(np.arange(3), sections)
    axis = np.zeros(sum(sections), int)
    for which in (1, 2):
        axis[which : 3 * sections[which] : 3] = which
    return axis


def axial_angles(rope: Int[Array, "P I N 2"], head_dim: int) -> Float[Array, "P I N half"]:
    """Angles of the vision towers: the first quarter of the head turns with the row, the second with the column."""
    quarter = head_dim // 4
    frequencies = 10000.0 ** (-jnp.arange(quarter, dtype=jnp.float32) / quarter)
    angles = jnp.outer(rope.astype(jnp.float32), frequencies)
    return angles.reshape(*rope.shape[:-1], 2 * quarter)


def rotate(x: Float[Array, "... T K"], angles: Float[Array, "... T half"]) -> Float[Array, "... T K"]:
    """Rotates the halves of each head against each other; float32 inside, since angles reach thousands of radians."""
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
