"""Floating-point operations that a step needs, counted from shapes: what `mfu` is measured against.

Only what the algorithm asks for: real tokens, no padding, nothing computed twice. [m, k] times [k, n] is 2mkn.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from vlrl.models.config import Qwen25Vision, VlmConfig
from vlrl.types import PrefixInput

PEAK_FLOPS: dict[str, float] = {
    # Dense bfloat16 of one device, from the makers' data sheets, by jax's device_kind.
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "TPU7x": 2307e12,
}


def kernel_size(tree: Mapping[str, Any]) -> int:
    """Numbers in all matrices of a parameter tree: half the FLOPs of one token's products with them."""
    return sum(
        kernel_size(value) if isinstance(value, Mapping) else int(np.prod(value.shape)) * (name == "kernel")
        for name, value in tree.items()
    )


def vision(cfg: VlmConfig, base: Mapping[str, Any], prefix: PrefixInput) -> float:
    """One pass of the tower over a batch's real patches."""
    tower = cfg.vision
    if not tower.depth:
        return 0.0
    real = np.asarray(prefix.vision.window) >= 0
    in_slice = real.sum(axis=-1).astype(float)
    per_patch = kernel_size(base["visual"]) - kernel_size(base["visual"]["merger"])
    products = 2.0 * (per_patch + kernel_size(base["visual"]["merger"]) / tower.merge_units) * in_slice.sum()
    pairs = np.sum(in_slice**2) * tower.depth
    if isinstance(tower, Qwen25Vision):
        full = sum(block < tower.depth for block in tower.fullatt_block_indexes)
        pairs = np.sum(in_slice**2) * full + _window_pairs(prefix) * (tower.depth - full)
    return products + 4.0 * tower.hidden_size * pairs


def _window_pairs(prefix: PrefixInput) -> float:
    """Pairs of patches that share a window."""
    rows = np.asarray(prefix.vision.window).reshape(-1, prefix.vision.window.shape[-1])
    return float(sum(np.sum(np.unique(row[row >= 0], return_counts=True)[1] ** 2) for row in rows))


def decoder(
    cfg: VlmConfig, base: Mapping[str, Any], prefix_length: Int[np.ndarray, " P"], branch_length: Int[np.ndarray, "P G"]
) -> float:
    """One causal pass over prompts, held once, and their branches, with logits for every branch token."""
    prompt, branch = prefix_length.astype(float), branch_length.astype(float)
    products = 2.0 * kernel_size(base["decoder"]) * (prompt.sum() + branch.sum())
    pairs = np.sum(prompt**2) / 2 + np.sum(branch * prompt[:, None] + branch**2 / 2)
    attention = 4.0 * cfg.num_layers * cfg.num_heads * cfg.head_dim * pairs
    return products + attention + 2.0 * cfg.hidden_size * cfg.vocab_size * branch.sum()


def grpo_step(
    cfg: VlmConfig,
    base: Mapping[str, Any],
    prefix: PrefixInput,
    branch_length: Int[np.ndarray, "P G"],
    inner_iterations: int,
) -> float:
    """The policy's part of a step: video encoded once, sampling, reference, and each update forward and back.

    Back is once more the forward products: the weights are frozen, the adapters' own share is left out. The referee's
    part is not in it.
    """
    once = decoder(cfg, base, np.asarray(prefix.length), branch_length)
    old = 0 if inner_iterations == 1 else 1
    return vision(cfg, base, prefix) + once * (2 + old + 2 * inner_iterations)


def utilization(flops: float, seconds: float) -> dict[str, float]:
    """`tflops_per_s`, and `mfu` of all devices' bfloat16 peak; NaN where the device's peak is not known (CPU)."""
    devices = jax.devices()
    peak = PEAK_FLOPS.get(devices[0].device_kind, float("nan")) * len(devices)
    return {"tflops_per_s": flops / seconds / 1e12, "mfu": flops / seconds / peak}
