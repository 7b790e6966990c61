"""A model whose next logits depend on the last token alone, by a table, and prompts for it."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import tiny_vlm

from vlrl.models import vlm
from vlrl.types import Batch

NUM_TEXT_TOKENS = 50
"""Ids 50 to 55 and 60 lie beyond the tokenizer, 56 to 59 are vision tokens."""
MARKOV = dataclasses.replace(
    tiny_vlm.with_vision(tiny_vlm.CFG, out_hidden_size=64, depth=1), hidden_size=64, num_layers=1, rms_norm_eps=1e-12
)


class Words(tiny_vlm.IdTokenizer):
    def decode(self, ids):
        return " ".join(str(int(i)) for i in ids)


def markov_params(table):
    """Weights under which the logits after token v are table[v], whatever came before: one-hot embeddings pass through
    layers that add nothing; the norm makes them sqrt(64)."""
    params = tiny_vlm.random_params(MARKOV)
    layers = params["decoder"]["layers"]
    for name in ("o_proj", "down_proj"):
        layers[name]["kernel"] = np.zeros_like(layers[name]["kernel"])
    params["embed"]["embedding"] = np.eye(*params["embed"]["embedding"].shape, dtype=np.float32)
    params["decoder"]["norm"]["scale"] = np.ones(64, np.float32)
    params["lm_head"]["kernel"] = np.zeros((64, MARKOV.vocab_size), np.float32)
    params["lm_head"]["kernel"][: len(table)] = table / np.sqrt(64)
    return params


def batch_of(cfg, rows):
    """A batch of text or image prompts."""
    prefix = tiny_vlm.collate(cfg, rows, max(len(row.tokens) for row in rows) + 1)
    none = (None,) * len(rows)
    return Batch((), none, none, ("",) * len(rows), prefix)


@pytest.fixture(scope="session")
def words():
    return Words(tiny_vlm.CFG, NUM_TEXT_TOKENS)


@pytest.fixture(scope="session")
def markov():
    """markov(table, last_tokens): model, variables, features and a batch with one prompt for each last token."""
    model = vlm.Vlm(MARKOV, jnp.dtype("float32"))

    def make(table, last_tokens):
        rows = [tiny_vlm.row(MARKOV, tiny_vlm.text(1, 2, last)) for last in last_tokens]
        features = np.zeros((len(rows), 1, 64), np.float32)
        return model, {"params": markov_params(table)}, features, batch_of(MARKOV, rows)

    return make


@pytest.fixture(scope="session")
def real():
    """An ordinary random model with an adapter, and two prompts of unequal length with an image each."""
    cfg = tiny_vlm.CFG
    model = vlm.Vlm(cfg, jnp.dtype("float32"), lora_scale=tiny_vlm.LORA_SCALE)
    rows = [
        tiny_vlm.row(cfg, tiny_vlm.text(1), tiny_vlm.media(cfg, "image", (8, 16)), tiny_vlm.text(5, 6)),
        tiny_vlm.row(cfg, tiny_vlm.media(cfg, "image", (8, 8), seed=1), tiny_vlm.text(9, 3, 4, 2)),
    ]
    prefix = tiny_vlm.collate(cfg, rows, 9, patches=8)
    params = tiny_vlm.random_params(cfg)
    features = tiny_vlm.encode(model, params, prefix.vision)
    batch = Batch((), (None, None), (None, None), ("", ""), prefix)
    return model, {"params": params, "lora": tiny_vlm.random_adapter(cfg)}, features, batch
