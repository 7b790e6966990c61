"""A video-language model as pure functions: encode the video once, prefill the prompt once, then branch.

`prefill` then `branch_logp`, `branch_hidden` or `decode_step` serve rollout, reference and referee; `joint_logp` is the
same computation with the prompt's activations inside, for gradients. Variables are {"params": base} for the frozen
model and {"params": base, "lora": adapter} for the policy.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax
import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float, Int

from vlrl.models import decoder, layers, vision_intern, vision_qwen2_5, vision_qwen3
from vlrl.models.attention import KeyValue
from vlrl.models.config import InternVision, Qwen3Vision, Qwen25Vision, VisionConfig, VlmConfig
from vlrl.models.decoder import Context, Stream
from vlrl.types import Array, Branches, PrefixInput, Variables, VisionInput


@flax.struct.dataclass
class Prefill:
    """The prompt, ready to be continued: held once, whatever the number of branches."""

    kv: KeyValue
    """[L, P, J, S, K]."""
    mask: Bool[Array, "P S"]
    next_position: Int[Array, " P"]
    last_hidden: Float[Array, "P D"]
    """Final hidden state of the prompt's last token: predicts the first token of every branch."""


TOWERS: dict[type[VisionConfig], Callable[..., Any]] = {
    Qwen25Vision: vision_qwen2_5.VisionTower,
    Qwen3Vision: vision_qwen3.VisionTower,
    InternVision: vision_intern.VisionTower,
}


