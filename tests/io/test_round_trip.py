"""Import, export, import: nothing changes, for every family, with the head tied and untied."""

import json

import numpy as np
import pytest
import safetensors.numpy

from vlrl.config import LoraConfig
from vlrl.io import hf_export, hf_import, hf_keys
from vlrl.world import random_checkpoint

LORA = LoraConfig(rank=2, alpha=3.0)


@pytest.fixture(
    scope="module", params=[(f, tied) for f in random_checkpoint.HF_CONFIGS for tied in (False, True)], ids=str
)
def raw(request):
    family, tied = request.param
    raw = random_checkpoint.hf_config(family)
    for part in (raw, raw.get("text_config", raw)):
        part["tie_word_embeddings"] = tied
    return raw


@pytest.fixture(scope="module")
def params(raw):
    return random_checkpoint.params(raw, 0)


@pytest.fixture(scope="module")
def base(raw, params, tmp_path_factory):
    directory = tmp_path_factory.mktemp("round_trip") / "base"
    hf_export.export_full(raw, params, "float32", directory)
    return directory


@pytest.fixture(scope="module")
def zero(base):
    shapes = hf_keys.lora_shapes(hf_import.load_config(base)[0], LORA.rank, LORA.targets)
    return hf_keys.unflatten({path: np.zeros(shape, np.float32) for path, shape in shapes.items()})


def load(directory, dtype="float32"):
    return hf_import.load_params(directory, hf_import.load_config(directory)[0], dtype)


def assert_same(one, other):
    one, other = hf_keys.flatten(one), hf_keys.flatten(other)
    assert one.keys() == other.keys()
    for path, leaf in one.items():
        np.testing.assert_array_equal(leaf, other[path], err_msg=str(path))


def test_what_was_exported_is_imported(base, params):
    assert_same(load(base), params)


@pytest.mark.parametrize("from_files", [False, True])
def test_import_then_export_gives_the_same_files(base, zero, tmp_path, from_files):
    weights = None if from_files else load(base)
    hf_export.export_merged(base, weights, zero, LORA, tmp_path / "again")
    before, after = (safetensors.numpy.load_file(path / "model.safetensors") for path in (base, tmp_path / "again"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert (tensor.dtype, tensor.tobytes()) == (after[name].dtype, after[name].tobytes()), name
    configs = [json.loads((path / "config.json").read_text()) for path in (base, tmp_path / "again")]
    assert configs[0] == configs[1]
    assert_same(load(tmp_path / "again"), load(base))


def test_half_precision_round_trips_bit_for_bit(raw, params, zero, tmp_path):
    hf_export.export_full(raw, params, "bfloat16", tmp_path / "half", max_shard_bytes=100_000)
    hf_export.export_merged(tmp_path / "half", load(tmp_path / "half", "bfloat16"), zero, LORA, tmp_path / "again")
    assert_same(load(tmp_path / "again", "bfloat16"), load(tmp_path / "half", "bfloat16"))
