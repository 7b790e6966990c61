import numpy as np
import pytest

from vlrl.io import hf_entry, hf_keys
from vlrl.models import config as model_config


def entry(raw: dict, *path: str) -> hf_entry.Entry:
    return next(e for e in hf_keys.table(model_config.from_hf(raw)) if e.path == path)


def test_every_leaf_and_every_tensor_appears_once(raw):
    table = hf_keys.table(model_config.from_hf(raw))
    names = [name for e in table for name in e.names]
    assert len(set(names)) == len(names)
    assert len({e.path for e in table}) == len(table)
    # 12 per language layer, 12 per vision block, 1 patch embedding, 5 of the merger, embedding, norm, head.
    assert len(names) == 2 * 12 + 3 * 12 + 1 + 5 + 3


def test_stacked_kernel_is_the_transpose_of_every_layer(raw):
    e = entry(raw, "decoder", "layers", "k_proj", "kernel")
    assert e.names == ("model.layers.0.self_attn.k_proj.weight", "model.layers.1.self_attn.k_proj.weight")
    assert e.shape == (4, 8)
    assert e.leaf_shape == (2, 8, 4)


def test_patch_kernel_has_one_row_per_number_of_a_patch(raw):
    e = entry(raw, "visual", "patch_embed", "kernel")
    conv = np.arange(6 * 3 * 2 * 14 * 14).reshape(6, 3, 2, 14, 14)
    kernel = hf_entry.to_ours(e, conv)
    patch = np.random.default_rng(0).integers(0, 9, size=(3, 2, 14, 14))
    by_hand = [(conv[out] * patch).sum() for out in range(6)]
    assert (patch.reshape(-1) @ kernel).tolist() == by_hand
    assert np.array_equal(hf_entry.to_hf(e, kernel), conv)


def test_head_is_in_the_table_only_when_untied(raw):
    tied = raw | {"tie_word_embeddings": True}
    assert ("lm_head", "kernel") in {e.path for e in hf_keys.table(model_config.from_hf(raw))}
    assert ("lm_head", "kernel") not in {e.path for e in hf_keys.table(model_config.from_hf(tied))}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("model.language_model.layers.0.input_layernorm.weight", "model.layers.0.input_layernorm.weight"),
        ("model.visual.merger.ln_q.weight", "visual.merger.ln_q.weight"),
        ("model.layers.0.input_layernorm.weight", "model.layers.0.input_layernorm.weight"),
        ("lm_head.weight", "lm_head.weight"),
    ],
)
def test_names_of_the_module_tree_become_names_of_the_hub(theirs, ours):
    assert hf_keys.canonical("qwen2_5_vl", theirs) == ours


def test_unknown_adapter_target_is_refused(raw):
    with pytest.raises(ValueError, match=r"\['qkv'\].*choose from"):
        hf_keys.lora_shapes(model_config.from_hf(raw), 2, ("q_proj", "qkv"))


def test_adapter_shapes_follow_the_kernel(raw):
    shapes = hf_keys.lora_shapes(model_config.from_hf(raw), 2, ("down_proj",))
    assert shapes == {
        ("decoder", "layers", "down_proj", "a"): (2, 12, 2),
        ("decoder", "layers", "down_proj", "b"): (2, 2, 8),
    }


def test_flatten_and_unflatten_are_inverse():
    tree = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert hf_keys.flatten(tree) == {("a", "b"): 1, ("a", "c", "d"): 2, ("e",): 3}
    assert hf_keys.unflatten(hf_keys.flatten(tree)) == tree
