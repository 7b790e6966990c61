"""The update against the same loss over ordinary sequences, every completion with a prompt of its own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_vlm

from vlrl.config import GrpoConfig, OptConfig
from vlrl.models import vlm
from vlrl.rl import optimizer, update

CFG = tiny_vlm.CFG
GRPO = GrpoConfig(kl_beta=0.3, logp_chunk=5)
TEMPERATURE = 0.7
MODEL = vlm.Vlm(CFG, jnp.dtype("float32"), lora_scale=tiny_vlm.LORA_SCALE)
GAIN = 2.0**20
PLAIN = optax.scale(-GAIN)
"""The adapter moves so far down the gradient that the difference shows it to the last digit."""
DESCENT = optax.sgd(0.01)
ADAMW = optimizer.make(OptConfig(lr=0.01, weight_decay=0.1, schedule="constant"), 10)
SUPPRESSED = np.isin(np.arange(CFG.vocab_size), [0, 56, 57, 58, 59])
"""Token 0 pads: its log-probability of -inf must not get into anything."""
LISTS = [[[3, 4, 5], [6, 7]], [[8, 9, 10, 11], [12]], [[13, 14], [15, 16, 17]], [[18], [19, 20, 21]]]
VALID = np.ones((4, 2), bool)


@dataclasses.dataclass(frozen=True)
class Lesson:
    base: dict
    """Without the vision tower: an update that looked for it would fail."""
    experience: update.Experience
    start: dict
    adapter: dict


@pytest.fixture(scope="module")
def lesson():
    """Four prompts, two completions each, and an adapter that has moved away from its start."""
    rows = [
        tiny_vlm.row(
            CFG, *[tiny_vlm.text(*range(1, 2 + p))], tiny_vlm.media(CFG, "image", (8, 8), seed=p), tiny_vlm.text(22 + p)
        )
        for p in range(4)
    ]
    prefix = tiny_vlm.collate(CFG, rows, 9)
    params = tiny_vlm.random_params(CFG)
    features = np.asarray(tiny_vlm.encode(MODEL, params, prefix.vision))
    branches = tiny_vlm.branches_of(LISTS, 4)
    rng = np.random.default_rng(0)
    experience = update.Experience(
        prefix=prefix,
        features=features,
        branches=branches,
        sampler_logp=np.zeros(branches.tokens.shape, np.float32),
        advantages=rng.normal(size=(4, 2)).astype(np.float32),
        valid=VALID,
    )
    start = tiny_vlm.random_adapter(CFG, seed=1)
    adapter = jax.tree.map(lambda x: x + 0.05 * rng.normal(size=x.shape).astype(np.float32), start)
    return Lesson({name: value for name, value in params.items() if name != "visual"}, experience, start, adapter)


def state_of(lesson, transform=PLAIN):
    state = update.init(jax.tree.map(jnp.asarray, lesson.adapter), transform)
    return state.replace(start_adapter=jax.tree.map(jnp.asarray, lesson.start))


def stepped(lesson, transform=PLAIN, cfg=GRPO, state=None, **changes):
    """State and metrics after a step on the lesson's experience with `changes`."""
    experience = dataclasses.replace(lesson.experience, **changes)
    state = state_of(lesson, transform) if state is None else state
    state, metrics = update.train_step(MODEL, transform, state, lesson.base, experience, SUPPRESSED, cfg, TEMPERATURE)
    return state, {name: float(value) for name, value in metrics.items()}


def gradient_of(lesson, cfg=GRPO, **changes):
    state, metrics = stepped(lesson, cfg=cfg, **changes)
    return jax.tree.map(lambda old, new: (old - np.asarray(new)) / GAIN, lesson.adapter, state.adapter), metrics


def assert_close(tree, expected, tolerance):
    """Difference at most `tolerance` of the largest expected number of each leaf."""
    for leaf, right in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, right, rtol=0, atol=tolerance * np.abs(right).max())


