"""What a run exports, read by transformers and peft on a real video of the tiny world."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import peft
import pytest
import tiny_run
import torch
import transformers

from vlrl import build, config, export
from vlrl.data import loader, vision
from vlrl.io import hf_export, hf_import, run_directory
from vlrl.models import lora, vlm
from vlrl.rollout import decode, sampling

NEW_TOKENS = 32


@pytest.fixture(scope="module")
def cfg(finished):
    return run_directory.read_config(finished)


@pytest.fixture(scope="module")
def parts(cfg):
    parts = build.parts(cfg)
    yield parts
    parts.pool.close()


@pytest.fixture(scope="module")
def adapter(finished):
    adapter = tiny_run.state_of(finished).adapter
    assert all(np.abs(target["b"]).max() > 1e-3 for target in adapter["decoder"]["layers"].values())
    return adapter


@pytest.fixture(scope="module")
def video(parts):
    (clip,) = parts.pool.map([parts.eval[1].video_path])
    return clip


@pytest.fixture(scope="module")
def batch(parts, video, cfg):
    return loader.make_batch(parts.eval[1:2], [video], parts.tokenizer, parts.policy.cfg, cfg.data, cfg.prompt)


@pytest.fixture(scope="module")
def forbidden(parts):
    """What our sampler never takes, and every end of a completion: 32 tokens are compared whatever the model likes."""
    mask = np.asarray(sampling.suppressed_tokens(parts.policy.cfg, parts.tokenizer)).copy()
    mask[list(parts.eos_ids)] = True
    return mask


@pytest.fixture(scope="module")
def ours(parts, adapter, batch, cfg, forbidden):
    """Greedy tokens, and the logits that predict each of them."""
    variables = {"params": parts.base, "lora": adapter}
    features = vlm.encode_video(parts.policy, parts.base, batch.prefix.vision)
    greedy = dataclasses.replace(cfg.rollout, group_size=1, temperature=0.0, max_new_tokens=NEW_TOKENS)
    branches, _, _ = decode.sample_tokens(
        parts.policy, variables, features, batch.prefix, jnp.asarray(forbidden), jax.random.key(0), (), greedy
    )
    prompt = vlm.prefill(parts.policy, variables, batch.prefix, features)
    hidden = vlm.branch_hidden(parts.policy, variables, prompt, branches)[0, 0]
    before = jnp.concatenate([prompt.last_hidden, hidden[:-1]])
    return np.asarray(branches.tokens)[0, 0], np.asarray(vlm.next_logits(parts.policy, variables, before))


def media(parts, video, cfg):
    """The frames as transformers takes them: a video of one grid row for every pair."""
    slices = vision.slices(video.frames, parts.policy.cfg.vision, cfg.data.min_pixels, cfg.data.max_pixels)
    return {
        "pixel_values_videos": torch.tensor(slices.patches.reshape(-1, slices.patches.shape[-1])),
        "video_grid_thw": torch.tensor([[1, *slices.grid[1:]]] * slices.grid[0]),
        "second_per_grid_ts": torch.ones(slices.grid[0]),
    }


def prompt_ids(batch):
    return torch.tensor(batch.prefix.tokens[:1, : int(batch.prefix.length[0])]).long()


def load(directory):
    """The model, with everything transformers had to say about its keys in the way of a test."""
    model, info = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(
        directory, output_loading_info=True, dtype=torch.float32
    )
    assert {key: value for key, value in info.items() if value} == {}
    return model.eval()


@torch.no_grad()
def logits(model, parts, batch, video, cfg, tokens):
    """Those that predict each of `tokens` after the prompt."""
    prompt = prompt_ids(batch)
    ids = torch.cat([prompt, torch.tensor(np.array(tokens)[None]).long()], dim=1)
    kinds = (ids == parts.policy.cfg.video_token_id).int() * 2
    out = model(input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=kinds, **media(parts, video, cfg))
    return out.logits[0, prompt.shape[1] - 1 : -1].numpy()


@pytest.fixture(scope="module")
def merged(finished, tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "merged"
    export.main(["export", f"--workdir={finished}", "--format=hf", f"--out={out}"])
    return out


@pytest.fixture(scope="module")
def wrapped(finished, cfg, tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "adapter"
    export.main(["export", f"--workdir={finished}", "--format=peft", f"--out={out}"])
    model = peft.PeftModel.from_pretrained(load(cfg.policy.path), out)
    told = peft.utils.set_peft_model_state_dict(model, peft.utils.load_peft_weights(str(out), device="cpu"))
    assert told.unexpected_keys == []
    assert [key for key in told.missing_keys if "lora" in key] == []
    return model.eval()


def test_merged_run_generates_the_tokens_that_the_run_does(merged, ours, parts, batch, video, cfg, forbidden):
    prompt = prompt_ids(batch)
    generated = load(merged).generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        mm_token_type_ids=(prompt == parts.policy.cfg.video_token_id).int() * 2,
        **media(parts, video, cfg),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        suppress_tokens=np.flatnonzero(forbidden).tolist(),
    )
    tokens, _ = ours
    assert len(set(tokens.tolist())) > 5  # no loop over a few tokens, which any model might fall into
    assert generated[0, prompt.shape[1] :].tolist() == tokens.tolist()


def test_merged_run_has_the_logits_of_the_run(merged, ours, parts, batch, video, cfg):
    tokens, expected = ours
    np.testing.assert_allclose(logits(load(merged), parts, batch, video, cfg, tokens), expected, atol=2e-4)


def test_adapter_in_peft_has_the_logits_of_the_run_and_not_of_the_base(wrapped, ours, parts, batch, video, cfg):
    tokens, expected = ours
    np.testing.assert_allclose(logits(wrapped, parts, batch, video, cfg, tokens), expected, atol=2e-4)
    base = logits(load(cfg.policy.path), parts, batch, video, cfg, tokens)
    assert np.abs(base - expected).max() > 0.05


def test_exported_directory_carries_the_tokenizer_and_what_ends_a_completion(merged, parts):
    tokenizer = transformers.AutoTokenizer.from_pretrained(merged)
    text = "<think><obj>red circle</obj><box>[100,200,500,600]</box>at<t>1.0</t>s</think>"
    assert tokenizer(text)["input_ids"] == parts.tokenizer(text)["input_ids"]
    settings = transformers.GenerationConfig.from_pretrained(merged)
    assert set(settings.eos_token_id) <= set(parts.eos_ids)


def test_export_over_another_directory_is_refused_unless_asked_for(finished, merged):
    argv = ["export", f"--workdir={finished}", "--format=hf", f"--out={merged}"]
    with pytest.raises(ValueError, match="already in use; choose another directory or set overwrite"):
        export.main(argv)
    export.main([*argv, "--overwrite"])


@torch.no_grad()
def test_export_of_the_shipped_policy_generates_the_same_varied_tokens(batch, video, cfg, tmp_path):
    shipped = config.load("configs/tiny_ser.py")
    architecture, _ = hf_import.load_config(shipped.policy.path)
    base = jax.tree.map(jnp.asarray, hf_import.load_params(shipped.policy.path, architecture, "float32"))
    fresh = lora.init(jax.random.key(0), base, shipped.lora)
    hf_export.export_merged(shipped.policy.path, None, jax.device_get(fresh), shipped.lora, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(shipped.policy.path)
    made = loader.make_batch(batch.examples[:1], [video], tokenizer, architecture, shipped.data, shipped.prompt)
    model = vlm.Vlm(architecture, unroll=True)
    features = vlm.encode_video(model, base, made.prefix.vision)
    greedy = dataclasses.replace(shipped.rollout, group_size=1, temperature=0.0, max_new_tokens=NEW_TOKENS)
    forbidden = np.asarray(sampling.suppressed_tokens(architecture, tokenizer)).copy()
    forbidden[list(hf_import.eos_token_ids(shipped.policy.path, tokenizer.backend_tokenizer))] = True
    branches, _, _ = decode.sample_tokens(
        model, {"params": base}, features, made.prefix, jnp.asarray(forbidden), jax.random.key(0), (), greedy
    )
    slices = vision.slices(video.frames, architecture.vision, shipped.data.min_pixels, shipped.data.max_pixels)
    prompt = prompt_ids(made)
    generated = load(tmp_path / "out").generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        mm_token_type_ids=(prompt == architecture.video_token_id).int() * 2,
        pixel_values_videos=torch.tensor(slices.patches.reshape(-1, slices.patches.shape[-1])),
        video_grid_thw=torch.tensor([[1, *slices.grid[1:]]] * slices.grid[0]),
        second_per_grid_ts=torch.ones(slices.grid[0]),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        suppress_tokens=np.flatnonzero(forbidden).tolist(),
    )
    tokens = np.asarray(branches.tokens)[0, 0].tolist()
    assert len(set(tokens)) > 5  # no loop over a few tokens, which any model might fall into
    assert generated[0, prompt.shape[1] :].tolist() == tokens
