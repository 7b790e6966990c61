import json
import pickle

import numpy as np
import pytest
import safetensors.numpy
from tiny_base import tensors_of, tiny_config, write_base

from vlrl.io import hf_import, hf_keys


def load(directory, dtype="bfloat16"):
    cfg, _ = hf_import.load_config(directory)
    return hf_import.load_params(directory, cfg, dtype)


def equal_trees(one, other):
    one, other = hf_keys.flatten(one), hf_keys.flatten(other)
    return one.keys() == other.keys() and all(np.array_equal(one[path], other[path]) for path in one)


def test_layers_are_stacked_and_kernels_transposed(base, tensors):
    params = load(base)
    kernel = params["decoder"]["layers"]["o_proj"]["kernel"]
    assert np.array_equal(kernel[1], tensors["model.layers.1.self_attn.o_proj.weight"].T)
    assert np.array_equal(params["visual"]["blocks"]["qkv"]["bias"][2], tensors["visual.blocks.2.attn.qkv.bias"])
    assert np.array_equal(params["lm_head"]["kernel"], tensors["lm_head.weight"].T)
    assert np.array_equal(params["visual"]["merger"]["fc2"]["kernel"], tensors["visual.merger.mlp.2.weight"].T)


def test_every_leaf_has_the_asked_dtype(base):
    assert {str(leaf.dtype) for leaf in hf_keys.flatten(load(base, "float32")).values()} == {"float32"}
    assert {str(leaf.dtype) for leaf in hf_keys.flatten(load(base, "bfloat16")).values()} == {"bfloat16"}


def test_sharded_checkpoint_equals_single_file(base, tmp_path, raw, tensors):
    sharded = write_base(tmp_path / "sharded", raw, tensors, shards=3)
    assert equal_trees(load(sharded), load(base))


def test_names_of_the_module_tree_are_accepted(base, tmp_path, raw, tensors):
    def renamed(name):
        if name.startswith("model."):
            return name.replace("model.", "model.language_model.", 1)
        return f"model.{name}" if name.startswith("visual.") else name

    other = write_base(tmp_path / "other", raw, {renamed(name): tensor for name, tensor in tensors.items()})
    assert equal_trees(load(other), load(base))


def test_every_problem_is_listed_at_once(tmp_path, raw, tensors):
    del tensors["model.norm.weight"]
    tensors["visual.blocks.9.norm1.weight"] = np.zeros(6, np.float32)
    tensors["visual.merger.ln_q.weight"] = np.zeros(7, np.float32)
    tensors["model.layers.1.self_attn.q_proj.bias"] = np.zeros(8, np.int8)
    tensors["model.language_model.embed_tokens.weight"] = np.zeros((20, 8), np.float32)
    with pytest.raises(ValueError, match=r"do not fit config\.json") as caught:
        load(write_base(tmp_path / "bad", raw, tensors))
    message = str(caught.value)
    assert "missing model.norm.weight [8]" in message
    assert "unexpected visual.blocks.9.norm1.weight in model.safetensors" in message
    assert "misshapen visual.merger.ln_q.weight: [7], expected [6]" in message
    assert "not floating point model.layers.1.self_attn.q_proj.bias: I8" in message
    assert "twice model.embed_tokens.weight" in message


def test_tied_checkpoint_has_no_head(tmp_path):
    raw = tiny_config(tied=True)
    params = load(write_base(tmp_path / "tied", raw, tensors_of(raw, "float32")))
    assert "lm_head" not in params


def test_tied_checkpoint_may_carry_a_copy_of_the_embedding_as_head(tmp_path):
    raw = tiny_config(tied=True)
    tensors = tensors_of(raw, "float32")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    assert "lm_head" not in load(write_base(tmp_path / "tied", raw, tensors))


def test_tied_flag_with_another_head_names_flag_and_tensor(tmp_path):
    raw = tiny_config(tied=True)
    tensors = tensors_of(raw, "float32")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    with pytest.raises(ValueError, match=r"tie_word_embeddings is true in config\.json, but lm_head\.weight"):
        load(write_base(tmp_path / "tied", raw, tensors))


def test_untied_flag_without_head_is_missing_the_head(tmp_path, raw, tensors):
    del tensors["lm_head.weight"]
    with pytest.raises(ValueError, match=r"missing lm_head\.weight \[20, 8\]"):
        load(write_base(tmp_path / "untied", raw, tensors))