@jax.jit
def glued_logp(params, adapter, embedded, positions, place, tokens):
    """Log-probability of every branch token from ordinary sequences, [B, C]."""
    logits = tiny_vlm.sequence_logits(CFG, params, adapter["decoder"]["layers"], embedded, positions)
    logits = jnp.take_along_axis(logits, place[..., None] - 1, axis=1)
    logp = jax.nn.log_softmax(jnp.where(SUPPRESSED[None, None], -1e30, logits / TEMPERATURE))
    return jnp.take_along_axis(logp, tokens[..., None], axis=2)[..., 0]


class Unshared:
    """The loss by its definition in the paper, completion after completion."""

    def __init__(self, lesson):
        x = lesson.experience
        embedded, positions, place = tiny_vlm.unshared(lesson.base, x.prefix, x.features, x.branches)
        tokens = x.branches.tokens.reshape(8, -1)
        self.lesson, self.mask = lesson, np.arange(4) < x.branches.length.reshape(-1, 1)
        self.logp = lambda adapter: glued_logp(lesson.base, adapter, embedded, positions, place.reshape(8, -1), tokens)
        self.reference = self.logp(lesson.start)

    def gradient(self, adapter, old, valid=VALID):
        """Mean over valid completions of the mean over their tokens of -min(r A, clip(r) A) + beta k3."""
        counted = self.mask & valid.reshape(-1, 1)
        advantages = self.lesson.experience.advantages.reshape(-1, 1)

        def loss(adapter):
            logp = jnp.where(counted, self.logp(adapter), 0.0)
            ratio = jnp.exp(logp - jnp.where(counted, old, 0.0))
            surrogate = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)
            log_ratio = jnp.clip(jnp.where(counted, self.reference, 0.0) - logp, -10, 10)
            per_token = -surrogate + GRPO.kl_beta * (jnp.exp(log_ratio) - log_ratio - 1)
            means = jnp.sum(jnp.where(counted, per_token, 0.0), axis=1) / self.mask.sum(axis=1)
            return means.sum() / valid.sum()

        return jax.grad(loss)(adapter)


@pytest.fixture(scope="module")
def unshared(lesson):
    return Unshared(lesson)


@pytest.fixture(scope="module")
def whole(lesson):
    return gradient_of(lesson)


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_any_split_into_micro_batches_gives_the_same_gradient_and_metrics(lesson, whole, micro_batch):
    gradient, metrics = gradient_of(lesson, dataclasses.replace(GRPO, micro_batch_prompts=micro_batch))
    assert_close(gradient, whole[0], 3e-6)  # float32 sums in another order: three roundings of the largest number
    assert metrics == pytest.approx(whole[1], rel=1e-5, abs=1e-6)


def test_gradient_equals_that_of_completions_with_prompts_of_their_own(lesson, whole, unshared):
    old = unshared.logp(lesson.adapter)
    assert_close(whole[0], unshared.gradient(lesson.adapter, old), 1e-5)


def test_metrics_by_the_unshared_computation(lesson, whole, unshared):
    logp, mask = np.asarray(unshared.logp(lesson.adapter)), unshared.mask
    log_ratio = np.asarray(unshared.reference) - logp
    k3 = np.exp(np.clip(log_ratio, -10, 10)) - np.clip(log_ratio, -10, 10) - 1
    metrics = whole[1]
    assert metrics["kl"] == pytest.approx(k3[mask].mean(), rel=1e-4)
    assert metrics["sampling/logp_difference"] == pytest.approx(np.abs(logp)[mask].mean(), rel=1e-4)
    norm = np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(whole[0])))
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["skipped_updates"] == 0
    assert 0 < metrics["entropy"] < np.log(CFG.vocab_size - 5)


