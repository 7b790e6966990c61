"""Each attention against a plain NumPy softmax over the keys that a query may see, one row at a time."""

import jax
import numpy as np
import pytest

from vlrl.models import attention
from vlrl.models.attention import KeyValue

P, G, J, PER_KV, S, C = 2, 3, 2, 2, 5, 4
HEAD_SIZES = [16, 64, 80]


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def attend(q, k, v):
    """q [K], k and v [T, K]: softmax(q k / sqrt(K)) v in float64."""
    scores = k.astype(np.float64) @ q / np.sqrt(len(q))
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ v


@pytest.mark.parametrize("head_dim", HEAD_SIZES)
def test_prefix_attention_is_causal_softmax_with_shared_key_heads(head_dim):
    q = normal(0, P, J * PER_KV, S, head_dim)
    own = KeyValue(normal(1, P, J, S, head_dim), normal(2, P, J, S, head_dim))
    actual = attention.prefix_attention(q, own)
    for p, h, s in np.ndindex(P, J * PER_KV, S):
        seen = (p, h // PER_KV, slice(0, s + 1))
        np.testing.assert_allclose(actual[p, h, s], attend(q[p, h, s], own.k[seen], own.v[seen]), atol=2e-6)


@pytest.mark.parametrize("head_dim", HEAD_SIZES)
def test_branch_attention_is_softmax_over_prompt_and_branch_together(head_dim):
    lengths = [5, 3]
    q = normal(0, P, J * PER_KV, G, C, head_dim)
    prefix = KeyValue(normal(1, P, J, S, head_dim), normal(2, P, J, S, head_dim))
    own = KeyValue(normal(3, P, J, G, C, head_dim), normal(4, P, J, G, C, head_dim))
    mask = np.arange(S)[None] < np.array(lengths)[:, None]
    actual = attention.branch_attention(q, prefix, mask, own, np.tri(C, dtype=bool))
    for p, h, g, c in np.ndindex(P, J * PER_KV, G, C):
        j, size = h // PER_KV, lengths[p]
        k, v = (
            np.concatenate([a[p, j, :size], b[p, j, g, : c + 1]]) for a, b in ((prefix.k, own.k), (prefix.v, own.v))
        )
        np.testing.assert_allclose(actual[p, h, g, c], attend(q[p, h, g, c], k, v), atol=2e-6)


def test_one_query_of_a_decode_step_sees_the_filled_part_of_the_cache():
    q = normal(0, P, J, G, 1, 16)
    prefix = KeyValue(normal(1, P, J, S, 16), normal(2, P, J, S, 16))
    own = KeyValue(normal(3, P, J, G, C, 16), normal(4, P, J, G, C, 16))
    actual = attention.branch_attention(q, prefix, np.ones((P, S), bool), own, np.arange(C)[None] <= 1)
    for p, j, g in np.ndindex(P, J, G):
        k, v = (np.concatenate([a[p, j], b[p, j, g, :2]]) for a, b in ((prefix.k, own.k), (prefix.v, own.v)))
        np.testing.assert_allclose(actual[p, j, g, 0], attend(q[p, j, g, 0], k, v), atol=2e-6)


def test_slice_attention_sees_only_visible_pairs_of_the_same_slice():
    q, k, v = (normal(seed, 1, 2, 2, 6, 16) for seed in range(3))
    window = np.array([[[0, 0, 1, 1, 1, -1], [0, 1, 0, 1, 2, 2]]])
    actual = attention.slice_attention(q, k, v, window[..., :, None] == window[..., None, :])
    for i, h, n in np.ndindex(2, 2, 6):
        seen = window[0, i] == window[0, i, n]
        expected = attend(q[0, i, h, n], k[0, i, h, seen], v[0, i, h, seen])
        np.testing.assert_allclose(actual[0, i, h, n], expected, atol=2e-6)


def test_queries_without_any_visible_key_give_finite_numbers_and_gradients():
    q = normal(0, 1, J, G, C, 16)
    prefix = KeyValue(normal(1, 1, J, S, 16), normal(2, 1, J, S, 16))
    own = KeyValue(normal(3, 1, J, G, C, 16), normal(4, 1, J, G, C, 16))

    def total(q, prefix, own):
        mask = np.zeros((1, S), bool), np.zeros((C, C), bool)
        return attention.branch_attention(q, prefix, mask[0], own, mask[1]).sum()

    assert np.isfinite(total(q, prefix, own))
    for leaf in jax.tree.leaves(jax.grad(total, (0, 1, 2))(q, prefix, own)):
        assert np.isfinite(leaf).all()
    slices = (normal(seed, 1, 1, 2, 3, 16) for seed in range(3))
    assert np.isfinite(attention.slice_attention(*slices, np.zeros((1, 1, 3, 3), bool))).all()


def test_heads_split_and_join_are_inverse_and_keep_a_head_together():
    x = np.arange(2 * 3 * 8, dtype=np.float32).reshape(2, 3, 8)
    heads = attention.split_heads(x, 2)
    assert heads.shape == (2, 2, 3, 4)
    np.testing.assert_array_equal(heads[0, 1, 2], x[0, 2, 4:])
    np.testing.assert_array_equal(attention.join_heads(heads), x)
