import json
import re

import numpy as np
import pytest
import safetensors.numpy
from tiny_base import tensors_of, tiny_config, write_base

from vlrl.config import LoraConfig
from vlrl.io import hf_export, hf_import, hf_keys


def files(directory):
    return {path.name for path in directory.iterdir()}


def load(directory, dtype="float32"):
    cfg, _ = hf_import.load_config(directory)
    return hf_import.load_params(directory, cfg, dtype)


def assert_equal_trees(one, other):
    one, other = hf_keys.flatten(one), hf_keys.flatten(other)
    assert one.keys() == other.keys()
    for path in one:
        np.testing.assert_array_equal(one[path], other[path], err_msg=str(path))


@pytest.fixture
def zero(adapter):
    return hf_keys.unflatten({path: 0 * leaf for path, leaf in hf_keys.flatten(adapter).items()})


def test_import_then_export_with_a_zero_adapter_is_identity(base, tmp_path, tensors, zero, lora_cfg):
    hf_export.export_merged(base, load(base, "bfloat16"), zero, lora_cfg, tmp_path / "out")
    written = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert written[name].dtype == tensor.dtype
        assert np.array_equal(written[name], tensor), name


def test_merged_weight_is_base_plus_scaled_product(tmp_path, raw, adapter, lora_cfg):
    base = write_base(tmp_path / "base", raw, tensors_of(raw, "float32"))
    hf_export.export_merged(base, None, adapter, lora_cfg, tmp_path / "out")
    before, after = load(base), load(tmp_path / "out")
    for target in ("q_proj", "down_proj"):
        leaves = adapter["decoder"]["layers"][target]
        kernel = before["decoder"]["layers"][target].pop("kernel")
        expected = kernel + 1.5 * np.einsum("lir,lro->lio", leaves["a"], leaves["b"])  # alpha / rank = 3 / 2
        actual = after["decoder"]["layers"][target].pop("kernel")
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
        assert not np.allclose(actual, kernel)
    assert_equal_trees(before, after)


def test_merge_is_rounded_once_to_the_dtype_of_the_file(base, tmp_path, tensors, adapter, lora_cfg):
    hf_export.export_merged(base, None, adapter, lora_cfg, tmp_path / "out")
    written = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    leaves = adapter["decoder"]["layers"]["down_proj"]
    exact = tensors[name].astype(np.float32) + np.float32(1.5) * (leaves["a"][1] @ leaves["b"][1]).T
    assert np.array_equal(written[name], exact.astype(tensors[name].dtype))


def test_base_files_beat_rounded_params(tmp_path, raw, zero, lora_cfg):
    base = write_base(tmp_path / "base", raw, tensors_of(raw, "float32"))
    hf_export.export_merged(base, None, zero, lora_cfg, tmp_path / "files")
    hf_export.export_merged(base, load(base, "bfloat16"), zero, lora_cfg, tmp_path / "params")
    assert_equal_trees(load(tmp_path / "files"), load(base))
    rounded = load(tmp_path / "params")["embed"]["embedding"]
    np.testing.assert_array_equal(rounded, load(base, "bfloat16")["embed"]["embedding"].astype(np.float32))


def test_export_above_the_shard_limit_is_split_and_indexed(base, tmp_path, adapter, lora_cfg):
    hf_export.export_merged(base, None, adapter, lora_cfg, tmp_path / "one")
    hf_export.export_merged(base, None, adapter, lora_cfg, tmp_path / "many", max_shard_bytes=3000)
    shards = list((tmp_path / "many").glob("*.safetensors"))
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    total = sum(leaf.size * 2 for leaf in hf_keys.flatten(load(base)).values())
    assert len(shards) > 1
    assert index["metadata"]["total_size"] == total
    assert set(index["weight_map"].values()) == {path.name for path in shards}
    assert_equal_trees(load(tmp_path / "many"), load(tmp_path / "one"))


def test_sharded_base_keeps_its_names(tmp_path, raw, tensors, zero, lora_cfg):
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    base = write_base(tmp_path / "base", raw, renamed, shards=2)
    hf_export.export_merged(base, None, zero, lora_cfg, tmp_path / "out")
    written = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == renamed.keys()


@pytest.mark.parametrize("tied", [True, False])
def test_flag_and_head_agree_in_the_export(tmp_path, lora_cfg, zero, tied):
    raw = tiny_config(tied)
    tensors = tensors_of(raw, "float32")
    if tied:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    del raw["tie_word_embeddings"]
    if tied:
        raw["tie_word_embeddings"] = True
    hf_export.export_merged(write_base(tmp_path / "base", raw, tensors), None, zero, lora_cfg, tmp_path / "out")
    written = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is tied
    assert ("lm_head.weight" in written) is not tied


