"""The whole of InternVL against transformers: random checkpoints, imported by us, every kind of prompt.

All prompts go through ours in one right-padded batch and through transformers one by one.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import peft
import pytest
import tiny_vlm
import torch
import transformers
from tiny_vlm import text

from vlrl.config import LoraConfig
from vlrl.data import prompt
from vlrl.io import hf_export, hf_import, hf_keys
from vlrl.models import lora, vlm
from vlrl.types import Branches

NEW_TOKENS = 32
ATOL = 2e-4
LORA = LoraConfig(rank=3, alpha=6.0)
KINDS = {
    "InternVL3": {"tied": False, "attention_bias": True, "use_qk_norm": False},
    "tied, norms of queries and keys, no bias": {"tied": True, "attention_bias": False, "use_qk_norm": True},
}


def config(tied, **vision):
    return transformers.InternVLConfig(
        text_config={
            "model_type": "qwen2",
            "vocab_size": 160,
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 96,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            "tie_word_embeddings": tied,
            "bos_token_id": 158,
            "eos_token_id": 159,
        },
        vision_config={
            "num_hidden_layers": 3,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "intermediate_size": 48,
            "image_size": [84, 84],  # 6 x 6 patches: 9 tokens a tile
            **vision,
        },
        tie_word_embeddings=tied,
        image_token_id=150,
        image_seq_length=9,
    )


def image(cfg, size_px, seed, max_tiles=6):
    return tiny_vlm.media(cfg, "image", size_px, seed=seed, max_tiles=max_tiles)


def video(cfg, size_px, frames, seed):
    """Frames as the family numbers them, between ids in place of words."""
    slices = tiny_vlm.media(cfg, "video", size_px, frames, seed=seed).slices
    for k in range(frames):
        yield text(20 + k, 30)
        yield prompt.Media("image", slices.part(k, k + 1))


QUESTION = text(60, 61, 62, 63)
PROMPTS = {
    "text": lambda _: [text(*range(2, 40))],
    "image": lambda cfg: [text(1, 2), image(cfg, (84, 84), 1), QUESTION],
    "image of 3 tiles": lambda cfg: [text(1, 2), image(cfg, (90, 160), 2), QUESTION],
    "image of 7 tiles": lambda cfg: [text(1, 2), image(cfg, (120, 190), 3), QUESTION],
    "images": lambda cfg: [
        *(image(cfg, (84, 140), 6), text(5), image(cfg, (160, 90), 7, 2), image(cfg, (20, 30), 8)),
        QUESTION,
    ],
    "video": lambda cfg: [text(1), *video(cfg, (48, 80), 3, 9), QUESTION],
    "video of one frame": lambda cfg: [*video(cfg, (84, 84), 1, 10), QUESTION],
    "two videos": lambda cfg: [*video(cfg, (84, 84), 2, 12), text(7), *video(cfg, (56, 140), 5, 13), QUESTION],
    "image and video": lambda cfg: [text(1), image(cfg, (84, 140), 14), *video(cfg, (48, 80), 4, 15), QUESTION],
}
NAMES = tuple(PROMPTS)
SEEING = [name for name in NAMES if name != "text"]


def randomise(model):
    """Larger than the defaults, so that every part shows in the logits."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape)
            if name.endswith("bias"):
                weight.copy_(0.2 * noise)
            elif "lambda" in name:
                weight.copy_(0.5 + 0.2 * noise)
            elif weight.ndim == 1:
                weight.copy_(1 + 0.2 * noise)
            elif "embeddings" in name and weight.ndim == 3:  # class token and positions
                weight.copy_(noise)
            else:
                weight.copy_(noise / weight[0].numel() ** 0.5)


class Both:
    """One checkpoint in both implementations, and all prompts through ours."""

    def __init__(self, directory, kind):
        torch.manual_seed(0)
        made = transformers.InternVLForConditionalGeneration(config(**kind))
        randomise(made)
        made.save_pretrained(directory)
        self.directory = directory
        self.theirs = transformers.InternVLForConditionalGeneration.from_pretrained(directory).eval()
        self.cfg, _ = hf_import.load_config(directory)
        self.model = vlm.Vlm(self.cfg, lora_scale=lora.scale(LORA))
        self.base = hf_import.load_params(directory, self.cfg, "float32")
        self.rows = [tiny_vlm.row(self.cfg, *parts(self.cfg), name=name) for name, parts in PROMPTS.items()]
        longest = max(len(row.tokens) for row in self.rows)
        # One padded slice for all, and patches beyond a tile's.
        self.prefix = tiny_vlm.collate(self.cfg, self.rows, longest + 5, slices=18, patches=40)
        self.features = tiny_vlm.encode(self.model, self.base, self.prefix.vision)
        inputs = {"params": self.base}, self.prefix, self.features
        self.logits = np.asarray(tiny_vlm.logits_of_prefix(self.model, *inputs))
        self.greedy = self._greedy()

    def _greedy(self):
        variables = {"params": self.base}
        prefill = tiny_vlm.prefill(self.model, variables, self.prefix, self.features)
        tokens = [jnp.argmax(vlm.next_logits(self.model, variables, prefill.last_hidden), -1)[:, None]]
        cache = vlm.empty_cache(self.model, len(self.rows), 1, NEW_TOKENS)
        for step in range(NEW_TOKENS - 1):
            logits, cache = tiny_vlm.decode_step(self.model, variables, prefill, cache, tokens[-1], jnp.int32(step))
            tokens.append(jnp.argmax(logits, -1))
        return np.concatenate(tokens, axis=1)

    def inputs(self, row):
        """What transformers takes for this prompt: tokens, and all tiles of it as pictures."""
        ids = torch.tensor(row.tokens[None].astype(np.int64))
        arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if row.media:
            arguments["pixel_values"] = torch.tensor(np.concatenate([pictures(medium) for medium in row.media]))
        return arguments


