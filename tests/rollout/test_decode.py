"""The decode loop: on a model whose every logit is known, and on a random one against scoring."""

import jax
import numpy as np
import pytest
import tiny_vlm

from vlrl import timing
from vlrl.config import RolloutConfig
from vlrl.rollout import decode, sampling

END_IDS = (0, 7, 11)
"""Several, and one of them is the id that pads."""
FORBIDDEN = np.arange(61) >= 50


@pytest.fixture(scope="module")
def chained(markov, words):
    """Greedy completions of four prompts on a model that says 10 after 3, 11 after 10, and so on; the forbidden tokens
    have the largest logits throughout."""
    table = np.zeros((48, 61), np.float32)
    table[:, FORBIDDEN] = 100.0
    for token, following in [
        (3, 10),
        (10, 11),
        (4, 12),
        (12, 13),
        (13, 7),
        (5, 14),
        (14, 15),
        (15, 14),
        (6, 16),
        (16, 0),
    ]:
        table[token, following] = 20.0
    model, variables, features, batch = markov(table, last_tokens=(3, 4, 5, 6))
    cfg = RolloutConfig(group_size=2, max_new_tokens=5, temperature=0.0)
    return decode.sample(model, variables, features, batch.prefix, jax.random.key(0), words, END_IDS, cfg)


def test_every_end_id_ends_a_completion_and_belongs_to_it(chained):
    expected = [[10, 11, 0, 0, 0], [12, 13, 7, 0, 0], [14, 15, 14, 15, 14], [16, 0, 0, 0, 0]]
    for g in range(2):
        np.testing.assert_array_equal(chained.branches.tokens[:, g], expected)
        np.testing.assert_array_equal(chained.branches.length[:, g], [2, 3, 5, 2])
        np.testing.assert_array_equal(chained.finished[:, g], [True, True, False, True])


def test_text_holds_the_tokens_before_the_end_id_or_all_where_the_limit_cut(chained):
    assert chained.text == (("10", "10"), ("12 13", "12 13"), ("14 15 14 15 14", "14 15 14 15 14"), ("16", "16"))


def test_greedy_completions_hold_no_forbidden_token_and_their_plain_log_probabilities(chained):
    # 50 tokens are allowed; the chosen one leads the other 49 by 20.
    logp = -np.log1p(49 * np.exp(-20.0))
    expected = np.where(np.arange(5) < np.asarray(chained.branches.length)[..., None], logp, 0.0)
    np.testing.assert_allclose(chained.logp, expected, atol=1e-6)


def test_forbidden_tokens_are_never_drawn_and_temperature_shapes_the_distribution(markov, words):
    """After 2 all 50 ordinary tokens are alike. After 20 and 21 only these two follow, with logits 2 and 0: at
    temperature .5 their log-probabilities are -.0181 and -4.0181."""
    table = np.zeros((48, 61), np.float32)
    table[20:22, :50] = -1e9
    table[20:22, 20], table[20:22, 21] = 2.0, 0.0
    table[:, FORBIDDEN] = 50.0
    model, variables, features, batch = markov(table, last_tokens=(2, 20))
    cfg = RolloutConfig(group_size=40, max_new_tokens=30, temperature=0.5)
    rollouts = decode.sample(model, variables, features, batch.prefix, jax.random.key(3), words, (49,), cfg)
    tokens, logp = np.asarray(rollouts.branches.tokens), np.asarray(rollouts.logp)
    assert tokens.max() < 50
    assert set(np.unique(tokens[1])) == {20, 21}
    np.testing.assert_allclose(logp[1], np.where(tokens[1] == 20, -0.01815, -4.01815), atol=1e-4)
    np.testing.assert_allclose(logp[0, :, 0], -np.log(50), atol=1e-5)
    assert len(np.unique(tokens[0, :, 0])) > 15


CFG = RolloutConfig(group_size=3, max_new_tokens=6, temperature=0.7)


