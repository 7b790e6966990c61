"""The adapter: low-rank updates of the decoder's linear maps, a small tree of its own."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from vlrl.config import LoraConfig


def init(key: PRNGKeyArray, base: Any, cfg: LoraConfig) -> dict[str, Any]:
    """A fresh adapter for {"lora": ...}: a is normal with variance 1/in, b is zero, so it changes nothing yet.

    a is [L, in, rank] and b [L, rank, out], float32 whatever the base: the optimizer's small steps vanish in bfloat16.
    Raises ValueError naming a target that the decoder has not, and where there is none.
    """
    layers = base["decoder"]["layers"]
    if not cfg.targets:
        raise ValueError("lora.targets: empty, nothing would be trained; name linear maps of the decoder, as q_proj")
    adapter = {}
    for number, target in enumerate(cfg.targets):
        if target not in layers or "kernel" not in layers[target]:
            having = [name for name, leaf in layers.items() if "kernel" in leaf]
            raise ValueError(f"lora.targets: {target!r} is no linear map of the decoder; choose from {having}")
        depth, fan_in, fan_out = layers[target]["kernel"].shape
        a = jax.random.normal(jax.random.fold_in(key, number), (depth, fan_in, cfg.rank)) / jnp.sqrt(fan_in)
        adapter[target] = {"a": a, "b": jnp.zeros((depth, cfg.rank, fan_out))}
    return {"decoder": {"layers": adapter}}


def scale(cfg: LoraConfig) -> float:
    """What multiplies x a b."""
    return cfg.alpha / cfg.rank
