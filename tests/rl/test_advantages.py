"""Advantages by hand."""

import jax
import numpy as np
import pytest

from vlrl.config import GrpoConfig
from vlrl.rl import advantages

CFG = GrpoConfig()
RULES = sorted(advantages.ADVANTAGES)


def normalized(rewards, valid=None, rule="grpo"):
    rewards = np.array(rewards, np.float64)
    valid = np.ones(rewards.shape, bool) if valid is None else np.array(valid)
    return np.asarray(advantages.group_normalized(rewards, valid, GrpoConfig(advantage=rule)))


def test_two_of_four_right_gives_plus_and_minus_one_unbiased_deviation():
    # std = sqrt(4 * .25 / 3) = .57735
    np.testing.assert_allclose(normalized([[1, 0, 0, 1]]), [[0.866, -0.866, -0.866, 0.866]], atol=2e-4)


def test_abstaining_member_is_left_out_and_gets_zero():
    np.testing.assert_allclose(
        normalized([[1, np.nan, 0, 1]], [[True, False, True, True]]), [[0.577, 0, -1.155, 0.577]], atol=5e-4
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("junk", [np.nan, np.inf, 1e30, 0.0])
def test_value_of_an_abstaining_member_changes_nothing(rule, junk):
    valid = [[True, False, True, True]]
    np.testing.assert_array_equal(normalized([[3, junk, 0, 1]], valid, rule), normalized([[3, 7, 0, 1]], valid, rule))


@pytest.mark.parametrize("rule", RULES)
def test_group_with_none_or_one_valid_member_gets_zero(rule):
    rewards = [[1, np.nan, 0], [1, 2, 3]]
    assert not normalized(rewards, [[False] * 3, [False, True, False]], rule).any()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "group", [[0.1] * 3, [0.55] * 16, [3.125] * 4, [1e6 + 0.1] * 5, [0.1 + 0.2, 0.3, 0.3], [0.0] * 4]
)
def test_equal_rewards_give_exactly_zero_advantage(rule, group):
    assert not normalized([group], rule=rule).any()


@pytest.mark.parametrize("rule", RULES)
def test_small_real_spread_is_kept(rule):
    assert (normalized([[0.5, 0.501]], rule=rule)[0] != 0).all()


@pytest.mark.parametrize("rule", RULES)
def test_prompts_do_not_mix(rule):
    # Rewards differ between the prompts only: a misaligned group would see spread.
    assert not normalized([[0, 0, 0], [1, 1, 1]], rule=rule).any()
    together = normalized([[1, 2, 4], [0, 10, 5]], rule=rule)
    np.testing.assert_array_equal(together[:1], normalized([[1, 2, 4]], rule=rule))
    np.testing.assert_array_equal(together[1:], normalized([[0, 10, 5]], rule=rule))


@pytest.mark.parametrize("rule", RULES)
def test_permuting_the_group_permutes_the_advantages(rule):
    order = [2, 0, 3, 1]
    rewards, valid = np.array([[1.0, 2.0, 5.0, 3.0]]), np.array([[True, True, False, True]])
    np.testing.assert_allclose(
        normalized(rewards[:, order], valid[:, order], rule), normalized(rewards, valid, rule)[:, order], rtol=1e-6
    )


def test_dr_grpo_keeps_the_scale():
    np.testing.assert_allclose(normalized([[1, 2, 6]], rule="dr_grpo"), [[-2, -1, 3]], rtol=1e-6)


def test_rloo_subtracts_the_mean_of_the_others():
    # 1 - (2 + 6) / 2, 2 - (1 + 6) / 2, 6 - (1 + 2) / 2
    np.testing.assert_allclose(normalized([[1, 2, 6]], rule="rloo"), [[-3, -1.5, 4.5]], rtol=1e-6)
    valid = [[True, True, False, True]]
    np.testing.assert_allclose(normalized([[1, 2, 9, 6]], valid, "rloo"), [[-3, -1.5, 0, 4.5]], rtol=1e-6)


def test_same_under_jit():
    rewards, valid = np.array([[1.0, 0.0, 3.0]], np.float32), np.array([[True, False, True]])
    jitted = jax.jit(lambda r, v: advantages.group_normalized(r, v, CFG))(rewards, valid)
    np.testing.assert_allclose(jitted, advantages.group_normalized(rewards, valid, CFG), rtol=1e-6)
    assert jitted.dtype == np.float32


def test_unknown_rule_is_named():
    with pytest.raises(ValueError, match=r"grpo\.advantage: no rule 'gae'; choose one of grpo, dr_grpo, rloo"):
        normalized([[1, 2]], rule="gae")