def with_prefix(parts):
    model, variables, features, batch = parts
    return model, variables, features, batch.prefix


@pytest.fixture(scope="module")
def sampled(real, words):
    return decode.sample(*with_prefix(real), jax.random.key(1), words, END_IDS, CFG)


def tempered(logits):
    scores = np.where(FORBIDDEN, -np.inf, np.asarray(logits, np.float64) / CFG.temperature)
    scores = scores - scores.max(axis=-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


def within(rollouts):
    return np.arange(CFG.max_new_tokens) < np.asarray(rollouts.branches.length)[..., None]


def test_recorded_log_probabilities_are_those_of_an_independent_decoder(real, sampled):
    model, variables, features, batch = real
    params, adapter = variables["params"], variables["lora"]["decoder"]["layers"]
    branches = jax.tree.map(np.asarray, sampled.branches)
    embedded, positions, place = tiny_vlm.unshared(params, batch.prefix, features, branches)
    logits = np.asarray(tiny_vlm.sequence_logits(model.cfg, params, adapter, embedded, positions))
    logp = tempered(logits).reshape(2, 3, -1, 61)
    expected = np.take_along_axis(logp, place[..., None] - 1, axis=2)
    expected = np.take_along_axis(expected, branches.tokens[..., None], axis=3)[..., 0]
    mask = within(sampled)
    np.testing.assert_allclose(np.asarray(sampled.logp)[mask], expected[mask], atol=2e-5)


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_scoring_the_sampled_tokens_gives_an_on_policy_ratio_of_one(real, sampled, words, micro_batch):
    model, variables, features, batch = real
    suppressed = sampling.suppressed_tokens(model.cfg, words)
    scored = []
    for start in range(0, 2, micro_batch):
        prefix, seen, branches = jax.tree.map(
            lambda x, start=start: x[start : start + micro_batch], (batch.prefix, features, sampled.branches)
        )
        prompt = tiny_vlm.prefill(model, variables, prefix, seen)
        scored.append(tiny_vlm.branch_logp(model, variables, prompt, branches, CFG.temperature, suppressed, 4)[0])
    ratio = np.exp(np.concatenate(scored) - np.asarray(sampled.logp))
    np.testing.assert_allclose(ratio[within(sampled)], 1.0, atol=1e-5)


def test_same_key_draws_the_same_and_another_key_other_tokens(real, sampled, words):
    again = decode.sample(*with_prefix(real), jax.random.key(1), words, END_IDS, CFG)
    np.testing.assert_array_equal(again.branches.tokens, sampled.branches.tokens)
    np.testing.assert_array_equal(again.logp, sampled.logp)
    other = decode.sample(*with_prefix(real), jax.random.key(2), words, END_IDS, CFG)
    assert not np.array_equal(other.branches.tokens, sampled.branches.tokens)


def test_completions_of_a_group_differ(sampled):
    assert len({tuple(row) for row in np.asarray(sampled.branches.tokens).reshape(-1, 6).tolist()}) > 3


def test_other_values_of_the_same_shapes_compile_nothing(real, sampled, words):
    model, variables, features, batch = real
    compiled = timing.compilations()
    changed = {**variables, "lora": jax.tree.map(lambda x: x + 1, variables["lora"])}
    decode.sample(model, changed, features + 1, batch.prefix, jax.random.key(5), words, END_IDS, CFG)
    assert timing.compilations() - compiled <= 1  # features + 1 itself


def test_rollout_reads_the_features_and_never_runs_the_vision_tower(real, sampled, words):
    model, variables, features, batch = real
    blind = {name: value for name, value in variables["params"].items() if name != "visual"}
    rollouts = decode.sample(
        model, {**variables, "params": blind}, features, batch.prefix, jax.random.key(1), words, END_IDS, CFG
    )
    np.testing.assert_array_equal(rollouts.branches.tokens, sampled.branches.tokens)