@pytest.mark.parametrize("name", ["../stolen.safetensors", "/stolen.safetensors", "sub/x", "..", "", "a\\b"])
def test_index_may_only_name_plain_files(tmp_path, raw, tensors, name):
    directory = write_base(tmp_path / "base", raw, tensors, shards=2)
    safetensors.numpy.save_file(tensors, tmp_path / "stolen.safetensors")
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = name
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="no plain file name"):
        load(directory)


def test_link_out_of_the_directory_is_refused(tmp_path, base):
    (base / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (base / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(ValueError, match=r"links to .*elsewhere\.safetensors, outside the checkpoint"):
        load(base)


def test_snapshot_of_the_hub_cache_may_link_to_its_blobs(tmp_path, base):
    cache = tmp_path / "models--x--y"
    (cache / "snapshots").mkdir(parents=True)
    (cache / "blobs").mkdir()
    (base / "model.safetensors").rename(cache / "blobs" / "0123")
    (base / "model.safetensors").symlink_to("../../blobs/0123")
    snapshot = base.rename(cache / "snapshots" / "abc")
    assert load(snapshot)["embed"]["embedding"].shape == (20, 8)


def test_pickled_weights_are_refused_and_never_opened(tmp_path, base):
    class Payload:
        def __reduce__(self):
            return (open, (str(tmp_path / "sentinel"), "w"))

    (base / "model.safetensors").unlink()
    (base / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(ValueError, match=r"only pickled weights \(pytorch_model\.bin\)"):
        load(base)
    assert not (tmp_path / "sentinel").exists()


def test_directory_without_weights_is_named(base):
    (base / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"base: neither model\.safetensors nor"):
        load(base)


def test_missing_shard_is_named(tmp_path, raw, tensors):
    directory = write_base(tmp_path / "base", raw, tensors, shards=2)
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model-00002-of-00002\.safetensors: no such file"):
        load(directory)


def test_index_that_disagrees_with_its_shards_is_refused(tmp_path, raw, tensors):
    directory = write_base(tmp_path / "base", raw, tensors, shards=2)
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.ghost"] = "model-00001-of-00002.safetensors"
    del index["weight_map"]["model.norm.weight"]
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="disagrees with its shards") as caught:
        load(directory)
    assert "model.ghost is not in model-00001-of-00002.safetensors" in str(caught.value)
    assert "model.norm.weight of model-00002-of-00002.safetensors is not listed" in str(caught.value)


def test_index_without_weight_map_is_refused(tmp_path, raw, tensors):
    directory = write_base(tmp_path / "base", raw, tensors, shards=2)
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": 1}}')
    with pytest.raises(ValueError, match="no weight_map"):
        load(directory)


@pytest.mark.parametrize("size", [0, 4, 100, 2000])
def test_truncated_file_is_named(base, size):
    whole = (base / "model.safetensors").read_bytes()
    (base / "model.safetensors").write_bytes(whole[:size])
    with pytest.raises(ValueError, match=r"model\.safetensors: not a readable safetensors file"):
        load(base)


@pytest.mark.parametrize("text", ["{", "[1]", None])
def test_unreadable_config_is_named(base, text):
    (base / "config.json").unlink()
    if text is not None:
        (base / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        hf_import.load_config(base)


class FakeTokenizer:
    def token_to_id(self, token: str) -> int | None:
        return {"<end>": 5}.get(token)


def test_every_end_token_counts(base):
    assert hf_import.eos_token_ids(base, FakeTokenizer()) == (3, 4, 5)


def test_end_tokens_of_a_nested_config_count(base, raw):
    (base / "generation_config.json").unlink()
    (base / "tokenizer_config.json").write_text("{}")
    del raw["eos_token_id"]
    (base / "config.json").write_text(json.dumps(raw | {"text_config": {"eos_token_id": [8, 7]}}))
    assert hf_import.eos_token_ids(base, FakeTokenizer()) == (7, 8)


def test_checkpoint_without_end_token_is_refused(base, raw):
    for name in ("generation_config.json", "tokenizer_config.json", "config.json"):
        (base / name).unlink()
    with pytest.raises(ValueError, match="no end-of-sequence token"):
        hf_import.eos_token_ids(base, FakeTokenizer())
