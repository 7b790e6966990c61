"""Every family against transformers and peft: vision features, logits, greedy tokens, adapter gradients, bfloat16.

`pytest -s -k qwen3_vl` prints the largest differences of one family.
"""

import collections
import functools

import family_internvl
import family_qwen2_5_vl
import family_qwen3_vl
import family_text
import numpy as np
import pair
import pytest

ATOL = 2e-4
FAMILIES = {
    "qwen2_5_vl": family_qwen2_5_vl.FAMILY,
    "qwen3_vl": family_qwen3_vl.FAMILY,
    "internvl": family_internvl.FAMILY,
    "qwen2": family_text.QWEN2,
    "qwen3": family_text.QWEN3,
}
COUNTED = ("qwen2_5_vl", "qwen3_vl")
"""Families whose rotary positions transformers counts in three directions."""


def each(names_of, first_kind_only=False):
    """Every checkpoint, or the first of each family, with each of the names that `names_of` gives for the family."""
    cases = [
        pytest.param(family, kind, name, id=f"{family}-{kind}-{name}")
        for family, spec in FAMILIES.items()
        for kind in (list(spec.kinds)[:1] if first_kind_only else spec.kinds)
        for name in names_of(spec)
    ]
    return pytest.mark.parametrize(("family", "kind", "name"), cases)


def each_first(families):
    """The first checkpoint of each family."""
    cases = [pytest.param(family, next(iter(FAMILIES[family].kinds)), id=family) for family in families]
    return pytest.mark.parametrize(("family", "kind"), cases)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Every checkpoint, made once when it is first asked for."""
    return functools.cache(
        lambda family, kind: pair.Both(tmp_path_factory.mktemp("checkpoint"), FAMILIES[family], kind)
    )


@pytest.fixture
def both(made, family, kind):
    return made(family, kind)


@pytest.fixture(scope="module")
def largest():
    """Largest differences seen, printed at the end."""
    seen = collections.defaultdict(float)
    yield seen
    for case, error in sorted(seen.items()):
        print(f"\n{' | '.join(case)}: {error:.1e}", end="")


@each(lambda family: family.seeing)
def test_vision_features_equal_transformers(both, largest, family, kind, name):
    for medium, expected in both.their_features(name).items():
        error = np.abs(both.features_of(name, medium) - expected).max()
        largest[family, kind, "features", name] = max(error, largest[family, kind, "features", name])
        assert np.abs(expected).max() > 0.3
        assert error <= ATOL


@each(lambda family: family.prompts)
def test_logits_at_every_position_equal_transformers(both, largest, family, kind, name):
    expected = both.their_logits(name)
    error = largest[family, kind, "logits", name] = np.abs(both.logits_of(name) - expected).max()
    assert np.abs(expected).max() > 1
    assert error <= ATOL


@each(lambda family: family.prompts, first_kind_only=True)
def test_greedy_tokens_equal_generate(both, name):
    expected = both.their_greedy(name)
    assert len(expected) == pair.NEW_TOKENS
    np.testing.assert_array_equal(both.greedy[both.names.index(name)], expected)


@each(lambda family: family.gradients_of, first_kind_only=True)
def test_gradients_of_the_adapter_equal_peft(both, largest, family, kind, name):
    ours, theirs = both.gradients(name), both.their_gradients(name)
    assert ours.keys() == theirs.keys()
    errors = [np.abs(ours[tensor] - x).max() / np.abs(x).max() for tensor, x in theirs.items()]
    largest[family, kind, "adapter gradients, share of the largest", name] = max(errors)
    assert max(errors) <= 1e-4


@each_first(FAMILIES)
def test_bfloat16_stays_near_float32(both, largest, family, kind):
    real = np.arange(both.logits.shape[1])[None] < both.prefix.length[:, None]
    difference = np.abs(both.bfloat16_logits - both.logits)[real]
    share = largest[family, kind, "bfloat16, share of the largest logit"] = (
        difference.max() / np.abs(both.logits[real]).max()
    )
    largest[family, kind, "bfloat16, mean difference"] = difference.mean()
    assert share <= 3e-2


@each_first(COUNTED)
def test_positions_differ_from_transformers_only_where_the_family_says_so(both):
    for name in both.family.seeing:
        wanted = ("input_ids", "mm_token_type_ids", "image_grid_thw", "video_grid_thw", "second_per_grid_ts")
        inputs = {k: v for k, v in both.inputs(name).items() if k in wanted}
        expected, _ = both.theirs.model.get_rope_index(**inputs)
        equal = np.array_equal(both.row(name).positions, expected[:, 0].numpy())
        assert equal == (name not in both.family.own_positions), name
