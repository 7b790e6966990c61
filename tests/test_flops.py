"""FLOPs of a step against XLA's own count of the same computation, and by hand."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import tiny_vlm

from vlrl import flops
from vlrl.models import vlm

CFG = dataclasses.replace(tiny_vlm.CFG, num_layers=3)


@pytest.fixture(scope="module")
def base():
    return tiny_vlm.random_params(CFG)


@pytest.fixture(scope="module")
def prefix():
    """One prompt that fills its bucket, so that XLA counts no padding."""
    row = tiny_vlm.row(CFG, tiny_vlm.text(*range(2, 12)), tiny_vlm.media(CFG, "video", (16, 16), 8), name="clip")
    return tiny_vlm.collate(CFG, [row], len(row.tokens), slices=4, patches=16)


def counted(run, *inputs):
    """FLOPs of all matrix products of the traced program: an account of its own, whatever a compiler adds."""
    return products(jax.make_jaxpr(run)(*inputs).jaxpr)


def products(jaxpr):
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shared = np.prod([equation.invars[0].aval.shape[axis] for axis in contracted])
            total += 2 * np.prod(equation.outvars[0].aval.shape) * shared
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(parameter, "jaxpr", parameter)
            total += times * products(inner) if hasattr(inner, "eqns") else 0
    return total


def test_decoder_equals_the_products_of_the_program_but_for_the_masked_half(base, prefix):
    branches = tiny_vlm.branches_of([[[5] * 24] * 4], 24)
    model = vlm.Vlm(CFG)
    features = np.zeros((1, 16, CFG.hidden_size), np.float32)

    def run(base, prefix, features, branches):
        _, hidden = vlm.joint_hidden(model, {"params": base}, prefix, features, branches)
        return vlm.next_logits(model, {"params": base}, hidden)

    theirs = counted(run, base, prefix, features, branches)
    ours = flops.decoder(CFG, base, prefix.length, branches.length)
    length = float(prefix.length[0])
    # The program multiplies whole squares and masks them afterwards: the other half of prompt^2 and branch^2.
    masked = 4.0 * CFG.num_layers * CFG.num_heads * CFG.head_dim * (length**2 / 2 + 4 * 24**2 / 2)
    assert ours + masked == pytest.approx(theirs, rel=1e-9)


def test_tower_equals_the_products_of_the_program_where_all_blocks_see_the_slice(base, prefix):
    cfg = tiny_vlm.with_vision(CFG, fullatt_block_indexes=(0, 1))
    theirs = counted(functools.partial(vlm.encode_video, vlm.Vlm(cfg)), base, prefix.vision)
    assert flops.vision(cfg, base, prefix) == pytest.approx(theirs, rel=1e-9)


def test_windows_cost_their_own_pairs_only(base, prefix):
    # 16 x 16 px in patches of 4: a slice of 16 patches in four windows of 4.
    full, windowed = (tiny_vlm.with_vision(CFG, fullatt_block_indexes=blocks) for blocks in ((0, 1), (1,)))
    wide = dataclasses.replace(windowed, vision=dataclasses.replace(windowed.vision, window_size=8))
    row = tiny_vlm.row(wide, tiny_vlm.text(2), tiny_vlm.media(wide, "video", (16, 16), 8), name="clip")
    split = tiny_vlm.collate(wide, [row], len(row.tokens), slices=4, patches=16)
    saved = flops.vision(full, base, prefix) - flops.vision(wide, base, split)
    assert saved == 4 * 32 * 4 * (16**2 - 4 * 4**2)


def test_a_step_is_two_passes_and_two_for_each_update(base, prefix):
    lengths = np.array([[3, 5]])
    once, seen = flops.decoder(CFG, base, prefix.length, lengths), flops.vision(CFG, base, prefix)
    assert flops.grpo_step(CFG, base, prefix, lengths, 1) == pytest.approx(seen + 4 * once)
    assert flops.grpo_step(CFG, base, prefix, lengths, 3) == pytest.approx(seen + 9 * once)


def test_utilization_is_a_share_of_all_devices_peak(monkeypatch):
    kind = jax.devices()[0].device_kind
    monkeypatch.setitem(flops.PEAK_FLOPS, kind, 2e12)
    measured = flops.utilization(3e12, 6.0)
    assert measured == {"tflops_per_s": 0.5, "mfu": pytest.approx(0.25 / len(jax.devices()))}
    monkeypatch.delitem(flops.PEAK_FLOPS, kind)
    assert np.isnan(flops.utilization(3e12, 6.0)["mfu"])
