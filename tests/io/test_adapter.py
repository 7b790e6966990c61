"""A PEFT adapter is read as what it is, or refused with everything that does not fit."""

import json
import pickle

import jax
import numpy as np
import pytest
import safetensors.numpy

from vlrl.config import LoraConfig
from vlrl.io import hf_export, hf_import, hf_keys
from vlrl.models import config as model_config
from vlrl.models import lora
from vlrl.world import random_checkpoint

LORA = LoraConfig(rank=3, alpha=7.5, targets=("q_proj", "v_proj", "down_proj"))


@pytest.fixture(scope="module", params=random_checkpoint.HF_CONFIGS)
def family_base(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("base") / "base"
    random_checkpoint.write(directory, request.param, 0)
    return directory


def random_adapter(cfg, lora_cfg):
    rng = np.random.default_rng(5)
    shapes = hf_keys.lora_shapes(cfg, lora_cfg.rank, lora_cfg.targets)
    return hf_keys.unflatten({path: rng.normal(size=shape).astype(np.float32) for path, shape in shapes.items()})


@pytest.fixture
def exported(base, adapter, lora_cfg, tmp_path):
    hf_export.export_peft(base, adapter, lora_cfg, tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.fixture
def cfg(raw):
    return model_config.from_hf(raw)


def renamed(directory, rename):
    """The same adapter with other names; None drops a tensor."""
    file = directory / "adapter_model.safetensors"
    tensors = {rename(name): tensor for name, tensor in safetensors.numpy.load_file(file).items()}
    tensors.pop(None, None)
    safetensors.numpy.save_file(tensors, file)
    return directory


def setting(directory, **changes):
    file = directory / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return directory


def assert_same(one, other):
    one, other = hf_keys.flatten(one), hf_keys.flatten(other)
    assert one.keys() == other.keys()
    for path, leaf in one.items():
        assert leaf.dtype == other[path].dtype
        np.testing.assert_array_equal(leaf, other[path], err_msg=str(path))


def test_adapter_that_was_exported_is_read_back(family_base, tmp_path):
    cfg, _ = hf_import.load_config(family_base)
    adapter = random_adapter(cfg, LORA)
    hf_export.export_peft(family_base, adapter, LORA, tmp_path / "adapter")
    read, lora_cfg = hf_import.load_adapter(tmp_path / "adapter", cfg)
    assert lora_cfg == LORA
    assert_same(read, adapter)
    hf_export.export_peft(family_base, read, lora_cfg, tmp_path / "again")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "adapter" / name).read_bytes()


def test_adapter_has_the_tree_that_a_run_trains(family_base, tmp_path):
    cfg, _ = hf_import.load_config(family_base)
    hf_export.export_peft(family_base, random_adapter(cfg, LORA), LORA, tmp_path / "adapter")
    read, lora_cfg = hf_import.load_adapter(tmp_path / "adapter", cfg)
    trained = jax.eval_shape(lambda key: lora.init(key, hf_import.shapes(cfg, "bfloat16"), lora_cfg), jax.random.key(0))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), read) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), trained
    )


def test_names_over_older_transformers_are_accepted(exported, adapter, cfg):
    renamed(exported, lambda name: name.replace("model.language_model.layers", "model.layers"))
    assert_same(hf_import.load_adapter(exported, cfg)[0], adapter)


def test_half_precision_becomes_float32(exported, adapter, cfg):
    file = exported / "adapter_model.safetensors"
    half = {name: tensor.astype("bfloat16") for name, tensor in safetensors.numpy.load_file(file).items()}
    safetensors.numpy.save_file(half, file)
    rounded = jax.tree.map(lambda leaf: leaf.astype("bfloat16").astype(np.float32), adapter)
    assert_same(hf_import.load_adapter(exported, cfg)[0], rounded)


