"""Qwen3-VL's tower: positions by hand, padding, and the maps of DeepStack."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny_vlm
from tiny_vlm import media, text

from vlrl.models import config, vision_qwen3, vlm
from vlrl.types import VisionInput

CFG = dataclasses.replace(
    tiny_vlm.CFG,
    family="qwen3_vl",
    qkv_bias=False,
    qk_norm=True,
    mrope_interleaved=True,
    vision=config.Qwen3Vision(
        depth=4,
        hidden_size=32,
        num_heads=2,
        intermediate_size=24,
        out_hidden_size=48,
        patch_size=4,
        num_position_embeddings=25,
        deepstack_indexes=(0, 2),
    ),
)
MODEL = vlm.Vlm(CFG)
FRAME = (16, 24)  # 4 x 6 patches: 2 x 3 merged units


@pytest.fixture(scope="module")
def params():
    return tiny_vlm.random_params(CFG)


def prefix(patches=24, slices=2):
    row = tiny_vlm.row(CFG, text(1, 2), media(CFG, "video", FRAME, frames=4), text(3), name="clip")
    return tiny_vlm.collate(CFG, [row], len(row.tokens), slices, patches)


def table(side):
    """Entry (row, column) of the learned positions is [row, column, 1]."""
    rows, columns = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    return np.stack([rows, columns, np.ones((side, side))], axis=-1).reshape(-1, 3).astype(np.float32)


def places(rows, columns):
    grid = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1)
    return grid.reshape(1, 1, -1, 2).astype(np.int32)


@pytest.mark.parametrize(("rows", "columns"), [(4, 6), (1, 7), (5, 5), (9, 2), (1, 1)])
def test_table_is_stretched_corner_on_corner(rows, columns):
    # A table that is linear in row and column stays linear: entry k of n lies at k * 4 / (n - 1) of 0..4.
    rope = places(rows, columns)
    made = np.asarray(vision_qwen3.interpolated(table(5), rope))
    stretch = np.array([4 / (rows - 1) if rows > 1 else 0, 4 / (columns - 1) if columns > 1 else 0])
    np.testing.assert_allclose(made[..., :2], rope * stretch, atol=1e-6)
    np.testing.assert_allclose(made[..., 2], 1, atol=1e-6)


def test_point_between_four_entries_is_their_mean():
    values = np.zeros((9, 1), np.float32)
    values[[0, 1, 3, 4], 0] = 1, 2, 3, 6
    # 5 places over 3 entries: (1, 1) lies halfway between (0, 0) and (1, 1)
    made = np.asarray(vision_qwen3.interpolated(values, places(5, 5))).reshape(5, 5)
    assert made[1, 1] == 3.0
    assert made[0, 1] == 1.5
    assert made[2, 2] == 6.0


def test_slices_of_different_sizes_are_stretched_each_by_its_own(params):
    small, large = places(2, 2), places(4, 4)
    together = np.zeros((1, 2, 16, 2), np.int32)
    together[0, 0, :4], together[0, 1] = small[0, 0], large[0, 0]
    made = np.asarray(vision_qwen3.interpolated(table(5), together))
    np.testing.assert_array_equal(made[0, 0, :4], vision_qwen3.interpolated(table(5), small)[0, 0])
    np.testing.assert_array_equal(made[0, 1], vision_qwen3.interpolated(table(5), large)[0, 0])


def test_features_are_the_merged_ones_and_a_map_for_each_named_block(params):
    features = tiny_vlm.encode(MODEL, params, prefix().vision)
    assert features.shape == (1, 12, 3 * 48)
    merged, first, second = np.split(np.asarray(features), 3, axis=-1)
    # The maps do not depend on later blocks: a tower that ends there makes the same.
    for depth, expected in ((1, first), (3, second)):
        cut = tiny_vlm.with_vision(CFG, depth=depth, deepstack_indexes=tuple(k for k in (0, 2) if k < depth))
        visual = params["visual"]
        shorter = {
            **visual,
            "blocks": jax.tree.map(lambda leaf, depth=depth: leaf[:depth], visual["blocks"]),
            "deep_mergers": jax.tree.map(lambda leaf, u=cut.vision.num_deep: leaf[:u], visual["deep_mergers"]),
        }
        made = tiny_vlm.encode(vlm.Vlm(cut), params | {"visual": shorter}, prefix().vision)
        np.testing.assert_allclose(made[..., -48:], expected, atol=1e-5)
    assert np.abs(first - second).max() > 0.1
    assert np.abs(merged - second).max() > 0.1


def test_tower_without_deepstack_makes_the_merged_features_alone(params):
    plain = tiny_vlm.with_vision(CFG, deepstack_indexes=())
    without = {name: leaf for name, leaf in params["visual"].items() if name != "deep_mergers"}
    made = tiny_vlm.encode(vlm.Vlm(plain), params | {"visual": without}, prefix().vision)
    np.testing.assert_allclose(made, tiny_vlm.encode(MODEL, params, prefix().vision)[..., :48], atol=1e-5)


def test_padding_changes_no_feature(params):
    exact = np.asarray(tiny_vlm.encode(MODEL, params, prefix().vision))
    padded = prefix(patches=36, slices=3)
    features = np.asarray(tiny_vlm.encode(MODEL, params, padded.vision))
    index = np.asarray(padded.vision_index)[0]
    np.testing.assert_allclose(features[0, index[index >= 0]], exact[0], atol=1e-5)
    assert np.isfinite(features).all()


def test_slices_do_not_see_each_other(params):
    vision = prefix().vision
    patches = vision.patches.copy()
    patches[0, 1] += 1
    changed = VisionInput(patches=patches, rope=vision.rope, window=vision.window)
    before, after = (np.asarray(tiny_vlm.encode(MODEL, params, v)) for v in (vision, changed))
    np.testing.assert_array_equal(before[0, :6], after[0, :6])
    assert np.abs(before[0, 6:] - after[0, 6:]).max() > 0.1


def test_fresh_tree_is_the_one_that_checkpoints_fill(params):
    branches = tiny_vlm.branches_of([[[5]]], 1)
    made = jax.eval_shape(MODEL.init, jax.random.key(0), prefix(), branches)["params"]
    assert jax.tree.map(lambda leaf: leaf.shape, made) == jax.tree.map(np.shape, params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_position_embeddings": 24}, "num_position_embeddings 24 is no square"),
        ({"deepstack_visual_indexes": [2, 0]}, r"deepstack_visual_indexes \[2, 0\] are not blocks of the 4 in asc"),
        ({"deepstack_visual_indexes": [4]}, r"deepstack_visual_indexes \[4\] are not blocks of the 4"),
        ({"hidden_act": "relu"}, "vision_config.hidden_act 'relu' is not implemented; use a checkpoint with"),
    ],
)
def test_setting_that_is_not_implemented_is_refused(changes, message):
    vision = {
        "depth": 4,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 24,
        "out_hidden_size": 48,
        "patch_size": 4,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 25,
        "deepstack_visual_indexes": [0, 2],
    }
    assert config.VISION["qwen3_vl"](vision, {}) == CFG.vision
    with pytest.raises(ValueError, match=message):
        config.VISION["qwen3_vl"](vision | changes, {})
