import json

import pytest

from vlrl.io import run_manifest


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    (tmp_path / "base" / "model.safetensors").write_bytes(b"weights")
    config = {"seed": 0, "opt": {"lr": 1e-6}, "log": {"tensorboard": True}, "betas": (0.9, 0.99)}
    return config, [str(tmp_path / "train.jsonl"), ""], [str(tmp_path / "base"), ""]


def test_unchanged_run_has_no_differences(inputs):
    old = run_manifest.build(*inputs)
    assert run_manifest.compare(json.loads(json.dumps(old)), run_manifest.build(*inputs)) == []
    assert run_manifest.notes(json.loads(json.dumps(old)), run_manifest.build(*inputs)) == []


def test_hashes_are_sha256_of_the_files(inputs, tmp_path):
    manifest = run_manifest.build(*inputs)
    # sha256 of b"weights", from `sha256sum`.
    assert manifest["base"][str(tmp_path / "base")]["model.safetensors"] == (
        "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c"
    )


def test_changed_config_shows_field_and_values(inputs):
    config, data, base = inputs
    old = run_manifest.build(*inputs)
    new = run_manifest.build(config | {"opt": {"lr": 1e-5}, "extra": 1}, data, base)
    assert run_manifest.compare(old, new) == ["config.opt.lr: 1e-06 -> 1e-05", 'config.extra: "(absent)" -> 1']


def test_logging_and_checkpointing_may_change(inputs):
    config, data, base = inputs
    new = run_manifest.build(config | {"log": {"tensorboard": False}}, data, base)
    assert run_manifest.compare(run_manifest.build(*inputs), new) == []


@pytest.mark.parametrize("name", ["train.jsonl", "base/model.safetensors", "base/config.json"])
def test_changed_data_or_base_is_named(inputs, tmp_path, name):
    old = run_manifest.build(*inputs)
    (tmp_path / name).write_text("other")
    (line,) = run_manifest.compare(old, run_manifest.build(*inputs))
    assert name.split("/")[-1] in line
    assert " -> " in line


def test_added_base_file_is_named(inputs, tmp_path):
    old = run_manifest.build(*inputs)
    (tmp_path / "base" / "added.json").write_text("{}")
    (line,) = run_manifest.compare(old, run_manifest.build(*inputs))
    assert "added.json" in line


def test_changed_code_is_named(inputs):
    old = run_manifest.build(*inputs)
    assert "io/run_manifest.py" in old["code"]
    old["code"]["io/run_manifest.py"] = "0"
    (line,) = run_manifest.compare(old, run_manifest.build(*inputs))
    assert line.startswith('code.io/run_manifest.py: "0" -> ')


def test_changed_version_is_a_note_and_no_difference(inputs):
    old, new = run_manifest.build(*inputs), run_manifest.build(*inputs)
    old["versions"]["jax"] = "0.1"
    assert run_manifest.compare(old, new) == []
    (line,) = run_manifest.notes(old, new)
    assert line.startswith('versions.jax: "0.1" -> ')


def test_secrets_are_left_out(inputs):
    config, data, base = inputs
    config = config | {"referee": {"api_key": "canary", "HF_TOKEN": "canary"}, "max_new_tokens": 5}
    manifest = run_manifest.build(config, data, base)
    assert "canary" not in json.dumps(manifest)
    assert manifest["config"]["max_new_tokens"] == 5


@pytest.mark.parametrize("missing", ["train.jsonl", "base"])
def test_missing_input_is_named(inputs, tmp_path, missing):
    (tmp_path / missing).rename(tmp_path / "moved")
    with pytest.raises(ValueError, match=missing):
        run_manifest.build(*inputs)
