"""Choice of a token, against NumPy."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_vlm

from vlrl import build, config
from vlrl.config import RolloutConfig
from vlrl.io import hf_export, hf_import
from vlrl.models import config as model_config
from vlrl.rollout import sampling
from vlrl.world import architecture

LOGITS = np.array([[2.0, 1.0, 0.5, -1.0, 3.0, 0.0], [0.0, 0.0, 4.0, -2.0, 1.0, -np.inf]], np.float32)


def kept_by_numpy(logits, top_k, top_p):
    """Ids that stay: the k likeliest, then the fewest of them that hold a share of top_p."""
    ids = np.argsort(-logits, kind="stable")
    if top_k:
        ids = ids[:top_k]
    share = np.exp(logits[ids]) / np.exp(logits[ids]).sum()
    return sorted(ids[: np.searchsorted(np.cumsum(share), top_p) + 1].tolist())


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.5), (0, 0.8), (0, 0.95), (1, 1.0), (3, 1.0), (4, 0.7), (9, 0.6)])
def test_top_k_and_top_p_keep_what_numpy_keeps(top_k, top_p):
    filtered = sampling.filtered(jnp.asarray(LOGITS[:1]), RolloutConfig(top_k=top_k, top_p=top_p))[0]
    assert np.flatnonzero(np.isfinite(filtered)).tolist() == kept_by_numpy(LOGITS[0], top_k, top_p)


def test_top_p_by_hand():
    """Shares .4, .3, .2, .1: half of the mass takes two tokens, three quarters take three."""
    logp = jnp.log(jnp.array([[0.1, 0.4, 0.2, 0.3]]))
    half = sampling.filtered(logp, RolloutConfig(top_p=0.5))
    assert np.isfinite(half).tolist() == [[False, True, False, True]]
    most = sampling.filtered(logp, RolloutConfig(top_p=0.75))
    assert np.isfinite(most).tolist() == [[False, True, True, True]]


def test_top_p_of_nothing_keeps_the_likeliest():
    assert np.isfinite(sampling.filtered(jnp.asarray(LOGITS[:1]), RolloutConfig(top_p=0.0))).sum() == 1


def test_defaults_filter_nothing():
    np.testing.assert_array_equal(sampling.filtered(jnp.asarray(LOGITS), RolloutConfig()), LOGITS)


def test_greedy_is_top_k_of_one():
    logp = jax.nn.log_softmax(jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 40)), jnp.float32))
    greedy = sampling.choose(jax.random.key(0), logp, RolloutConfig(temperature=0.0))
    np.testing.assert_array_equal(greedy, sampling.choose(jax.random.key(1), logp, RolloutConfig(top_k=1)))
    np.testing.assert_array_equal(greedy, np.argmax(logp, axis=-1))


def test_draws_follow_the_distribution_inside_the_filter():
    logp = jnp.broadcast_to(jnp.log(jnp.array([0.1, 0.4, 0.2, 0.3])), (1, 20_000, 4))
    drawn = np.asarray(sampling.choose(jax.random.key(0), logp, RolloutConfig(top_k=2)))
    share = np.bincount(drawn.ravel(), minlength=4) / drawn.size
    np.testing.assert_allclose(share, [0.0, 4 / 7, 0.0, 3 / 7], atol=0.015)


def test_vision_tokens_and_rows_beyond_the_tokenizer_are_suppressed():
    suppressed = sampling.suppressed_tokens(tiny_vlm.CFG, tiny_vlm.IdTokenizer(tiny_vlm.CFG, 50))
    assert np.flatnonzero(suppressed).tolist() == list(range(50, 61))
    everything = sampling.suppressed_tokens(tiny_vlm.CFG, tiny_vlm.IdTokenizer(tiny_vlm.CFG, 61))
    assert np.flatnonzero(everything).tolist() == [56, 57, 58, 59]


def test_marks_of_internvl_are_suppressed_though_its_config_names_the_placeholder_alone():
    cfg = dataclasses.replace(
        tiny_vlm.CFG, family="internvl", video_token_id=56, vision_start_token_id=None, vision_end_token_id=None
    )
    tokenizer = tiny_vlm.IdTokenizer(cfg)
    assert tokenizer.special == {"<IMG_CONTEXT>": 56, "<img>": 57, "</img>": 58}
    assert np.flatnonzero(sampling.suppressed_tokens(cfg, tokenizer)).tolist() == [56, 57, 58]


def test_text_models_have_no_vision_tokens_to_suppress():
    cfg = dataclasses.replace(
        tiny_vlm.CFG,
        family="qwen2",
        **dict.fromkeys(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")),
    )
    tokenizer = tiny_vlm.IdTokenizer(tiny_vlm.CFG, 60)
    assert np.flatnonzero(sampling.suppressed_tokens(cfg, tokenizer)).tolist() == [60]


def test_the_log_of_a_run_names_every_sampling_parameter():
    line = sampling.described(RolloutConfig(temperature=0.7, top_p=0.9, max_new_tokens=12))
    for part in ("temperature 0.7", "top_p 0.9", "top_k off", "12 new tokens", "generation_config are not used"):
        assert part in line


def checkpoint(directory, generation_fields):
    raw = architecture.hf_config()
    raw |= {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 8}
    raw |= {"num_attention_heads": 2, "num_key_value_heads": 1, "rope_scaling": {"mrope_section": [2, 1, 1]}}
    raw["vision_config"] |= {"hidden_size": 16, "depth": 1, "num_heads": 2, "intermediate_size": 8}
    raw["vision_config"] |= {"out_hidden_size": 16, "fullatt_block_indexes": [0]}
    carried = directory / "carried"
    architecture.write_support_files(carried, config.Config())
    file = carried / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **generation_fields}))
    params = tiny_vlm.random_params(model_config.from_hf(raw))
    hf_export.export_full(raw, params, "float32", directory / "model", carried)
    return str(directory / "model")


def test_sampling_parameters_of_the_checkpoint_reach_nothing_that_a_rollout_is_made_of(tmp_path):
    fields = {"repetition_penalty": 1.05, "temperature": 0.1, "top_k": 1, "top_p": 0.01, "do_sample": True}
    loaded = []
    for name, generation_fields in (("plain", {}), ("opinionated", fields)):
        path = checkpoint(tmp_path / name, generation_fields)
        assert all(
            json.loads((pathlib.Path(path) / "generation_config.json").read_text())[f] == v
            for f, v in generation_fields.items()
        )
        model, base, tokenizer = build._model("policy", config.ModelConfig(path, "float32"), 1.0, False)
        loaded.append((model, base, len(tokenizer), hf_import.eos_token_ids(path, tokenizer.backend_tokenizer)))
    (model, base, *rest), (other_model, other_base, *other_rest) = loaded
    assert (model, rest) == (other_model, other_rest)
    jax.tree.map(np.testing.assert_array_equal, base, other_base)
    assert config.RolloutConfig() == config.RolloutConfig(temperature=1.0, top_p=1.0, top_k=0)
