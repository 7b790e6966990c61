"""Exports of every family, read by the transformers and peft that are installed; and that a fault would be seen."""

import json
import shutil

import check_exports
import pytest
import safetensors.numpy

FITS = {"merged": "", "sharded": "", "adapter": "", "files": ""}


@pytest.mark.parametrize("case", check_exports.CASES)
def test_export_loads_without_a_word_about_keys_and_has_our_logits(tmp_path, case):
    check_exports.make(tmp_path / "made", case)
    assert check_exports.check(tmp_path / "made", case) == FITS


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("made") / "made"
    check_exports.make(directory, "qwen2_5_vl untied")
    return directory


@pytest.fixture
def spoilt(made, tmp_path):
    """A copy of the exports; spoilt(file, rename) gives its tensors other names."""

    def spoil(file, rename):
        directory = shutil.copytree(made, tmp_path / "spoilt")
        tensors = safetensors.numpy.load_file(directory / file)
        renamed = {rename(name): tensor for name, tensor in tensors.items()}
        safetensors.numpy.save_file(renamed, directory / file, metadata={"format": "pt"})
        return directory, check_exports.check(directory, "qwen2_5_vl untied")

    return spoil


def faults(found):
    return {name for name, fault in found.items() if fault}


def test_adapter_with_names_of_older_transformers_is_seen(spoilt):
    _, found = spoilt("adapter/adapter_model.safetensors", lambda name: name.replace("language_model.", ""))
    assert faults(found) == {"adapter"}
    assert "logits differ" in found["adapter"]


def test_weight_under_another_name_is_seen(spoilt):
    _, found = spoilt("merged/model.safetensors", lambda name: name.replace("visual.merger.ln_q", "visual.merger.norm"))
    assert faults(found) == {"merged"}
    assert "visual.merger.ln_q.weight" in found["merged"]


def test_wrong_scale_of_the_adapter_is_seen(made, tmp_path):
    directory = shutil.copytree(made, tmp_path / "spoilt")
    config = json.loads((directory / "adapter" / "adapter_config.json").read_text())
    (directory / "adapter" / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 3}))
    found = check_exports.check(directory, "qwen2_5_vl untied")
    assert faults(found) == {"adapter"}
