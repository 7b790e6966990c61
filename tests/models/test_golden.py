"""Ours against arrays that transformers computed once (tests/golden/make_qwen2_5_vl.py), from pixels to logits."""

import json
import pathlib

import numpy as np
import pytest
import safetensors.numpy
import tiny_vlm
from tiny_vlm import text

from vlrl.data import prompt, vision
from vlrl.io import hf_import
from vlrl.models import vlm

PATH = pathlib.Path(__file__).parents[1] / "golden" / "qwen2_5_vl.npz"
NAMES = ("image", "video", "text")
ATOL = 2e-4


@pytest.fixture(scope="module")
def golden():
    with np.load(PATH, allow_pickle=False) as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def ours(golden, tmp_path_factory):
    """(rows, features, logits) of the three prompts in one batch."""
    directory = tmp_path_factory.mktemp("golden")
    (directory / "config.json").write_text(str(golden["config"]))
    weights = {k.removeprefix("weights/"): v.astype(np.float32) for k, v in golden.items() if k.startswith("weights/")}
    safetensors.numpy.save_file(weights, directory / "model.safetensors")
    cfg, _ = hf_import.load_config(directory)
    variables = {"params": hf_import.load_params(directory, cfg, "float32")}
    image = prompt.Media("image", vision.slices(golden["image/frames"], cfg.vision, 1, 2**20))
    video = vision.slices(golden["video/frames"], cfg.vision, 1, 2**20)
    rows = [
        tiny_vlm.row(cfg, text(1, 2), image, text(3, 4, 5)),
        tiny_vlm.row(cfg, text(6), prompt.Media("video", video, float(golden["second_per_grid"])), text(7, 8, 9, 10)),
        tiny_vlm.row(cfg, text(*range(11, 31))),
    ]
    prefix = tiny_vlm.collate(cfg, rows, 30, slices=2, patches=64)
    model = vlm.Vlm(cfg)
    features = tiny_vlm.encode(model, variables["params"], prefix.vision)
    logits = tiny_vlm.logits_of_prefix(model, variables, prefix, features)
    return rows, prefix, np.asarray(features), np.asarray(logits)


def test_the_file_says_which_versions_wrote_it(golden):
    assert {"transformers", "torch", "numpy"} == json.loads(str(golden["versions"])).keys()


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_the_golden_ones(golden, ours, name):
    rows, _, _, logits = ours
    number = NAMES.index(name)
    np.testing.assert_array_equal(rows[number].tokens, golden[f"{name}/tokens"])
    expected = golden[f"{name}/logits"]
    np.testing.assert_allclose(logits[number, : len(expected)], expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", ["image", "video"])
def test_vision_features_equal_the_golden_ones(golden, ours, name):
    _, prefix, features, _ = ours
    number = NAMES.index(name)
    index = prefix.vision_index[number]
    np.testing.assert_allclose(features[number, index[index >= 0]], golden[f"{name}/features"], rtol=0, atol=ATOL)
