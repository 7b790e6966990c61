"""The shared prompt against the plain computation: every branch glued to its own copy of the prompt."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_vlm
from tiny_vlm import CFG, LORA_SCALE, media, text

from vlrl.models import vlm
from vlrl.types import Branches

MODEL = vlm.Vlm(CFG, lora_scale=LORA_SCALE)
LENGTH, CHUNK, TEMPERATURE = 6, 8, 0.7
SUPPRESSED = np.isin(np.arange(CFG.vocab_size), [CFG.image_token_id, CFG.video_token_id])


def prompts():
    """Two videos of different length and size between text: 27 and 12 tokens."""
    one = media(CFG, "video", (24, 24), frames=4, second_per_grid=0.5, seed=1)
    other = media(CFG, "video", (16, 16), frames=2, seed=2)
    return [
        tiny_vlm.row(CFG, text(1, 2, 3), one, text(4, 5, 6, 7)),
        tiny_vlm.row(CFG, text(8), other, text(9, 10, 11, 12, 13)),
    ]


@dataclasses.dataclass(frozen=True)
class Scene:
    params: dict
    adapter: dict
    prefix: vlm.PrefixInput
    features: np.ndarray

    @property
    def policy(self):
        return {"params": self.params, "lora": self.adapter}


@pytest.fixture(scope="session")
def scene():
    params, adapter = tiny_vlm.random_params(CFG), tiny_vlm.random_adapter(CFG)
    prefix = tiny_vlm.collate(CFG, prompts(), 30, slices=2, patches=36)
    assert prefix.length.tolist() == [27, 12]
    return Scene(params, adapter, prefix, np.asarray(tiny_vlm.encode(MODEL, params, prefix.vision)))


@pytest.fixture(scope="session", params=[4, 1], ids=["G4", "G1"])
def branches(request):
    """Ragged; one branch holds the ids of image and video pads, which are plain tokens in a completion."""
    lists = [
        [[20, 21, 22, 23, 24, 25], [30], [31, CFG.image_token_id, 32, CFG.video_token_id, 33], [1, 2]],
        [[40, 41, 42], [43, 44, 45, 46, 47, 48], [49, 50], [51, 52, 53, 54]],
    ]
    return tiny_vlm.branches_of([group[: request.param] for group in lists], LENGTH)


@pytest.fixture(scope="session")
def four():
    return tiny_vlm.branches_of([[[20, 21, 22], [23], [24, 25], [26, 27, 28, 29, 30, 31]]] * 2, LENGTH)


def real(branches):
    """Which tokens a loss may use: real, and possible (a suppressed token has log-probability -inf)."""
    return (np.arange(LENGTH) < branches.length[..., None]) & ~SUPPRESSED[branches.tokens]


def weights_of(branches):
    return np.random.default_rng(5).normal(size=branches.tokens.shape).astype(np.float32) * real(branches)


def weighted(logp, weights):
    return jnp.sum(jnp.where(weights != 0, logp * weights, 0.0))


def log_softmax(logits):
    scaled = jnp.where(SUPPRESSED[(None,) * (logits.ndim - 1)], -jnp.inf, logits / TEMPERATURE)
    return scaled - jax.nn.logsumexp(scaled, axis=-1, keepdims=True)


def unshared_logp(scene, adapter, branches):
    """Log-probabilities and entropies of branch tokens by the independent decoder."""
    embedded, positions, place = tiny_vlm.unshared(scene.params, scene.prefix, scene.features, branches)
    layers = adapter["decoder"]["layers"] if adapter else {}
    logits = tiny_vlm.sequence_logits(CFG, scene.params, layers, embedded, positions)
    place = place.reshape(-1, LENGTH)
    logp = log_softmax(jnp.take_along_axis(logits, place[..., None] - 1, axis=1))
    entropy = -jnp.sum(jnp.where(jnp.isinf(logp), 0.0, jnp.exp(logp) * logp), -1)
    chosen = jnp.take_along_axis(logp, branches.tokens.reshape(-1, LENGTH, 1), axis=-1)
    shape = branches.tokens.shape
    return chosen.reshape(shape), entropy.reshape(shape)


@functools.partial(jax.jit, static_argnums=(0, 1))
def joint_value_and_gradient(model, chunk, adapter, params, prefix, features, branches, weights):
    def loss(adapter):
        logp, entropy = vlm.joint_logp(
            model, {"params": params, "lora": adapter}, prefix, features, branches, TEMPERATURE, SUPPRESSED, chunk
        )
        return weighted(logp, weights), (logp, entropy)

    (_, values), gradient = jax.value_and_grad(loss, has_aux=True)(adapter)
    return values, gradient


def joint(scene, branches, model=MODEL, chunk=CHUNK):
    arrays = scene.adapter, scene.params, scene.prefix, scene.features, branches, weights_of(branches)
    return joint_value_and_gradient(model, chunk, *arrays)


@pytest.fixture(scope="session")
def shared(scene, branches):
    return joint(scene, branches)


@pytest.fixture(scope="session")
def plain(scene, branches):
    return unshared_logp(scene, scene.adapter, branches)


def kept(scene, variables, model=MODEL):
    return tiny_vlm.prefill(model, variables, scene.prefix, scene.features)


def scores(scene, variables, branches, model=MODEL):
    prefill = kept(scene, variables, model)
    return tiny_vlm.branch_logp(model, variables, prefill, branches, TEMPERATURE, SUPPRESSED, CHUNK)


def assert_close(actual, expected, relative=1e-5):
    """Largest difference over largest value."""
    error = np.abs(np.asarray(actual) - np.asarray(expected)).max() / np.abs(np.asarray(expected)).max()
    assert error < relative, f"relative error {error:.1e}"


def test_joint_values_equal_the_unshared_computation(shared, plain, branches):
    for actual, expected in zip(shared[0], plain, strict=True):
        assert_close(np.asarray(actual)[real(branches)], np.asarray(expected)[real(branches)])


def test_joint_adapter_gradients_equal_the_unshared_computation(scene, shared, branches):
    gradient = jax.grad(lambda adapter: weighted(unshared_logp(scene, adapter, branches)[0], weights_of(branches)))
    expected = gradient(scene.adapter)
    flat, flat_expected = (jax.tree_util.tree_leaves_with_path(tree) for tree in (shared[1], expected))
    assert len(flat) == 7 * 2
    for (path, actual), (same_path, value) in zip(flat, flat_expected, strict=True):
        assert path == same_path
        assert np.abs(value).max() > 1e-3, path
        assert_close(actual, value)


def test_scoring_from_a_kept_prompt_equals_the_unshared_computation(scene, plain, branches):
    for actual, expected in zip(scores(scene, scene.policy, branches), plain, strict=True):
        assert_close(np.asarray(actual)[real(branches)], np.asarray(expected)[real(branches)])


def test_decoding_token_by_token_equals_the_unshared_computation(scene, plain, branches):
    prefill = kept(scene, scene.policy)
    num_prompts, num_branches, _ = branches.tokens.shape
    cache = vlm.empty_cache(MODEL, num_prompts, num_branches, LENGTH)
    first = vlm.next_logits(MODEL, scene.policy, prefill.last_hidden)
    logits = [jnp.broadcast_to(first[:, None], (num_prompts, num_branches, CFG.vocab_size))]
    for step in range(LENGTH - 1):
        tokens = branches.tokens[:, :, step]
        one, cache = tiny_vlm.decode_step(MODEL, scene.policy, prefill, cache, tokens, jnp.int32(step))
        logits.append(one)
    logp = log_softmax(jnp.stack(logits, axis=2))
    chosen = jnp.take_along_axis(logp, branches.tokens[..., None], axis=-1)[..., 0]
    assert_close(np.asarray(chosen)[real(branches)], np.asarray(plain[0])[real(branches)])


def test_reference_equals_the_unshared_computation_without_adapter(scene, four):
    actual, _ = scores(scene, {"params": scene.params}, four)
    expected, _ = unshared_logp(scene, {}, four)
    assert_close(np.asarray(actual)[real(four)], np.asarray(expected)[real(four)])


def test_a_completion_may_hold_vision_pads_which_stay_plain_tokens(scene, four):
    """B5: vision features are put into the prompt only, whatever the policy emits."""
    pads = np.array(four.tokens)
    pads[:, :, 1] = CFG.image_token_id
    with_pads = scores(scene, scene.policy, Branches(pads, four.length))
    # the pads' embedding under another id: the same completion without any vision id
    used = {*np.unique(scene.prefix.tokens).tolist(), *np.unique(pads).tolist()}
    free = min(set(range(CFG.vocab_size)) - used)
    renamed = jax.tree.map(np.array, scene.params)
    renamed["embed"]["embedding"][free] = renamed["embed"]["embedding"][CFG.image_token_id]
    plain = np.where(pads == CFG.image_token_id, free, pads)
    as_text = scores(scene, {"params": renamed, "lora": scene.adapter}, Branches(plain, four.length))
    np.testing.assert_array_equal(with_pads[0][:, :, 2:], as_text[0][:, :, 2:])
    np.testing.assert_array_equal(with_pads[1], as_text[1])
    assert np.isneginf(with_pads[0][:, :, 1]).all()


# Memory: what must not exist.
# Sizes without common factors, so that a product of sizes betrays its axes.
P, G, C, S = 2, 5, 23, 17
WIDE = dataclasses.replace(CFG, vocab_size=101)


@pytest.fixture(scope="module")
def wide():
    """(model, params, adapter, prefix, features, branches) as shapes: only traced, never run."""
    rows = [tiny_vlm.row(WIDE, text(*range(S)))] * P
    prefix = tiny_vlm.collate(WIDE, rows, S)
    tokens = np.zeros((P, G, C), np.int32)
    branches = Branches(tokens, np.full((P, G), C, np.int32))
    features = np.zeros((P, 1, WIDE.hidden_size), np.float32)
    model = vlm.Vlm(WIDE, lora_scale=LORA_SCALE)
    return model, tiny_vlm.random_params(WIDE), tiny_vlm.random_adapter(WIDE), prefix, features, branches


def copied_keys(jaxpr):
    """Shapes that hold a prompt-sized array once for each branch: sizes divisible by G * S * K."""
    whole = P * G * WIDE.num_kv_heads * S * WIDE.head_dim
    sizes = {shape: int(np.prod(shape)) for shape in tiny_vlm.shapes_in(jaxpr)}
    return [shape for shape, size in sizes.items() if size >= whole and size % (G * S * WIDE.head_dim) == 0]


def logits_of_everything(jaxpr):
    """Shapes with a vocabulary axis and at least one row for each branch token."""
    shapes = {shape for shape in tiny_vlm.shapes_in(jaxpr) if WIDE.vocab_size in shape}
    assert shapes
    return [shape for shape in shapes if np.prod(shape) >= P * G * C * WIDE.vocab_size]


def joint_jaxpr(wide, chunk, differentiate):
    model, params, adapter, prefix, features, branches = wide

    def loss(adapter):
        variables = {"params": params, "lora": adapter}
        logp, entropy = vlm.joint_logp(
            model, variables, prefix, features, branches, 1.0, np.zeros(WIDE.vocab_size, bool), chunk
        )
        return jnp.sum(logp) + jnp.sum(entropy)

    return jax.make_jaxpr(jax.grad(loss) if differentiate else loss)(adapter).jaxpr


def test_prompt_keys_are_kept_once(wide):
    model, params, _, prefix, features, _ = wide
    shapes = jax.jit(functools.partial(vlm.prefill, model))({"params": params}, prefix, features)
    expected = (WIDE.num_layers, P, WIDE.num_kv_heads, S, WIDE.head_dim)
    assert shapes.kv.k.shape == shapes.kv.v.shape == expected


def test_scoring_never_copies_the_prompt_keys_for_each_branch(wide):
    model, params, adapter, prefix, features, branches = wide
    variables = {"params": params, "lora": adapter}
    prefill = jax.jit(functools.partial(vlm.prefill, model))(variables, prefix, features)
    suppressed = np.zeros(WIDE.vocab_size, bool)
    score = lambda prefill: vlm.branch_logp(model, variables, prefill, branches, 1.0, suppressed, 16)  # noqa: E731
    assert copied_keys(jax.make_jaxpr(score)(prefill).jaxpr) == []
    cache = vlm.empty_cache(model, P, G, C)
    tokens = branches.tokens[:, :, 0]
    step = functools.partial(vlm.decode_step, model, variables)
    assert copied_keys(jax.make_jaxpr(step)(prefill, cache, tokens, jnp.int32(0)).jaxpr) == []


@pytest.mark.parametrize("differentiate", [False, True], ids=["value", "gradient"])
def test_training_never_copies_the_prompt_keys_for_each_branch(wide, differentiate):
    assert copied_keys(joint_jaxpr(wide, 16, differentiate)) == []


def test_copied_keys_would_be_noticed():
    keys = np.zeros((P, WIDE.num_kv_heads, S, WIDE.head_dim), np.float32)
    copied = jax.make_jaxpr(lambda k: jax.jit(lambda a: jnp.repeat(a, G, axis=0))(k).sum())(keys)
    assert copied_keys(copied.jaxpr)


@pytest.mark.parametrize("differentiate", [False, True], ids=["value", "gradient"])
def test_logits_of_all_tokens_never_exist(wide, differentiate):
    """L7: the largest array with a vocabulary axis holds `chunk` rows, however many tokens there are."""
    assert logits_of_everything(joint_jaxpr(wide, 16, differentiate)) == []
    assert logits_of_everything(joint_jaxpr(wide, P * G * C, differentiate))  # and the check would notice


def test_chunk_size_changes_nothing(scene, four):
    (logp, entropy), gradient = joint(scene, four)
    for chunk in (7, 1000):  # 48 tokens: ragged last chunk, one chunk
        (other_logp, other_entropy), other_gradient = joint(scene, four, chunk=chunk)
        np.testing.assert_allclose(other_logp, logp, rtol=1e-5)
        np.testing.assert_allclose(other_entropy, entropy, rtol=1e-5)
        jax.tree.map(assert_close, other_gradient, gradient)


@pytest.mark.parametrize("option", ["remat", "unroll"])
def test_compilation_options_change_nothing(scene, four, option):
    (logp, entropy), gradient = joint(scene, four)
    model = vlm.Vlm(CFG, lora_scale=LORA_SCALE, **{option: True})
    (other_logp, other_entropy), other_gradient = joint(scene, four, model)
    np.testing.assert_allclose(other_logp, logp, rtol=1e-5)
    np.testing.assert_allclose(other_entropy, entropy, rtol=1e-5)
    jax.tree.map(assert_close, other_gradient, gradient)


# Distribution.


def test_temperature_is_part_of_the_log_probability():
    # L1: log(1 / (1 + exp(-4)))
    logp = vlm.log_probabilities(jnp.array([2.0, 0.0]), 0.5, np.zeros(2, bool))
    np.testing.assert_allclose(logp[0], -0.0181, atol=5e-5)


def test_suppressed_tokens_have_no_probability_and_the_others_share_it():
    logp = vlm.log_probabilities(jnp.array([5.0, 1.0, 1.0]), 1.0, np.array([True, False, False]))
    assert np.isneginf(logp[0])
    np.testing.assert_allclose(logp[1:], [-np.log(2)] * 2, rtol=1e-6)


def test_entropy_is_finite_with_suppressed_tokens(scene, four):
    _, entropy = scores(scene, scene.policy, four)
    assert np.isfinite(entropy).all()
    assert (np.asarray(entropy) > 0).all()
    assert (np.asarray(entropy) < np.log(CFG.vocab_size - 2)).all()


def test_gradients_of_log_probability_and_entropy_are_finite_with_suppressed_tokens(scene):
    hidden = np.random.default_rng(0).normal(size=(3, CFG.hidden_size)).astype(np.float32)

    def total(hidden):
        variables = {"params": scene.params}
        logp, entropy = vlm._chunk_logp(MODEL, variables, TEMPERATURE, SUPPRESSED, hidden, np.array([1, 2, 3]))
        return jnp.sum(logp) + jnp.sum(entropy)

    assert np.isfinite(jax.grad(total)(hidden)).all()


def test_log_probability_t_scores_token_t_given_the_ones_before(scene):
    """L5, by hand: layers that add nothing and a head that gives logit i to token i + 1 after token i."""
    params = jax.tree.map(np.zeros_like, scene.params)
    width = CFG.hidden_size
    params["embed"]["embedding"][:width] = np.eye(width)
    params["decoder"]["norm"]["scale"][:] = 1 / np.sqrt(width)  # the norm makes sqrt(width) of a one-hot
    for i in range(width):
        params["lm_head"]["kernel"][i, i + 1] = i
    variables = {"params": params}
    rows = [tiny_vlm.row(CFG, text(3, 4, 9)), tiny_vlm.row(CFG, text(20))]
    prefix = tiny_vlm.collate(CFG, rows, 30)
    prefill = tiny_vlm.prefill(MODEL, variables, prefix, np.zeros_like(scene.features))
    branches = tiny_vlm.branches_of([[[10, 11, 12, 13], [5]], [[10, 11, 30, 13], [21, 22, 23, 24, 25, 26]]], LENGTH)
    nothing = np.zeros(CFG.vocab_size, bool)
    logp, _ = tiny_vlm.branch_logp(MODEL, variables, prefill, branches, 1.0, nothing, CHUNK)

    def expected(before, token):
        return (before if token == before + 1 else 0) - np.log(np.exp(before) + CFG.vocab_size - 1)

    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(logp[0, 0, :4], [expected(9, 10), expected(10, 11), expected(11, 12), expected(12, 13)],
                               **tolerance)  # fmt: skip
    np.testing.assert_allclose(logp[0, 1, 0], expected(9, 5), **tolerance)
    np.testing.assert_allclose(logp[1, 0, :4], [expected(20, 10), expected(10, 11), expected(11, 30), expected(30, 13)],
                               **tolerance)  # fmt: skip


# Adapter.


def test_fresh_adapter_equals_the_reference_to_the_last_bits(scene, four):
    fresh = tiny_vlm.random_adapter(CFG, fresh=True)
    policy = scores(scene, {"params": scene.params, "lora": fresh}, four)
    reference = scores(scene, {"params": scene.params}, four)
    # Two programs: the compiler may fuse, and so round, them differently (jax 0.12 does).
    np.testing.assert_allclose(policy, reference, rtol=2e-6)


def test_adapter_of_rank_0_is_the_reference(scene):
    empty = tiny_vlm.random_adapter(CFG, rank=0)
    np.testing.assert_array_equal(
        kept(scene, {"params": scene.params, "lora": empty}).last_hidden,
        kept(scene, {"params": scene.params}).last_hidden,
    )


def test_trained_adapter_changes_the_distribution(scene, four):
    policy, _ = scores(scene, scene.policy, four)
    reference, _ = scores(scene, {"params": scene.params}, four)
    assert np.abs(policy - reference)[real(four)].min() > 1e-4


@pytest.mark.parametrize("target", ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
def test_every_target_of_the_adapter_takes_part(shared, target):
    for leaf in shared[1]["decoder"]["layers"][target].values():
        for layer in np.asarray(leaf):
            assert np.abs(layer).max() > 1e-4


# State, padding, slices.


def test_a_call_leaves_nothing_behind_for_the_next(scene, four):
    """P4: another prompt and batch size between two calls; the second equals the first bit for bit."""
    before = scores(scene, scene.policy, four)
    one = jax.tree.map(lambda a: a[1:], (scene.prefix, scene.features))
    prefill = tiny_vlm.prefill(MODEL, scene.policy, *one)
    tiny_vlm.decode_step(
        MODEL, scene.policy, prefill, vlm.empty_cache(MODEL, 1, 8, 3), np.ones((1, 8), np.int32), jnp.int32(0)
    )
    np.testing.assert_array_equal(scores(scene, scene.policy, four), before)


def test_padding_changes_nothing(scene):
    """P5: prompts of 50 and 80 tokens, one with images, in one batch and each alone in its own bucket."""
    images = [media(CFG, "image", (16, 24), seed=3), media(CFG, "image", (16, 16), seed=4)]
    rows = [
        tiny_vlm.row(CFG, text(1, 2), images[0], text(3), images[1], text(*range(33))),
        tiny_vlm.row(CFG, text(*(np.arange(80) % 50))),
    ]
    assert [len(row.tokens) for row in rows] == [50, 80]
    variables = {"params": scene.params}

    def last_hidden(rows, length, slices, patches):
        prefix = tiny_vlm.collate(CFG, rows, length, slices, patches)
        features = tiny_vlm.encode(MODEL, scene.params, prefix.vision)
        return np.asarray(tiny_vlm.prefill(MODEL, variables, prefix, features).last_hidden)

    together = last_hidden(rows, 96, 3, 36)
    np.testing.assert_allclose(together[0], last_hidden(rows[:1], 50, 2, 24)[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(together[1], last_hidden(rows[1:], 80, 1, 4)[0], rtol=1e-4, atol=1e-5)


def test_slices_do_not_see_each_other(scene):
    """P7: other pixels in the second pair of frames leave the features of the first as they were."""
    vision = scene.prefix.vision
    patches = np.array(vision.patches)
    patches[0, 1] += 1.0
    changed = np.asarray(tiny_vlm.encode(MODEL, scene.params, dataclasses.replace(vision, patches=patches)))
    np.testing.assert_array_equal(changed[0, :9], scene.features[0, :9])
    np.testing.assert_array_equal(changed[1], scene.features[1])
    assert np.abs(changed[0, 9:] - scene.features[0, 9:]).max(axis=-1).min() > 1e-3


def test_padding_patches_do_not_reach_real_ones(scene):
    vision = scene.prefix.vision
    patches = np.where(vision.window[..., None] < 0, np.float32(9), vision.patches)
    changed = np.asarray(tiny_vlm.encode(MODEL, scene.params, dataclasses.replace(vision, patches=patches)))
    np.testing.assert_array_equal(changed[0], scene.features[0])
    np.testing.assert_array_equal(changed[1, :4], scene.features[1, :4])
