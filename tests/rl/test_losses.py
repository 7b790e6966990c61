"""Losses by hand, against NumPy in float64, and against themselves under every split into micro-batches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlrl.config import GrpoConfig
from vlrl.rl import losses

CFG = GrpoConfig()
RULES = sorted(losses.LOSSES)
MAX_NEW_TOKENS = 8


def full(value):
    return jnp.full((1, 1, 1), value, jnp.float32)


ONE = np.ones((1, 1, 1), bool)


def surrogate(ratio, advantage, cfg=CFG):
    """Loss and gradient with respect to logp of one token."""

    def loss(logp):
        return losses.token_loss(logp, full(-1.0), jnp.full((1, 1), advantage), ONE, cfg).sum()

    value, gradient = jax.value_and_grad(loss)(full(-1.0 + np.log(ratio)))
    return float(value), float(gradient.sum())


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient"),
    [
        # -min(ratio * A, clip(ratio, .8, 1.2) * A); the gradient is -ratio * A, or 0 where the clip is the lesser.
        (1.0, 1.0, -1.0, -1.0),
        (1.5, 1.0, -1.2, 0.0),
        (0.5, 1.0, -0.5, -0.5),
        (1.0, -1.0, 1.0, 1.0),
        (1.5, -1.0, 1.5, 1.5),
        (0.5, -1.0, 0.8, 0.0),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_clip_binds_on_the_side_that_would_gain(ratio, advantage, value, gradient):
    assert surrogate(ratio, advantage) == pytest.approx((value, gradient), abs=1e-6)


def test_clip_higher_raises_the_upper_bound_alone():
    cfg = GrpoConfig(loss="dapo", clip_high=0.28)
    assert surrogate(1.5, 1.0, cfg) == pytest.approx((-1.28, 0.0), abs=1e-6)
    assert surrogate(1.25, 1.0, cfg) == pytest.approx((-1.25, -1.25), abs=1e-6)
    assert surrogate(0.5, -1.0, cfg) == pytest.approx((0.8, 0.0), abs=1e-6)


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    # Weight min(1.5, 1.2), loss -weight * A * logp at logp = -1 + log 1.5.
    value, gradient = surrogate(1.5, 1.0, GrpoConfig(loss="cispo"))
    assert value == pytest.approx(-1.2 * (-1 + np.log(1.5)), abs=1e-6)
    assert gradient == pytest.approx(-1.2, abs=1e-6)


def test_gspo_clips_the_mean_ratio_of_the_completion():
    # Log ratios log 2 and log .5 cancel: ratio 1 at both tokens, nothing clipped, the padding token outside.
    cfg = GrpoConfig(loss="gspo")
    logp, old = jnp.log(jnp.array([[[2.0, 0.5, 9.0]]])), jnp.zeros((1, 1, 3))
    mask = np.array([[[True, True, False]]])
    np.testing.assert_allclose(losses.token_loss(logp, old, jnp.ones((1, 1)), mask, cfg), [[[-1, -1, 0]]], atol=1e-6)
    logp = jnp.log(jnp.array([[[4.0, 1.0, 9.0]]]))
    np.testing.assert_allclose(
        losses.token_loss(logp, old, jnp.ones((1, 1)), mask, cfg), [[[-1.2, -1.2, 0]]], atol=1e-6
    )


def test_on_policy_every_rule_has_the_policy_gradient():
    for name in RULES:
        value, gradient = surrogate(1.0, 0.7, GrpoConfig(loss=name))
        assert gradient == pytest.approx(-0.7, abs=1e-6)
        assert value == pytest.approx(0.7 if name == "cispo" else -0.7, abs=1e-6)  # CISPO: -A * logp at logp = -1.


def test_k3_is_zero_with_zero_gradient_where_policy_is_reference():
    value, gradient = jax.value_and_grad(lambda logp: losses.kl_k3(logp, full(-2.0), 10.0).sum())(full(-2.0))
    assert (float(value), float(gradient.sum())) == (0.0, 0.0)


def test_k3_value_and_gradient_off_policy():
    # log ratio reference - policy = d: value exp(d) - d - 1, gradient with respect to logp 1 - exp(d).
    for difference in (-3.0, -0.5, 0.25, 2.0):
        value, gradient = jax.value_and_grad(lambda logp, d=difference: losses.kl_k3(logp, logp * 0 + d, 10.0).sum())(
            full(0.0)
        )
        assert float(value) == pytest.approx(np.exp(difference) - difference - 1, rel=1e-5)
        assert float(gradient.sum()) == pytest.approx(1 - np.exp(difference), rel=1e-5)


def test_k3_keeps_its_gradient_in_expectation():
    # Two tokens, policy softmax(theta) = (.5, .5), reference (.9, .1), samples from the policy: the k3 loss pulls
    # towards the reference, while the mean gradient of log(policy / reference) as a loss is 0.
    ref = jnp.log(jnp.array([0.9, 0.1])).reshape(1, 1, 2)

    def expected_loss(theta, estimator):
        logp = jax.nn.log_softmax(theta).reshape(1, 1, 2)
        return 0.5 * estimator(logp, ref).sum()

    k3 = jax.grad(expected_loss)(jnp.zeros(2), lambda logp, r: losses.kl_k3(logp, r, 10.0))
    k1 = jax.grad(expected_loss)(jnp.zeros(2), lambda logp, r: logp - r)
    np.testing.assert_allclose(k1, [0, 0], atol=1e-7)
    np.testing.assert_allclose(k3, [-0.4, 0.4], atol=1e-6)


@pytest.mark.parametrize("difference", [100.0, -100.0, 1e4])
@pytest.mark.parametrize("name", RULES)
def test_loss_and_gradient_stay_finite_far_from_reference_and_old_policy(name, difference):
    cfg = GrpoConfig(loss=name)

    def loss(logp):
        value, _ = losses.policy_loss(
            logp, full(difference), full(difference), -jnp.ones((1, 1)), ONE, losses.count(ONE), cfg, MAX_NEW_TOKENS
        )
        return value

    value, gradient = jax.value_and_grad(loss)(full(0.0))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_k3_far_from_the_reference_has_the_clamped_value():
    assert float(losses.kl_k3(full(0.0), full(100.0), 10.0).sum()) == pytest.approx(np.exp(10) - 11, rel=1e-5)


def test_mask_follows_lengths_and_validity():
    mask = losses.completion_mask(np.array([[2, 0, 4]]), np.array([[True, True, False]]), 4)
    assert np.asarray(mask).astype(int).tolist() == [[[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]]


def test_end_token_that_is_also_the_padding_token_counts():
    # Tokens [5, 0, 0, 0] with id 0 for both: length 2 says that the first 0 was sampled.
    mask = losses.completion_mask(np.array([[2]]), np.array([[True]]), 4)
    assert float(losses.count(mask).tokens) == 2


def test_log_probability_has_the_sampling_temperature():
    logits = np.array([[2.0, 0.0], [0.0, 0.0]], np.float32)
    # log softmax([4, 0])[0]
    np.testing.assert_allclose(losses.next_token_logp(logits, np.array([1, 0]), 0.5), [0, -0.0181], atol=5e-5)
    np.testing.assert_allclose(losses.next_token_logp(logits, np.array([1, 0]), 1.0), [0, -0.1269], atol=5e-5)


def test_log_probability_at_a_position_is_of_the_token_there():
    tokens, mask = np.array([10, 11, 12, 13]), np.array([False, False, True, False])
    logits = np.zeros((4, 16), np.float32)
    logits[1, 12] = 3.0  # Said after token 11: about the token at position 2.
    logp = losses.next_token_logp(logits, tokens, 1.0)
    np.testing.assert_allclose(np.asarray(logp)[mask], [3 - np.log(15 + np.exp(3))], rtol=1e-5)
    np.testing.assert_allclose(np.asarray(logp)[3], -np.log(16), rtol=1e-6)


def test_masked_mean_reads_only_the_mask():
    x, mask = np.array([[1.0, np.nan], [3.0, 5.0]], np.float32), np.array([[True, False], [True, True]])
    assert float(losses.masked_mean(x, mask)) == 3.0
    np.testing.assert_allclose(losses.masked_mean(x, mask, axis=1), [1, 4])
    np.testing.assert_allclose(losses.masked_mean(x, np.zeros_like(mask), axis=0), [0, 0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Lengths 2 and 4, one invalid completion of length 3, at most 8 tokens.
        ("grpo", [1 / 4, 1 / 8]),
        ("gspo", [1 / 4, 1 / 8]),
        ("dapo", [1 / 6, 1 / 6]),
        ("cispo", [1 / 6, 1 / 6]),
        ("dr_grpo", [1 / 16, 1 / 16]),
    ],
)
def test_token_weights_by_rule(name, expected):
    mask = losses.completion_mask(np.array([[2, 4, 3]]), np.array([[True, True, False]]), 5)
    weights = losses.token_weights(mask, losses.count(mask), GrpoConfig(loss=name), MAX_NEW_TOKENS)
    np.testing.assert_allclose(weights[0, 0], [expected[0]] * 2 + [0] * 3, rtol=1e-6)
    np.testing.assert_allclose(weights[0, 1], [expected[1]] * 4 + [0], rtol=1e-6)
    assert not np.asarray(weights[0, 2]).any()


def random_step(prompts=4, group=2, length=6, seed=0):
    rng = np.random.default_rng(seed)
    shape = (prompts, group, length)
    old = -rng.exponential(1.0, shape).astype(np.float32)
    valid = np.ones(shape[:2], bool)
    valid[1, 0] = False
    return {
        "logp": (old + rng.normal(0, 0.3, shape)).astype(np.float32),
        "old_logp": old,
        "ref_logp": (old + rng.normal(0, 0.5, shape)).astype(np.float32),
        "advantages": rng.normal(size=shape[:2]).astype(np.float32),
        "mask": np.asarray(losses.completion_mask(rng.integers(1, length + 1, shape[:2]), valid, length)),
    }


def loss_of(step, cfg, denominators):
    def loss(logp):
        return losses.policy_loss(
            logp,
            step["old_logp"],
            step["ref_logp"],
            step["advantages"],
            step["mask"],
            denominators,
            cfg,
            MAX_NEW_TOKENS,
        )

    (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(step["logp"])
    return float(value), gradient, metrics


def numpy_loss(logp, step, name):
    """The definitions, completion by completion, in float64."""
    total, lengths = 0.0, step["mask"].sum(-1)
    sequences, tokens = (lengths > 0).sum(), lengths.sum()
    for p, g in np.ndindex(*lengths.shape):
        n, advantage = lengths[p, g], float(step["advantages"][p, g])
        if n == 0:
            continue
        now, old = logp[p, g, :n], step["old_logp"][p, g, :n].astype(np.float64)
        ratio = np.exp(now - old)
        if name == "gspo":
            ratio = np.full(n, np.exp((now - old).mean()))
        policy = -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        difference = step["ref_logp"][p, g, :n] - now
        per_token = policy + 0.04 * (np.exp(difference) - difference - 1)
        share = {"grpo": n * sequences, "gspo": n * sequences, "dapo": tokens, "dr_grpo": sequences * MAX_NEW_TOKENS}
        total += per_token.sum() / share[name]
    return total


@pytest.mark.parametrize("name", ["grpo", "gspo", "dapo", "dr_grpo"])
def test_value_and_gradient_agree_with_the_definition(name):
    step = random_step()
    value, gradient, _ = loss_of(step, GrpoConfig(loss=name), losses.count(step["mask"]))
    logp = step["logp"].astype(np.float64)
    assert value == pytest.approx(numpy_loss(logp, step, name), rel=1e-5)
    for index in np.ndindex(*logp.shape):
        up, down = logp.copy(), logp.copy()
        up[index] += 1e-6
        down[index] -= 1e-6
        slope = (numpy_loss(up, step, name) - numpy_loss(down, step, name)) / 2e-6
        assert float(gradient[index]) == pytest.approx(slope, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batches_add_up_to_the_undivided_step(name, parts):
    step, cfg = random_step(), GrpoConfig(loss=name)
    denominators = losses.count(step["mask"])
    value, gradient, metrics = loss_of(step, cfg, denominators)
    pieces = [{key: array[rows] for key, array in step.items()} for rows in np.array_split(np.arange(4), parts)]
    results = [loss_of(piece, cfg, denominators) for piece in pieces]
    assert sum(result[0] for result in results) == pytest.approx(value, rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(np.concatenate([result[1] for result in results]), gradient, rtol=1e-6)
    for key, expected in metrics.items():
        assert sum(float(result[2][key]) for result in results) == pytest.approx(float(expected), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", RULES)
def test_padding_and_invalid_completions_change_nothing(name):
    step, cfg = random_step(), GrpoConfig(loss=name)
    value, gradient, _ = loss_of(step, cfg, losses.count(step["mask"]))
    junk = {key: np.where(step["mask"], step[key], np.nan) for key in ("logp", "old_logp", "ref_logp")}
    other_value, other_gradient, _ = loss_of(step | junk, cfg, losses.count(step["mask"]))
    assert other_value == value
    np.testing.assert_array_equal(np.asarray(other_gradient)[step["mask"]], np.asarray(gradient)[step["mask"]])
    assert not np.asarray(gradient)[~step["mask"]].any()


@pytest.mark.parametrize("name", RULES)
def test_permuting_prompts_permutes_the_gradient(name):
    step, cfg, order = random_step(), GrpoConfig(loss=name), [2, 0, 3, 1]
    value, gradient, _ = loss_of(step, cfg, losses.count(step["mask"]))
    permuted = {key: array[order] for key, array in step.items()}
    other_value, other_gradient, _ = loss_of(permuted, cfg, losses.count(step["mask"]))
    assert other_value == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(other_gradient, gradient[np.array(order)], rtol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_step_without_a_valid_completion_has_no_loss_and_no_gradient(name):
    step = random_step()
    step["mask"] = np.zeros_like(step["mask"])
    value, gradient, _ = loss_of(step, GrpoConfig(loss=name), losses.count(step["mask"]))
    assert value == 0
    assert not np.asarray(gradient).any()


def test_metrics_count_clipped_tokens_on_their_side():
    ratio = jnp.log(jnp.array([[[0.5, 1.5, 1.0, 9.0]], [[0.5, 1.5, 1.0, 9.0]]]))
    advantages, zeros = jnp.array([[1.0], [-1.0]]), jnp.zeros_like(ratio)
    mask = np.array([[[True, True, True, False]]] * 2)
    _, metrics = losses.policy_loss(ratio, zeros, ratio, advantages, mask, losses.count(mask), CFG, MAX_NEW_TOKENS)
    # Of six tokens one is clipped above (A > 0) and one below (A < 0).
    assert float(metrics["clip_ratio/high_mean"]) == pytest.approx(1 / 6)
    assert float(metrics["clip_ratio/low_mean"]) == pytest.approx(1 / 6)
    assert float(metrics["clip_ratio/region_mean"]) == pytest.approx(1 / 3)
    assert float(metrics["kl"]) == 0.0


def test_half_precision_input_is_computed_in_float32():
    step = random_step()
    halved = {key: jnp.asarray(step[key], jnp.bfloat16) for key in ("logp", "old_logp", "ref_logp")}
    exact = {key: jnp.asarray(array, jnp.float32) for key, array in halved.items()}
    value, gradient, _ = loss_of(step | halved, CFG, losses.count(step["mask"]))
    assert value == loss_of(step | exact, CFG, losses.count(step["mask"]))[0]
    assert gradient.dtype == jnp.bfloat16


def test_no_kl_weight_leaves_the_reference_out():
    step, cfg = random_step(), dataclasses.replace(CFG, kl_beta=0.0)
    value, _, _ = loss_of(step, cfg, losses.count(step["mask"]))
    moved = step | {"ref_logp": step["ref_logp"] + 1}
    assert loss_of(moved, cfg, losses.count(step["mask"]))[0] == value


def test_unknown_rule_is_named():
    with pytest.raises(ValueError, match=r"grpo\.loss: no rule 'ppo'; choose one of grpo, dr_grpo, dapo, gspo, cispo"):
        losses.rule(GrpoConfig(loss="ppo"))
