"""What we export, read by those who will read it: transformers and peft."""

import json
import warnings

import numpy as np
import peft
import pytest
import torch
import transformers

from vlrl.config import LoraConfig
from vlrl.io import hf_export, hf_import, hf_keys

LORA = LoraConfig(rank=3, alpha=12.0)
VIDEO, START, END = 151, 152, 153


def config(tied: bool) -> transformers.Qwen2_5_VLConfig:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    return transformers.Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 160,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 48,
            "rope_parameters": rope,
            "tie_word_embeddings": tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 40,
            "out_hidden_size": 32,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
        tie_word_embeddings=tied,
        image_token_id=150,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
    )


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def base(request, tmp_path):
    torch.manual_seed(0)
    transformers.Qwen2_5_VLForConditionalGeneration(config(request.param)).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def adapter(base):
    rng = np.random.default_rng(1)
    shapes = hf_keys.lora_shapes(hf_import.load_config(base)[0], LORA.rank, LORA.targets)
    return hf_keys.unflatten({p: rng.normal(scale=0.3, size=s).astype(np.float32) for p, s in shapes.items()})


def load(directory):
    """The model, and everything that transformers had to say about its keys."""
    model, info = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(
        directory, output_loading_info=True, dtype=torch.float32
    )
    return model.eval(), {key: value for key, value in info.items() if value}


@torch.no_grad()
def logits(model) -> np.ndarray:
    """Of a prompt with one video of 4 frames, 4 x 4 patches each: 2 slices of 4 merged tokens."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.tensor([[5, START, *[VIDEO] * 8, END, 7, 8, 9]])
    return model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == VIDEO).int() * 2,
        pixel_values_videos=torch.randn(2 * 4 * 4, 3 * 2 * 14 * 14, generator=generator),
        video_grid_thw=torch.tensor([[2, 4, 4]]),
        second_per_grid_ts=torch.tensor([1.0]),
    ).logits.numpy()


@pytest.mark.parametrize("max_shard_bytes", [10**9, 50_000], ids=["single", "sharded"])
def test_merged_export_loads_without_missing_or_unexpected_keys(base, adapter, tmp_path, max_shard_bytes):
    hf_export.export_merged(base, None, adapter, LORA, tmp_path / "merged", max_shard_bytes=max_shard_bytes)
    _, complaints = load(tmp_path / "merged")
    assert complaints == {}


def test_import_then_export_gives_the_same_model(base, adapter, tmp_path):
    zero = hf_keys.unflatten({path: 0 * leaf for path, leaf in hf_keys.flatten(adapter).items()})
    params = hf_import.load_params(base, hf_import.load_config(base)[0], "float32")
    hf_export.export_merged(base, params, zero, LORA, tmp_path / "same")
    before, after = load(base)[0].state_dict(), load(tmp_path / "same")[0].state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_adapter_in_peft_equals_merged_export_and_differs_from_base(base, adapter, tmp_path):
    hf_export.export_merged(base, None, adapter, LORA, tmp_path / "merged")
    hf_export.export_peft(base, adapter, LORA, tmp_path / "adapter")
    plain = logits(load(base)[0])
    merged = logits(load(tmp_path / "merged")[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # an adapter whose names do not fit is only a warning
        wrapped = peft.PeftModel.from_pretrained(load(base)[0], tmp_path / "adapter")
    adapted = logits(wrapped)
    assert np.abs(merged - plain).max() > 0.05
    np.testing.assert_allclose(adapted, merged, atol=2e-5)


def test_peft_finds_exactly_the_names_that_it_would_write(base, adapter, tmp_path):
    hf_export.export_peft(base, adapter, LORA, tmp_path / "adapter")
    model = peft.PeftModel.from_pretrained(load(base)[0], tmp_path / "adapter")
    result = peft.utils.set_peft_model_state_dict(
        model, peft.utils.load_peft_weights(str(tmp_path / "adapter"), device="cpu")
    )
    assert result.unexpected_keys == []
    assert [key for key in result.missing_keys if "lora" in key] == []
    names = [name for name, _ in model.named_parameters() if "lora_" in name]
    assert len(names) == 3 * 7 * 2
    assert not any("visual" in name for name in names)


def test_adapter_that_peft_saves_again_has_our_names(base, adapter, tmp_path):
    hf_export.export_peft(base, adapter, LORA, tmp_path / "adapter")
    peft.PeftModel.from_pretrained(load(base)[0], tmp_path / "adapter").save_pretrained(tmp_path / "again")
    ours = peft.utils.load_peft_weights(str(tmp_path / "adapter"), device="cpu")
    theirs = peft.utils.load_peft_weights(str(tmp_path / "again"), device="cpu")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    config = json.loads((tmp_path / "again" / "adapter_config.json").read_text())
    assert config["lora_alpha"] / config["r"] == LORA.alpha / LORA.rank
    read, lora_cfg = hf_import.load_adapter(tmp_path / "again", hf_import.load_config(base)[0])
    assert lora_cfg == LORA
    assert all(np.array_equal(leaf, hf_keys.flatten(adapter)[path]) for path, leaf in hf_keys.flatten(read).items())