def test_two_inner_iterations_hold_the_old_policy_fixed(lesson, unshared):
    state, _ = stepped(lesson, DESCENT, dataclasses.replace(GRPO, inner_iterations=2))
    old = unshared.logp(lesson.adapter)
    adapter = lesson.adapter
    for _ in range(2):
        adapter = jax.tree.map(lambda x, slope: x - 0.01 * slope, adapter, unshared.gradient(adapter, old))
    change = jax.tree.map(lambda new, before: np.asarray(new) - before, state.adapter, lesson.adapter)
    expected = jax.tree.map(lambda new, before: np.asarray(new) - before, adapter, lesson.adapter)
    assert_close(change, expected, 3e-4)
    assert int(state.step) == 1


def test_policy_that_starts_from_an_adapter_has_no_divergence_from_itself(lesson):
    state = update.init(jax.tree.map(jnp.asarray, lesson.adapter), ADAMW)
    state, metrics = stepped(lesson, ADAMW, state=state)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-9)
    _, metrics = stepped(lesson, ADAMW, state=state)
    assert metrics["kl"] > 1e-4  # the reference stayed behind, and outlived the donated state


def test_invalid_completions_count_as_absent(lesson, unshared):
    """A group without video, and one completion that no reward could judge; whatever they hold."""
    valid = VALID.copy()
    valid[1], valid[3, 0] = False, False
    gradient, metrics = gradient_of(
        lesson, valid=valid, advantages=np.where(valid, lesson.experience.advantages, np.float32(50))
    )
    assert_close(gradient, unshared.gradient(lesson.adapter, unshared.logp(lesson.adapter), valid), 1e-5)
    tokens = lesson.experience.branches.tokens.copy()
    tokens[1] = 33
    branches = dataclasses.replace(lesson.experience.branches, tokens=tokens)
    other, other_metrics = gradient_of(lesson, valid=valid, branches=branches)
    assert_close(other, gradient, 1e-6)
    assert other_metrics == pytest.approx(metrics, rel=1e-6)


def test_batch_without_a_valid_completion_has_no_gradient_and_finite_metrics(lesson):
    gradient, metrics = gradient_of(lesson, valid=np.zeros_like(VALID))
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(gradient))
    assert all(np.isfinite(value) for value in metrics.values())
    assert (metrics["loss"], metrics["skipped_updates"]) == (0, 0)


def test_non_finite_gradient_changes_nothing_but_is_counted(lesson):
    before = jax.tree.map(np.asarray, state_of(lesson, ADAMW))
    advantages = lesson.experience.advantages.copy()
    advantages[2, 1] = np.nan
    after, metrics = stepped(lesson, ADAMW, advantages=advantages)
    assert metrics["skipped_updates"] == 1
    assert int(after.step) == 1
    assert jax.tree.structure(after) == jax.tree.structure(before)
    for leaf, old in zip(jax.tree.leaves(after.replace(step=before.step)), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(leaf, old)


def test_zero_gradient_decays_weights_and_leaves_moments_at_zero(lesson):
    after, metrics = stepped(lesson, ADAMW, valid=np.zeros_like(VALID))
    assert metrics["grad_norm"] == 0
    expected = jax.tree.map(lambda x: x * (1 - 0.01 * 0.1), lesson.adapter)
    assert_close(after.adapter, expected, 1e-6)
    moments = [leaf for leaf in jax.tree.leaves(after.optimizer) if leaf.ndim > 0]
    assert moments
    assert all(np.all(np.asarray(leaf) == 0) for leaf in moments)


def test_second_step_compiles_nothing(lesson):
    state, _ = stepped(lesson, ADAMW)
    programs = update.train_step._cache_size()
    stepped(lesson, ADAMW, state=state, advantages=-lesson.experience.advantages)
    assert update.train_step._cache_size() == programs


def test_micro_batches_that_do_not_divide_the_prompts_are_refused(lesson):
    with pytest.raises(ValueError, match=r"micro_batch_prompts: 3 does not divide .* 4"):
        stepped(lesson, cfg=dataclasses.replace(GRPO, micro_batch_prompts=3))
