"""Schedule and update by hand."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vlrl.config import OptConfig
from vlrl.rl import optimizer


def rates(cfg, steps, at):
    return [float(optimizer.learning_rate(cfg, steps, step)) for step in at]


def test_cosine_falls_from_the_peak_to_zero():
    assert rates(OptConfig(lr=2.0), 8, [0, 4, 8, 9]) == pytest.approx([2.0, 1.0, 0.0, 0.0], abs=1e-6)
    assert rates(OptConfig(lr=2.0), 6, [2]) == pytest.approx([2.0 * 0.75], abs=1e-6)  # cos 60 degrees


def test_warm_up_rises_linearly_and_starts_above_zero():
    cfg = OptConfig(lr=1.0, warmup_steps=4)
    assert rates(cfg, 12, [0, 1, 2, 3, 4, 8, 12]) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 0.5, 0.0], abs=1e-6)


def test_constant_schedule_keeps_the_peak():
    assert rates(OptConfig(lr=0.5, schedule="constant"), 4, [0, 3, 4]) == [0.5, 0.5, 0.5]


def first_update(cfg, gradient, weights):
    transform = optimizer.make(cfg, 10)
    updates, _ = transform.update(
        {"w": jnp.array(gradient)}, transform.init({"w": jnp.array(weights)}), {"w": jnp.array(weights)}
    )
    return np.asarray(updates["w"])


def test_first_update_is_a_signed_step_with_decoupled_decay():
    # Adam's first step is lr * sign(gradient); decay adds lr * .01 * weight.
    cfg = OptConfig(lr=0.1, max_grad_norm=5.0)
    np.testing.assert_allclose(first_update(cfg, [3.0, -4.0], [10.0, 0.0]), [-0.1 - 0.01, 0.1], rtol=1e-5)


def test_gradient_is_clipped_by_its_global_norm():
    # Norm 50 becomes 5: the second moment, not the first step, shows it.
    transform = optimizer.make(OptConfig(), 10)
    state = transform.init({"w": jnp.zeros(2)})
    _, state = transform.update({"w": jnp.array([30.0, -40.0])}, state, {"w": jnp.zeros(2)})
    np.testing.assert_allclose(optax.tree.get(state, "mu")["w"], [0.1 * 3, -0.1 * 4], rtol=1e-5)


def test_updates_follow_the_schedule():
    cfg, weights = OptConfig(lr=1.0, weight_decay=0.0), {"w": jnp.zeros(1)}
    transform = optimizer.make(cfg, 2)
    state, sizes = transform.init(weights), []
    for _ in range(3):
        updates, state = transform.update({"w": jnp.ones(1)}, state, weights)
        sizes.append(-float(updates["w"][0]))
    assert sizes == pytest.approx([1.0, 0.5, 0.0], abs=1e-5)


def test_finite_means_every_leaf():
    assert bool(optimizer.all_finite({"a": jnp.ones(3), "b": {"c": jnp.zeros((2, 2))}}))
    assert not bool(optimizer.all_finite({"a": jnp.ones(3), "b": {"c": jnp.array([1.0, jnp.nan])}}))
    assert not bool(optimizer.all_finite({"a": jnp.array(-jnp.inf)}))
    assert bool(optimizer.all_finite({}))


@pytest.mark.parametrize(
    ("cfg", "steps", "message"),
    [
        (OptConfig(schedule="linear"), 10, r"opt\.schedule: no schedule 'linear'; choose one of cosine, constant"),
        (OptConfig(), 0, "steps: 0"),
        (OptConfig(max_grad_norm=0.0), 10, r"opt\.max_grad_norm: 0\.0"),
    ],
)
def test_impossible_settings_are_named(cfg, steps, message):
    with pytest.raises(ValueError, match=message):
        optimizer.make(cfg, steps)
