"""Presets beside transformers, which builds the same config without memory."""

import json

import jax
import numpy as np
import pytest
import torch
import transformers

from vlrl.io import hf_import, hf_keys
from vlrl.models import presets

CLASSES = {
    "qwen2_5_vl": transformers.Qwen2_5_VLForConditionalGeneration,
    "qwen3_vl": transformers.Qwen3VLForConditionalGeneration,
    "internvl": transformers.InternVLForConditionalGeneration,
    "qwen2": transformers.Qwen2ForCausalLM,
    "qwen3": transformers.Qwen3ForCausalLM,
}


@pytest.fixture(scope="module", params=list(presets.PRESETS))
def theirs(request, tmp_path_factory):
    """The preset, and the model that transformers makes of it as a config.json."""
    raw = presets.PRESETS[request.param]
    directory = tmp_path_factory.mktemp("preset")
    (directory / "config.json").write_text(json.dumps(raw))
    config = transformers.AutoConfig.from_pretrained(directory)
    with torch.device("meta"):
        return request.param, CLASSES[raw["model_type"]](config)


def test_parameter_count_is_that_of_transformers(theirs):
    name, model = theirs
    shapes = jax.tree.leaves(hf_import.shapes(presets.get(name), "bfloat16"))
    assert sum(int(np.prod(leaf.shape)) for leaf in shapes) == model.num_parameters()


def test_every_tensor_of_transformers_has_its_leaf(theirs):
    name, model = theirs
    cfg = presets.get(name)
    ours = {name: entry.shape for entry in hf_keys.table(cfg) for name in entry.names}
    # A tied head is the embedding once more.
    parameters = {hf_keys.canonical(cfg.family, name): tuple(p.shape) for name, p in model.named_parameters()}
    assert parameters == ours
