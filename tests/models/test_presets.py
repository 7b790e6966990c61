"""Published sizes: what our tree has of them, what transformers computes, and what the hub says."""

import jax
import numpy as np
import pytest

from vlrl.io import hf_import, hf_keys
from vlrl.models import presets, vlm
from vlrl.types import Branches, PrefixInput, VisionInput

PUBLISHED = {
    # Parameters in the safetensors of each repository on the hub.
    "Qwen/Qwen2.5-VL-3B-Instruct": 3_754_622_976,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8_292_166_656,
    "Qwen/Qwen3-VL-2B-Instruct": 2_127_532_032,
    "Qwen/Qwen3-VL-4B-Instruct": 4_437_815_808,
    "Qwen/Qwen3-VL-8B-Instruct": 8_767_123_696,
    "OpenGVLab/InternVL3-2B-hf": 2_088_957_440,
    "OpenGVLab/InternVL3-8B-hf": 7_944_373_760,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen3-8B": 8_190_735_360,
}
NAMES = list(presets.PRESETS)


def count(shapes):
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))


def model_shapes(cfg):
    """The tree that the model itself would make, by shapes only, on a prompt of one slice."""
    tower = cfg.vision
    side = getattr(tower, "image_size", 8 * tower.patch_size) // tower.patch_size
    slices = (1, 1, side * side) if tower.depth else (1, 0, 0)
    text, one = np.zeros((1, 6), int), np.ones((1,), int)
    patches = np.zeros((*slices, tower.patch_width), np.float32)
    seen = VisionInput(patches, np.zeros((*slices, 2), int), np.zeros(slices, int))
    prefix = PrefixInput(text, one, np.zeros((1, 3, 6), int), one, text, seen)
    made = jax.eval_shape(vlm.Vlm(cfg).init, jax.random.key(0), prefix, Branches(text[None], one[None]))
    return made["params"]


@pytest.mark.parametrize("name", NAMES)
def test_tree_has_as_many_numbers_as_the_published_checkpoint(name):
    assert count(hf_import.shapes(presets.get(name), "bfloat16")) == PUBLISHED[name]


@pytest.mark.parametrize(
    "name",
    [name for name in NAMES if type(presets.get(name).vision) in vlm.TOWERS or not presets.get(name).vision.depth],
)
def test_model_makes_the_tree_that_import_fills(name):
    cfg = presets.get(name)
    made, filled = hf_keys.flatten(model_shapes(cfg)), hf_keys.flatten(hf_import.shapes(cfg, "float32"))
    assert {path: leaf.shape for path, leaf in made.items()} == {path: leaf.shape for path, leaf in filled.items()}


def test_preset_that_is_not_known_is_answered_with_those_that_are():
    with pytest.raises(ValueError, match=r"preset 'Qwen/Qwen2-VL' is not known; choose one of Qwen/Qwen2.5-VL-3B-In"):
        presets.get("Qwen/Qwen2-VL")
