"""Tiny models and prompts for the tests, and an independent decoder to compare with."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from vlrl.data import encoding, prompt, vision
from vlrl.io import hf_keys
from vlrl.models import decoder, vlm
from vlrl.models.config import MARKS, Qwen25Vision, VlmConfig
from vlrl.types import Branches

CFG = VlmConfig(
    family="qwen2_5_vl",
    vocab_size=61,
    hidden_size=48,
    num_layers=2,
    num_heads=6,
    num_kv_heads=3,
    head_dim=16,
    intermediate_size=40,
    rope_theta=1e4,
    mrope_section=(2, 3, 3),
    rms_norm_eps=1e-6,
    qkv_bias=True,
    qk_norm=False,
    tie_word_embeddings=False,
    image_token_id=56,
    video_token_id=57,
    vision_start_token_id=58,
    vision_end_token_id=59,
    vision=Qwen25Vision(
        depth=2,
        hidden_size=32,
        num_heads=2,
        intermediate_size=24,
        out_hidden_size=48,
        patch_size=4,
        window_size=16,  # 2x2 merged units
        fullatt_block_indexes=(1,),
    ),
)
LORA_SCALE = 1.5


class IdTokenizer:
    """Text is a list of ids: "3 14" is [3, 14]."""

    unk_token_id = None
    added_tokens_decoder: dict = {}  # noqa: RUF012

    def __init__(self, cfg, num_tokens=None):
        self.num_tokens = num_tokens or cfg.vocab_size
        marks = MARKS.get(cfg.family)
        self.special = marks and {
            marks.image: cfg.image_token_id,
            marks.video: cfg.video_token_id,
            # InternVL's config.json does not name these two
            marks.start: cfg.vision_start_token_id or cfg.image_token_id + 1,
            marks.end: cfg.vision_end_token_id or cfg.image_token_id + 2,
        }

    def __call__(self, text, **_):
        return {"input_ids": [int(word) for word in text.split()]}

    def __len__(self):
        return self.num_tokens

    def convert_tokens_to_ids(self, name):
        return self.special[name]


def text(*ids):
    return prompt.Text("".join(f"{i} " for i in ids), True)


def media(cfg, kind, size_px, frames=1, second_per_grid=0.0, seed=0, max_tiles=1):
    """An image or a video of noise; sides are multiples of two patches, so that nothing need be resized."""
    noise = np.random.default_rng(seed).integers(0, 256, (frames, *size_px, 3), dtype=np.uint8)
    return prompt.Media(kind, vision.slices(noise, cfg.vision, 1, 2**30, max_tiles), second_per_grid)


def row(cfg, *segments, name="row"):
    return encoding.encode(IdTokenizer(cfg), segments, cfg, name)


def collate(cfg, rows, length, slices=1, patches=4):
    return encoding.collate(rows, encoding.Buckets((length,), (slices,), (patches,)), cfg.vision)


def random_params(cfg, seed=0):
    """Weights large enough that every part of the model shows in the logits."""
    rng = np.random.default_rng(seed)
    flat = {}
    for entry in hf_keys.table(cfg):
        noise = rng.normal(size=entry.leaf_shape)
        leaf = {"scale": 1 + 0.2 * noise, "bias": 0.2 * noise, "embedding": noise}.get(entry.path[-1])
        flat[entry.path] = np.asarray(noise / np.sqrt(entry.leaf_shape[-2]) if leaf is None else leaf, np.float32)
    return hf_keys.unflatten(flat)


def random_adapter(cfg, rank=3, seed=1, fresh=False):
    rng = np.random.default_rng(seed)
    targets = tuple(hf_keys.LORA_MODULES)
    flat = {
        path: rng.normal(size=shape).astype(np.float32) * (0.0 if fresh and path[-1] == "b" else 0.2)
        for path, shape in hf_keys.lora_shapes(cfg, rank, targets).items()
    }
    return hf_keys.unflatten(flat)


def branches_of(lists, length):
    """Branches from [P][G] lists of ids."""
    tokens = np.array([[ids + [0] * (length - len(ids)) for ids in group] for group in lists], np.int32)
    return Branches(tokens, np.array([[len(ids) for ids in group] for group in lists], np.int32))


def prefix_logits(model, variables, prefix, features):
    """Logits at every prompt position, [P, S, V]."""

    def run(module, prefix, features):
        embedded, deep = module._embed(prefix, features)
        stream, _ = module.decoder(decoder.Stream(embedded), None, module._context(prefix, deep))
        return module.logits(stream.prefix)

    return model.apply(variables, prefix, features, method=run)


encode = jax.jit(vlm.encode_video, static_argnums=0)
logits_of_prefix = jax.jit(prefix_logits, static_argnums=0)
prefill = jax.jit(vlm.prefill, static_argnums=0)
decode_step = jax.jit(vlm.decode_step, static_argnums=0)
branch_logp = jax.jit(vlm.branch_logp, static_argnums=(0, 4, 6))
joint_logp = jax.jit(vlm.joint_logp, static_argnums=(0, 5, 7))


@functools.partial(jax.jit, static_argnums=0)
def sequence_logits(cfg, params, adapter, embedded, positions):
    """An ordinary causal decoder over sequences [B, T, D] with positions [B, 3, T], written for clarity alone.

    No prefix, no branch, no cache, no padding mask. Heads are repeated, the mask is full, layers are a Python loop.
    """
    layers = params["decoder"]["layers"]

    def norm(x, scale):
        return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + cfg.rms_norm_eps) * scale[None, None]

    def linear(x, name, i):
        y = jnp.einsum("bti,io->bto", x, layers[name]["kernel"][i])
        if "bias" in layers[name]:
            y = y + layers[name]["bias"][i][None, None]
        if name in adapter:
            y = y + LORA_SCALE * jnp.einsum("bti,ir,ro->bto", x, adapter[name]["a"][i], adapter[name]["b"][i])
        return y

    def rotate(x):
        frequency = cfg.rope_theta ** (-np.arange(cfg.head_dim // 2) * 2 / cfg.head_dim)
        axis = np.repeat([0, 1, 2], cfg.mrope_section)
        angle = jnp.einsum("bkt,k->btk", positions[:, axis].astype(jnp.float32), frequency.astype(np.float32))
        turned = (x[..., : cfg.head_dim // 2] + 1j * x[..., cfg.head_dim // 2 :]) * jnp.exp(1j * angle)[:, :, None]
        return jnp.concatenate([turned.real, turned.imag], -1)

    def heads(x, count):
        return x.reshape(*x.shape[:2], count, cfg.head_dim)

    x, length = embedded, embedded.shape[1]
    future = np.triu(np.ones((length, length), bool), 1)[None, None]
    for i in range(cfg.num_layers):
        y = norm(x, layers["input_norm"]["scale"][i])
        q = rotate(heads(linear(y, "q_proj", i), cfg.num_heads))
        k = rotate(heads(linear(y, "k_proj", i), cfg.num_kv_heads))
        v = heads(linear(y, "v_proj", i), cfg.num_kv_heads)
        k, v = (jnp.repeat(a, cfg.num_heads // cfg.num_kv_heads, axis=2) for a in (k, v))
        scores = jnp.where(future, -jnp.inf, jnp.einsum("bqhk,bthk->bhqt", q, k) / np.sqrt(cfg.head_dim))
        mixed = jnp.einsum("bhqt,bthk->bqhk", jax.nn.softmax(scores), v).reshape(*x.shape[:2], -1)
        x = x + linear(mixed, "o_proj", i)
        y = norm(x, layers["post_norm"]["scale"][i])
        x = x + linear(jax.nn.silu(linear(y, "gate_proj", i)) * linear(y, "up_proj", i), "down_proj", i)
    head = params["embed"]["embedding"].T if cfg.tie_word_embeddings else params["lm_head"]["kernel"]
    return jnp.einsum("btd,dv->btv", norm(x, params["decoder"]["norm"]["scale"]), head)


def unshared(params, prefix, features, branches):
    """Each branch glued to its own prompt: what `sequence_logits` reads.

    Returns embedded [B, T, D], positions [B, 3, T], and for every branch token the place in its sequence [P, G, C].
    """
    table = params["embed"]["embedding"]
    num_prompts, num_branches, length = branches.tokens.shape
    total = prefix.tokens.shape[1] + length
    embedded = np.zeros((num_prompts, num_branches, total, table.shape[1]), np.float32)
    positions = np.zeros((num_prompts, num_branches, 3, total), np.int32)
    for p in range(num_prompts):
        size = int(prefix.length[p])
        index = prefix.vision_index[p, :size]
        seen = np.where((index >= 0)[:, None], np.asarray(features)[p, index], table[prefix.tokens[p, :size]])
        following = int(prefix.next_position[p]) + np.broadcast_to(np.arange(length), (3, length))
        for g in range(num_branches):
            glued = np.concatenate([seen, table[branches.tokens[p, g]]])
            embedded[p, g, : len(glued)] = glued
            positions[p, g, :, : len(glued)] = np.concatenate([prefix.positions[p, :, :size], following], axis=1)
    place = np.broadcast_to(prefix.length[:, None, None] + np.arange(length), branches.tokens.shape)
    return embedded.reshape(-1, total, table.shape[1]), positions.reshape(-1, 3, total), place


def with_vision(cfg, **changes):
    return dataclasses.replace(cfg, vision=dataclasses.replace(cfg.vision, **changes))


def shapes_in(jaxpr):
    """Shape of every value computed anywhere inside a jaxpr, loops, checkpoints and derivatives included."""
    for equation in jaxpr.eqns:
        for value in equation.outvars:
            yield tuple(value.aval.shape)
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from shapes_in(inner)