def test_small_files_are_carried_over_and_code_is_not(base, tmp_path, adapter, lora_cfg):
    hf_export.export_merged(base, None, adapter, lora_cfg, tmp_path / "out")
    assert files(tmp_path / "out") == {
        "config.json",
        "model.safetensors",
        "generation_config.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ messages }}"


def test_used_directory_is_refused_and_left_alone(base, tmp_path, adapter, lora_cfg):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("keep")
    for export in (hf_export.export_peft, lambda *args: hf_export.export_merged(args[0], None, *args[1:])):
        with pytest.raises(ValueError, match=r"out: already in use"):
            export(base, adapter, lora_cfg, tmp_path / "out")
    assert files(tmp_path / "out") == {"thesis.txt"}
    assert files(tmp_path) == {"out", "base"}


def test_empty_directory_is_filled_and_overwrite_replaces(base, tmp_path, adapter, lora_cfg):
    (tmp_path / "out").mkdir()
    hf_export.export_peft(base, adapter, lora_cfg, tmp_path / "out")
    (tmp_path / "out" / "stale.txt").write_text("old")
    hf_export.export_peft(base, adapter, lora_cfg, tmp_path / "out", overwrite=True)
    assert files(tmp_path / "out") == {"adapter_config.json", "adapter_model.safetensors"}
    assert files(tmp_path) == {"out", "base"}


def test_base_directory_is_never_overwritten(base, tmp_path, adapter, lora_cfg):
    for out in (base, tmp_path):
        with pytest.raises(ValueError, match="holds the base checkpoint"):
            hf_export.export_merged(base, None, adapter, lora_cfg, out, overwrite=True)
    assert load(base)


def test_failed_export_leaves_the_previous_one(base, tmp_path, adapter, lora_cfg):
    hf_export.export_merged(base, None, adapter, lora_cfg, tmp_path / "out")
    adapter["decoder"]["layers"]["q_proj"]["b"][1, 0, 0] = np.nan
    with pytest.raises(ValueError, match=r"not finite: model\.layers\.1\.self_attn\.q_proj\.weight"):
        hf_export.export_merged(base, None, adapter, lora_cfg, tmp_path / "out", overwrite=True)
    with pytest.raises(ValueError, match=r"not finite: base_model.*layers\.1.*q_proj\.lora_B\.weight"):
        hf_export.export_peft(base, adapter, lora_cfg, tmp_path / "peft")
    assert np.isfinite(load(tmp_path / "out")["decoder"]["layers"]["q_proj"]["kernel"]).all()
    assert files(tmp_path) == {"out", "base"}


def test_leftover_of_a_killed_export_is_cleared(base, tmp_path, adapter, lora_cfg):
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "model.safetensors").write_text("half")
    hf_export.export_peft(base, adapter, lora_cfg, tmp_path / "out")
    assert files(tmp_path) == {"out", "base"}


def test_adapter_that_does_not_fit_lists_every_leaf(base, tmp_path, adapter, lora_cfg):
    layers = adapter["decoder"]["layers"]
    layers["q_porj"] = layers.pop("q_proj")
    layers["down_proj"]["a"] = np.zeros((2, 12, 3), np.float32)
    for export in (hf_export.export_peft, lambda *args: hf_export.export_merged(args[0], None, *args[1:])):
        with pytest.raises(ValueError, match="adapter: does not fit") as caught:
            export(base, adapter, lora_cfg, tmp_path / "out")
        for line in (
            "missing decoder/layers/q_proj/a [2, 8, 2]",
            "missing decoder/layers/q_proj/b [2, 2, 8]",
            "unexpected decoder/layers/q_porj/a",
            "misshapen decoder/layers/down_proj/a: [2, 12, 3], expected [2, 12, 2]",
        ):
            assert line in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_params_that_do_not_fit_are_refused(base, tmp_path, adapter, lora_cfg):
    params = load(base)
    del params["visual"]
    with pytest.raises(ValueError, match=r"params: does not fit[\s\S]*missing visual/merger/norm/scale"):
        hf_export.export_merged(base, params, adapter, lora_cfg, tmp_path / "out")


def test_adapter_names_hold_no_vision_module(base, tmp_path, adapter, lora_cfg):
    hf_export.export_peft(base, adapter, lora_cfg, tmp_path / "out")
    written = safetensors.numpy.load_file(tmp_path / "out" / "adapter_model.safetensors")
    prefix = "base_model.model.model.language_model.layers."
    assert set(written) == {
        f"{prefix}{i}.{module}.lora_{half}.weight"
        for i in (0, 1)
        for module in ("self_attn.q_proj", "mlp.down_proj")
        for half in "AB"
    }
    a = written[f"{prefix}1.mlp.down_proj.lora_A.weight"]
    assert np.array_equal(a, adapter["decoder"]["layers"]["down_proj"]["a"][1].T)
    assert a.shape == (2, 12)


def test_adapter_config_targets_the_language_layers_only(base, tmp_path, adapter, lora_cfg):
    hf_export.export_peft(base, adapter, lora_cfg, tmp_path / "out", base_name="Qwen/Qwen2.5-VL-7B-Instruct")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["use_rslora"]) == (2, 3, False)
    assert config["base_model_name_or_path"] == "Qwen/Qwen2.5-VL-7B-Instruct"
    pattern = config["target_modules"]
    assert re.fullmatch(pattern, "model.language_model.layers.27.self_attn.q_proj")
    assert re.fullmatch(pattern, "model.language_model.layers.0.mlp.down_proj")
    assert not re.fullmatch(pattern, "model.visual.blocks.0.mlp.down_proj")
    assert not re.fullmatch(pattern, "model.language_model.layers.0.self_attn.k_proj")


def test_whole_model_round_trips(tmp_path, raw, base):
    params = load(base)
    hf_export.export_full(raw, params, "float32", tmp_path / "out", carry_from=base, max_shard_bytes=5000)
    assert_equal_trees(load(tmp_path / "out"), params)
    assert "tokenizer_config.json" in files(tmp_path / "out")


def test_alpha_that_is_no_whole_number_stays(base, tmp_path, adapter):
    hf_export.export_peft(base, adapter, LoraConfig(2, 1.5, ("q_proj", "down_proj")), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["lora_alpha"] == 1.5