def pictures(slices):
    """[tiles, channel, y, x] from patches in merge order (block row, block column, row, column, channel, y, x)."""
    blocks = slices.grid[1] // 2
    patches = slices.patches.reshape(-1, blocks, blocks, 2, 2, 3, 14, 14).transpose(0, 5, 1, 3, 6, 2, 4, 7)
    return patches.reshape(-1, 3, 28 * blocks, 28 * blocks)


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    return Both(tmp_path_factory.mktemp("checkpoint"), KINDS[request.param])


@pytest.fixture(scope="module")
def largest(both):
    """Largest differences seen, printed at the end (pytest -s)."""
    seen = {}
    yield seen
    for case, error in seen.items():
        print(f"\ntied={both.cfg.tie_word_embeddings} {case}: {error:.1e}", end="")


def number(name):
    return NAMES.index(name)


@pytest.mark.parametrize("name", SEEING)
def test_vision_features_equal_transformers(both, largest, name):
    row = both.rows[number(name)]
    with torch.no_grad():
        out = both.theirs.model.get_image_features(both.inputs(row)["pixel_values"])
    expected = out.pooler_output.numpy().reshape(-1, both.cfg.hidden_size)
    index = both.prefix.vision_index[number(name)]
    largest[f"features, {name}"] = np.abs(np.asarray(both.features)[number(name), index[index >= 0]] - expected).max()
    assert np.abs(expected).max() > 0.3
    assert largest[f"features, {name}"] <= ATOL


@pytest.mark.parametrize("name", NAMES)
def test_logits_at_every_position_equal_transformers(both, largest, name):
    row = both.rows[number(name)]
    with torch.no_grad():
        expected = both.theirs(**both.inputs(row)).logits[0].numpy()
    largest[f"logits, {name}"] = np.abs(both.logits[number(name), : len(row.tokens)] - expected).max()
    assert np.abs(expected).max() > 1
    assert largest[f"logits, {name}"] <= ATOL


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_equal_generate(both, name):
    row = both.rows[number(name)]
    settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None}
    with torch.no_grad():
        expected = both.theirs.generate(**both.inputs(row), **settings)[0, len(row.tokens) :].numpy()
    assert len(expected) == NEW_TOKENS
    np.testing.assert_array_equal(both.greedy[number(name)], expected)


def test_bfloat16_stays_near_float32(both, largest):
    half = vlm.Vlm(both.cfg, jnp.dtype("bfloat16"))
    base = jax.tree.map(functools.partial(jnp.asarray, dtype=jnp.bfloat16), both.base)
    features = tiny_vlm.encode(half, base, both.prefix.vision)
    logits = np.asarray(tiny_vlm.logits_of_prefix(half, {"params": base}, both.prefix, features))
    real = np.arange(logits.shape[1])[None] < both.prefix.length[:, None]
    scale = np.abs(both.logits[real]).max()
    largest["bfloat16, share of the largest logit"] = np.abs(logits - both.logits)[real].max() / scale
    largest["bfloat16, mean difference"] = np.abs(logits - both.logits)[real].mean()
    assert largest["bfloat16, share of the largest logit"] <= 3e-2


@pytest.mark.parametrize("name", ["images", "two videos"])
def test_gradients_of_the_adapter_equal_peft(both, largest, tmp_path, name):
    row = both.rows[number(name)]
    completion = np.arange(70, 82)
    weights = np.random.default_rng(0).normal(size=len(completion)).astype(np.float32)
    adapter = tiny_vlm.random_adapter(both.cfg, LORA.rank)
    hf_export.export_peft(both.directory, adapter, LORA, tmp_path / "adapter")
    theirs = peft_gradients(both, tmp_path / "adapter", row, completion, weights)
    prefix = jax.tree.map(lambda x: x[number(name)][None], both.prefix)
    features = jnp.asarray(both.features)[number(name)][None]
    branches = Branches(completion[None, None].astype(np.int32), np.full((1, 1), len(completion), np.int32))

    def loss(adapter):
        variables, nothing = {"params": both.base, "lora": adapter}, jnp.zeros(both.cfg.vocab_size, bool)
        logp, _ = vlm.joint_logp(both.model, variables, prefix, features, branches, 1.0, nothing, 64)
        return jnp.sum(logp[0, 0] * weights)

    ours = hf_keys.flatten(jax.jit(jax.grad(loss))(adapter))
    errors = []
    for (*_, target, half), gradient in ours.items():
        for layer, made in enumerate(np.asarray(gradient)):
            expected = theirs[hf_keys.lora_name("internvl", layer, target, half.upper())].T
            errors.append(np.abs(made - expected).max() / np.abs(expected).max())
    largest[f"adapter gradients, {name}, share of the largest"] = max(errors)
    assert len(errors) == 3 * 7 * 2
    assert max(errors) <= 1e-4


def peft_gradients(both, directory, row, completion, weights):
    """d/dadapter of the weighted log-probabilities of the completion, by the names of the adapter file."""
    base = transformers.InternVLForConditionalGeneration.from_pretrained(both.directory)
    model = peft.PeftModel.from_pretrained(base, directory, is_trainable=True).eval()
    inputs = both.inputs(row)
    ids = torch.cat([inputs["input_ids"], torch.tensor(completion)[None]], dim=1)
    logits = model(**inputs | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}).logits[0]
    logp = torch.log_softmax(logits, -1)[len(row.tokens) - 1 : -1].gather(1, torch.tensor(completion)[:, None])[:, 0]
    (logp * torch.tensor(weights)).sum().backward()
    named = {n.replace(".default", ""): p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    assert all("lora_" in n for n in named)
    return named