class Vlm(nn.Module):
    cfg: VlmConfig
    dtype: jnp.dtype = jnp.dtype("float32")
    lora_scale: float = 0.0
    unroll: bool = False
    remat: bool = False

    def setup(self) -> None:
        cfg = self.cfg
        self.embed = nn.Embed(cfg.vocab_size, cfg.hidden_size, dtype=self.dtype)
        if cfg.vision.depth:
            self.visual = TOWERS[type(cfg.vision)](cfg.vision, self.dtype, self.unroll)
        self.decoder = decoder.Decoder(cfg, self.dtype, self.lora_scale, self.unroll, self.remat)
        if not cfg.tie_word_embeddings:
            self.lm_head = layers.Dense(cfg.vocab_size, dtype=self.dtype)

    def __call__(self, prefix: PrefixInput, branches: Branches) -> Float[Array, "P G V"]:
        """Every part once: what `init` traces to make the parameter tree."""
        _, hidden = self.joint(prefix, self.encode(prefix.vision), branches)
        return self.logits(hidden[:, :, -1])

    def encode(self, vision: VisionInput) -> Float[Array, "P M E"]:
        """Features of width D, followed by as many of the same width as the decoder adds later (DeepStack)."""
        if not self.cfg.vision.depth:
            return jnp.zeros((vision.patches.shape[0], 0, self.cfg.hidden_size), self.dtype)
        return self.visual(vision)

    def logits(self, hidden: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """float32 logits."""
        if self.cfg.tie_word_embeddings:
            rows = self.embed.attend(hidden.reshape(-1, hidden.shape[-1]))
            return rows.reshape(*hidden.shape[:-1], -1).astype(jnp.float32)
        return self.lm_head(hidden).astype(jnp.float32)

    def prefill(self, prefix: PrefixInput, features: Float[Array, "P M E"]) -> Prefill:
        x, deep = self._embed(prefix, features)
        stream, kv = self.decoder(Stream(x), None, self._context(prefix, deep), keep_kv=True)
        return Prefill(kv, _mask(prefix), prefix.next_position, _last(stream.prefix, prefix.length))

    def joint(
        self, prefix: PrefixInput, features: Float[Array, "P M E"], branches: Branches
    ) -> tuple[Float[Array, "P D"], Float[Array, "P G C D"]]:
        """Hidden states of the prompt's last token and of all branch tokens, in one differentiable pass."""
        x, deep = self._embed(prefix, features)
        context = self._branch_context(self._context(prefix, deep), prefix.next_position, branches.tokens.shape[-1])
        stream = Stream(x, self.embed(branches.tokens))
        stream, _ = self.decoder(stream, None, context)
        return _last(stream.prefix, prefix.length), stream.branch

    def branch(self, prefill: Prefill, branches: Branches) -> Float[Array, "P G C D"]:
        """Hidden states of all branch tokens from a kept prompt."""
        context = Context(None, prefill.mask)
        context = self._branch_context(context, prefill.next_position, branches.tokens.shape[-1])
        stream, _ = self.decoder(Stream(branch=self.embed(branches.tokens)), prefill.kv, context)
        return stream.branch

    def step(
        self, prefill: Prefill, cache: KeyValue, tokens: Int[Array, "P G"], step: Int[Array, ""]
    ) -> tuple[Float[Array, "P G V"], KeyValue]:
        """Feeds branch token number `step` and returns the logits of the next, with the cache holding its keys."""
        positions = (prefill.next_position + step)[:, None]
        context = Context(
            None,
            prefill.mask,
            self._angles(jnp.broadcast_to(positions[:, None], (positions.shape[0], 3, 1))),
            (jnp.arange(cache.k.shape[4]) <= step)[None],
            step,
        )
        stream = Stream(branch=self.embed(tokens[..., None]), cache=cache)
        stream, _ = self.decoder(stream, prefill.kv, context)
        return self.logits(stream.branch[:, :, 0]), stream.cache

    def _embed(
        self, prefix: PrefixInput, features: Float[Array, "P M E"]
    ) -> tuple[Float[Array, "P S D"], Float[Array, "U P S D"] | None]:
        """Embedded tokens with the features in their places, and what DeepStack adds later."""
        text = self.embed(prefix.tokens)
        if features.shape[1] == 0:
            return text, None
        index = prefix.vision_index[..., None]
        seen = jnp.take_along_axis(features, jnp.maximum(index, 0), axis=1).astype(self.dtype)
        first, *deep = jnp.split(seen, features.shape[-1] // text.shape[-1], axis=-1)
        added = jnp.stack([jnp.where(index >= 0, part, 0) for part in deep]) if deep else None
        return jnp.where(index >= 0, first, text), added

    def _angles(self, positions: Int[Array, "P 3 T"]) -> Float[Array, "P T half"]:
        cfg = self.cfg
        return layers.mrope_angles(positions, cfg.head_dim, cfg.mrope_section, cfg.rope_theta, cfg.mrope_interleaved)

    def _context(self, prefix: PrefixInput, deep: Float[Array, "U P S D"] | None) -> Context:
        return Context(self._angles(prefix.positions), _mask(prefix), deep=deep)

    def _branch_context(self, context: Context, next_position: Int[Array, " P"], length: int) -> Context:
        positions = next_position[:, None] + jnp.arange(length)[None]
        positions = jnp.broadcast_to(positions[:, None], (positions.shape[0], 3, length))
        # Padding lies behind the real tokens of a branch, so the causal mask hides it.
        return dataclasses.replace(context, branch_angles=self._angles(positions), own_mask=jnp.tri(length, dtype=bool))


def _apply(model: Vlm, variables: Variables, *inputs: Any, method: Callable[..., Any]) -> Any:
    """`Module.apply` without the type of mutable collections, of which there are none."""
    return model.apply(variables, *inputs, method=method)


@functools.partial(jax.jit, static_argnames="model")
def encode_video(model: Vlm, base: Variables, vision: VisionInput) -> Float[Array, "P M E"]:
    """Merged vision features of each prompt, constant while the tower is frozen: compute once, use all step long."""
    return _apply(model, {"params": base}, vision, method=Vlm.encode)


def prefill(model: Vlm, variables: Variables, prefix: PrefixInput, features: Float[Array, "P M E"]) -> Prefill:
    return _apply(model, variables, prefix, features, method=Vlm.prefill)


def next_logits(model: Vlm, variables: Variables, hidden: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
    return _apply(model, variables, hidden, method=Vlm.logits)


def empty_cache(model: Vlm, num_prompts: int, num_branches: int, length: int) -> KeyValue:
    """Room for the keys of all branch tokens, [L, P, J, G, C, K]."""
    cfg = model.cfg
    shape = (cfg.num_layers, num_prompts, cfg.num_kv_heads, num_branches, length, cfg.head_dim)
    return KeyValue(jnp.zeros(shape, model.dtype), jnp.zeros(shape, model.dtype))


def decode_step(
    model: Vlm,
    variables: Variables,
    prefill: Prefill,
    cache: KeyValue,
    tokens: Int[Array, "P G"],
    step: Int[Array, ""],
) -> tuple[Float[Array, "P G V"], KeyValue]:
    return _apply(model, variables, prefill, cache, tokens, step, method=Vlm.step)


def branch_hidden(model: Vlm, variables: Variables, prefill: Prefill, branches: Branches) -> Float[Array, "P G C D"]:
    return _apply(model, variables, prefill, branches, method=Vlm.branch)


def branch_logp(
    model: Vlm,
    variables: Variables,
    prefill: Prefill,
    branches: Branches,
    temperature: float,
    suppressed: Bool[Array, " V"],
    chunk: int,
) -> tuple[Float[Array, "P G C"], Float[Array, "P G C"]]:
    """Log-probability of every branch token and entropy of its distribution, from a kept prompt."""
    hidden = branch_hidden(model, variables, prefill, branches)
    return _token_logp(model, variables, prefill.last_hidden, hidden, branches, temperature, suppressed, chunk)


def joint_hidden(
    model: Vlm, variables: Variables, prefix: PrefixInput, features: Float[Array, "P M E"], branches: Branches
) -> tuple[Float[Array, "P D"], Float[Array, "P G C D"]]:
    """Final states of each prompt's last token and of all branch tokens, the prompt inside the differentiated part."""
    return _apply(model, variables, prefix, features, branches, method=Vlm.joint)


def joint_logp(
    model: Vlm,
    variables: Variables,
    prefix: PrefixInput,
    features: Float[Array, "P M E"],
    branches: Branches,
    temperature: float,
    suppressed: Bool[Array, " V"],
    chunk: int,
) -> tuple[Float[Array, "P G C"], Float[Array, "P G C"]]:
    """As branch_logp, with the prompt inside the differentiated computation (its keys depend on the adapter)."""
    last, hidden = joint_hidden(model, variables, prefix, features, branches)
    return _token_logp(model, variables, last, hidden, branches, temperature, suppressed, chunk)


def _token_logp(
    model: Vlm,
    variables: Variables,
    last_hidden: Float[Array, "P D"],
    hidden: Float[Array, "P G C D"],
    branches: Branches,
    temperature: float,
    suppressed: Bool[Array, " V"],
    chunk: int,
) -> tuple[Float[Array, "P G C"], Float[Array, "P G C"]]:
    """Token t is predicted by the state before it; the prompt's last state predicts token 0.

    Logits exist for `chunk` tokens at a time and are made again in the backward pass: [B, T, V] never exists.
    """
    num_prompts, num_branches, length, width = hidden.shape
    first = jnp.broadcast_to(last_hidden[:, None, None], (num_prompts, num_branches, 1, width))
    before = jnp.concatenate([first, hidden[:, :, :-1]], axis=2).reshape(-1, width)
    total = before.shape[0]
    chunk = min(chunk, total)
    rows = -(-total // chunk)
    before = jnp.pad(before, ((0, rows * chunk - total), (0, 0))).reshape(rows, chunk, width)
    tokens = jnp.pad(branches.tokens.reshape(-1), (0, rows * chunk - total)).reshape(rows, chunk)
    score = jax.checkpoint(functools.partial(_chunk_logp, model, variables, temperature, suppressed))
    logp, entropy = jax.lax.map(lambda row: score(*row), (before, tokens))
    shape = (num_prompts, num_branches, length)
    return logp.reshape(-1)[:total].reshape(shape), entropy.reshape(-1)[:total].reshape(shape)


def _chunk_logp(
    model: Vlm,
    variables: Variables,
    temperature: float,
    suppressed: Bool[Array, " V"],
    hidden: Float[Array, "T D"],
    tokens: Int[Array, " T"],
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    logp = log_probabilities(next_logits(model, variables, hidden), temperature, suppressed)
    # The inner where keeps 0 * inf out of the gradient as well.
    entropy = -jnp.sum(jnp.exp(logp) * jnp.where(suppressed, 0.0, logp), axis=-1)
    return jnp.take_along_axis(logp, tokens[:, None], axis=-1)[:, 0], entropy


def log_probabilities(
    logits: Float[Array, "*rows V"], temperature: float, suppressed: Bool[Array, " V"]
) -> Float[Array, "*rows V"]:
    """Log-probabilities of the distribution that is sampled from: same temperature, same forbidden tokens."""
    masked = jnp.where(suppressed, -jnp.inf, logits.astype(jnp.float32) / temperature)
    return jax.nn.log_softmax(masked, axis=-1)


def _mask(prefix: PrefixInput) -> Bool[Array, "P S"]:
    return jnp.arange(prefix.tokens.shape[-1])[None] < prefix.length[:, None]


def _last(hidden: Float[Array, "P S D"], length: Int[Array, " P"]) -> Float[Array, "P D"]:
    return jnp.take_along_axis(hidden, (length - 1)[:, None, None], axis=1)[:, 0]
