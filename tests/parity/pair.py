"""One random checkpoint of a family in both implementations: what every parity test compares.

All prompts go through ours in one right-padded batch (so padding, ragged grids and mixed media are part of every
comparison) and through transformers one by one.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import peft
import tiny_vlm
import torch

from vlrl.config import LoraConfig
from vlrl.data import prompt
from vlrl.io import hf_export, hf_import, hf_keys
from vlrl.models import lora, vlm
from vlrl.types import Branches

TEXT_SIZES = {
    "vocab_size": 160,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "bos_token_id": 158,
    "eos_token_id": 159,
}
"""Of the decoder of every family, as transformers names them."""
NEW_TOKENS = 32
LORA = LoraConfig(rank=3, alpha=6.0)
COMPLETION = np.arange(70, 82)
WEIGHTS = np.random.default_rng(0).normal(size=len(COMPLETION)).astype(np.float32)
"""The loss whose gradients are compared: log-probabilities of the completion, weighted."""


@dataclasses.dataclass(frozen=True)
class Family:
    """What a family adds to the comparison."""

    model: type
    """The class of transformers."""
    kinds: Mapping[str, Any]
    """Configuration of transformers by name: each becomes a checkpoint. Tokens 70 to 81 are words."""
    prompts: Mapping[str, Callable[[Any], Sequence[Any]]]
    """Segments by name, given our configuration."""
    media: Callable[[Any, Any, Sequence[prompt.Media]], dict[str, torch.Tensor]] = lambda cfg, row, media: {}
    """What transformers takes beside the token ids of a prompt with media, given configuration, row and media."""
    features: Callable[[Any, dict[str, torch.Tensor]], dict[str, torch.Tensor]] = lambda model, inputs: {}
    """Vision features [M, E] of transformers by kind of medium (image, video)."""
    gradients_of: Sequence[str] = ()
    """Prompts whose adapter gradients are compared."""
    own_positions: Sequence[str] = ()
    """Prompts whose rotary positions transformers counts in another way: there it is given ours."""
    slices: int = 1
    patches: int = 4
    """Sizes to which ours are padded."""

    @property
    def seeing(self) -> list[str]:
        """Prompts with media."""
        return [name for name in self.prompts if not name.startswith("text")]


class Both:
    """A checkpoint written by transformers and imported by us, with all prompts through ours."""

    def __init__(self, directory: pathlib.Path, family: Family, kind: str):
        torch.manual_seed(0)
        made = family.model(family.kinds[kind])
        randomise(made)
        made.save_pretrained(directory)
        self.family, self.directory, self.names = family, directory, list(family.prompts)
        self.theirs = family.model.from_pretrained(directory).eval()
        self.cfg, _ = hf_import.load_config(directory)
        self.model = vlm.Vlm(self.cfg, lora_scale=lora.scale(LORA))
        self.base = hf_import.load_params(directory, self.cfg, "float32")
        self.segments = [make(self.cfg) for make in family.prompts.values()]
        self.rows = [
            tiny_vlm.row(self.cfg, *parts, name=name) for name, parts in zip(self.names, self.segments, strict=True)
        ]
        longest = max(len(row.tokens) for row in self.rows)
        self.prefix = tiny_vlm.collate(self.cfg, self.rows, longest + 5, family.slices, family.patches)
        self.features = np.asarray(tiny_vlm.encode(self.model, self.base, self.prefix.vision))
        self.logits = self._logits(self.model, self.base, self.features)

    def _logits(self, model, base, features):
        return np.asarray(tiny_vlm.logits_of_prefix(model, {"params": base}, self.prefix, features))

    @functools.cached_property
    def greedy(self):
        """Ours, [P, NEW_TOKENS]."""
        variables = {"params": self.base}
        prefill = tiny_vlm.prefill(self.model, variables, self.prefix, self.features)
        tokens = [jnp.argmax(vlm.next_logits(self.model, variables, prefill.last_hidden), -1)[:, None]]
        cache = vlm.empty_cache(self.model, len(self.rows), 1, NEW_TOKENS)
        for step in range(NEW_TOKENS - 1):
            logits, cache = tiny_vlm.decode_step(self.model, variables, prefill, cache, tokens[-1], jnp.int32(step))
            tokens.append(jnp.argmax(logits, -1))
        return np.concatenate(tokens, axis=1)

    @functools.cached_property
    def bfloat16_logits(self):
        """Ours, weights and activations in bfloat16."""
        half = vlm.Vlm(self.cfg, jnp.dtype("bfloat16"))
        base = jax.tree.map(functools.partial(jnp.asarray, dtype=jnp.bfloat16), self.base)
        return self._logits(half, base, tiny_vlm.encode(half, base, self.prefix.vision))

    def row(self, name):
        return self.rows[self.names.index(name)]

    def features_of(self, name, kind):
        """Ours of one kind of medium, [M, E]."""
        token = self.cfg.image_token_id if kind == "image" else self.cfg.video_token_id
        number, row = self.names.index(name), self.row(name)
        index = self.prefix.vision_index[number, : len(row.tokens)][row.tokens == token]
        return self.features[number, index]

    def logits_of(self, name):
        """Ours at every position, [S, V]."""
        return self.logits[self.names.index(name), : len(self.row(name).tokens)]

    def inputs(self, name):
        """What transformers takes for this prompt."""
        row = self.row(name)
        ids = torch.tensor(row.tokens[None].astype(np.int64))
        arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        media = [part for part in self.segments[self.names.index(name)] if isinstance(part, prompt.Media)]
        return arguments | (self.family.media(self.cfg, row, media) if media else {})

    @torch.no_grad()
    def their_features(self, name):
        return {kind: x.numpy() for kind, x in self.family.features(self.theirs, self.inputs(name)).items()}

    @torch.no_grad()
    def their_logits(self, name):
        row, arguments = self.row(name), self.inputs(name)
        if name in self.family.own_positions:
            arguments["position_ids"] = torch.tensor(row.positions[:, None])
        return self.theirs(**arguments).logits[0].numpy()

    @torch.no_grad()
    def their_greedy(self, name):
        row, arguments = self.row(name), self.inputs(name)
        if name not in self.family.own_positions:
            settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None}
            return self.theirs.generate(**arguments, **settings)[0, len(row.tokens) :].numpy()
        for step in range(NEW_TOKENS):  # without a cache: generate() would count positions by its own rule
            positions = np.concatenate([row.positions, row.next_position + np.tile(np.arange(step), (3, 1))], axis=1)
            logits = self.theirs(**arguments, position_ids=torch.tensor(positions[:, None])).logits
            arguments = extended(arguments, logits[:, -1:].argmax(-1))
        return arguments["input_ids"][0, len(row.tokens) :].numpy()

    def gradients(self, name):
        """Ours of every adapter tensor, by its name in the adapter file and as it lies there."""
        number = self.names.index(name)
        prefix = jax.tree.map(lambda x: x[number][None], self.prefix)
        branches = Branches(COMPLETION[None, None].astype(np.int32), np.full((1, 1), len(COMPLETION), np.int32))
        made = _gradients(self.model, self.adapter, self.base, prefix, self.features[number][None], branches)
        return {
            hf_keys.lora_name(self.cfg.family, layer, target, half.upper()): one.T
            for (*_, target, half), gradient in hf_keys.flatten(made).items()
            for layer, one in enumerate(np.asarray(gradient))
        }

    @functools.cached_property
    def adapter(self):
        return tiny_vlm.random_adapter(self.cfg, LORA.rank)

    @functools.cached_property
    def _adapted(self):
        directory = self.directory / "adapter"
        hf_export.export_peft(self.directory, self.adapter, LORA, directory)
        base = self.family.model.from_pretrained(self.directory)
        return peft.PeftModel.from_pretrained(base, directory, is_trainable=True).eval()

    def their_gradients(self, name):
        """Those of peft, by the names of the adapter file."""
        row, model = self.row(name), self._adapted
        model.zero_grad()
        logits = model(**extended(self.inputs(name), torch.tensor(COMPLETION)[None])).logits[0]
        logp = torch.log_softmax(logits, -1)[len(row.tokens) - 1 : -1].gather(1, torch.tensor(COMPLETION)[:, None])
        (logp[:, 0] * torch.tensor(WEIGHTS)).sum().backward()
        return {n.replace(".default", ""): p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}


def extended(arguments, tokens):
    """The inputs of transformers with further text tokens [1, T]."""
    further = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "mm_token_type_ids": 0 * tokens}
    return {
        name: torch.cat([x, further[name].to(x.dtype)], dim=1) if name in further else x
        for name, x in arguments.items()
    }


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
            elif "pos_embed" in name or ("embeddings" in name and weight.ndim == 3):  # positions and class token
                weight.copy_(noise)
            else:
                weight.copy_(noise / weight[0].numel() ** 0.5)


@functools.partial(jax.jit, static_argnums=0)
def _gradients(model, adapter, base, prefix, features, branches):
    def loss(adapter):
        variables, nothing = {"params": base, "lora": adapter}, jnp.zeros(model.cfg.vocab_size, bool)
        logp, _ = vlm.joint_logp(model, variables, prefix, features, branches, 1.0, nothing, 64)
        return jnp.sum(logp[0, 0] * WEIGHTS)

    return jax.grad(loss)(adapter)