def test_everything_that_does_not_fit_is_listed(exported, cfg):
    tower = "base_model.model.model.visual.blocks.0.mlp.up_proj.lora_A.weight"
    first = "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight"
    renamed(exported, lambda name: tower if name == first else name.replace("layers.1.mlp", "layers.7.mlp"))
    with pytest.raises(ValueError, match="does not fit this qwen2_5_vl base; give one of its language") as error:
        hf_import.load_adapter(exported, cfg)
    lines = str(error.value).splitlines()[1:]
    prefix = "base_model.model.model.language_model.layers"
    assert sorted(line.strip() for line in lines) == [
        f"missing {prefix}.0.self_attn.q_proj.lora_A.weight [2, 8]",
        f"missing {prefix}.1.mlp.down_proj.lora_A.weight [2, 12]",
        f"missing {prefix}.1.mlp.down_proj.lora_B.weight [8, 2]",
        f"unexpected {prefix}.7.mlp.down_proj.lora_A.weight in adapter_model.safetensors",
        f"unexpected {prefix}.7.mlp.down_proj.lora_B.weight in adapter_model.safetensors",
        f"unexpected {tower} in adapter_model.safetensors",
    ]


def test_adapter_of_another_size_is_misshapen(exported, raw):
    other = model_config.from_hf(raw | {"intermediate_size": 16})
    with pytest.raises(
        ValueError, match=r"misshapen .*layers\.0\.mlp\.down_proj\.lora_A\.weight: \[2, 12\], expected \[2, 16\]"
    ):
        hf_import.load_adapter(exported, other)


def test_rank_that_is_not_the_files_is_seen_in_every_tensor(exported, cfg):
    with pytest.raises(ValueError, match="does not fit") as error:
        hf_import.load_adapter(setting(exported, r=4), cfg)
    assert str(error.value).count("misshapen") == 2 * 2 * 2


def test_adapter_of_another_family_is_refused(exported):
    cfg = model_config.from_hf(random_checkpoint.hf_config("qwen3"))
    with pytest.raises(ValueError, match="does not fit this qwen3 base"):
        hf_import.load_adapter(exported, cfg)


@pytest.mark.parametrize(
    ("name", "value"),
    [("use_dora", True), ("use_rslora", True), ("bias", "lora_only"), ("modules_to_save", ["lm_head"]),
     ("rank_pattern", {"q_proj": 4}), ("alpha_pattern", {"q_proj": 4}), ("layer_replication", [[0, 1]])],
)  # fmt: skip
def test_setting_that_makes_it_another_function_is_refused_by_name(exported, cfg, name, value):
    with pytest.raises(ValueError, match=rf"adapter_config\.json: {name} .* is not implemented; merge the adapter"):
        hf_import.load_adapter(setting(exported, **{name: value}), cfg)


def test_other_kind_of_adapter_is_refused(exported, cfg):
    with pytest.raises(ValueError, match="peft_type 'IA3' is not implemented; use a LORA adapter"):
        hf_import.load_adapter(setting(exported, peft_type="IA3"), cfg)


def test_config_without_a_rank_is_named(exported, cfg):
    with pytest.raises(ValueError, match="r None and lora_alpha 3 must be numbers"):
        hf_import.load_adapter(setting(exported, r=None), cfg)


def test_pickled_adapter_is_refused_and_never_opened(exported, cfg, tmp_path):
    class Payload:
        def __reduce__(self):
            return (open, (str(tmp_path / "sentinel"), "w"))

    (exported / "adapter_model.safetensors").unlink()
    (exported / "adapter_model.bin").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(ValueError, match=r"only pickled weights \(adapter_model\.bin\)"):
        hf_import.load_adapter(exported, cfg)
    assert not (tmp_path / "sentinel").exists()


def test_directory_without_an_adapter_is_named(base, cfg):
    with pytest.raises(ValueError, match=r"base/adapter_model\.safetensors: no such file"):
        hf_import.load_adapter(base, cfg)
