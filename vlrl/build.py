"""The parts of a run, built once from its config: models, tokenizers, examples, decoders."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import transformers

from vlrl import types
from vlrl.config import Config
from vlrl.data import boxes, examples, loader, video
from vlrl.io import hf_import
from vlrl.models import config as model_config
from vlrl.models import lora, vlm
from vlrl.referees import ser_referee
from vlrl.rollout import sampling
from vlrl.types import Array


@dataclasses.dataclass(frozen=True)
class Parts:
    policy: vlm.Vlm
    base: Any
    """Frozen weights of the policy: an argument of every jitted step, never a closure."""
    tokenizer: Any
    eos_ids: tuple[int, ...]
    suppressed: Array
    referee: ser_referee.Referee
    train: tuple[types.Example, ...]
    eval: tuple[types.Example, ...]
    pool: video.DecodePool


def parts(cfg: Config) -> Parts:
    """Loads everything. Raises ValueError naming the first path or field that is wrong."""
    _check(cfg)
    policy, base, tokenizer = _model("policy", cfg.policy, lora.scale(cfg.lora), cfg.policy.remat)
    judge, judge_base, judge_tokenizer = _model("referee", cfg.referee, 0.0, False)
    return Parts(
        policy=policy,
        base=base,
        tokenizer=tokenizer,
        eos_ids=hf_import.eos_token_ids(cfg.policy.path, tokenizer.backend_tokenizer),
        suppressed=sampling.suppressed_tokens(policy.cfg, tokenizer),
        referee=ser_referee.make(judge, judge_base, judge_tokenizer, cfg.referee),
        train=tuple(examples.read(cfg.data.train)),
        eval=tuple(examples.read(cfg.data.eval))[: cfg.eval.num_examples],
        pool=video.DecodePool(cfg.data),
    )


def batches(parts: Parts, cfg: Config) -> loader.Loader:
    """The training batches, forever; the decoding is done by the parts' pool."""
    return loader.Loader(parts.train, parts.pool, parts.tokenizer, parts.policy.cfg, cfg.data, cfg.prompt, cfg.seed)


def to_boxes(
    batch: types.Batch, family: model_config.Family, space: str
) -> list[Callable[[Sequence[float]], types.Box]]:
    """For each prompt, what turns four numbers of a completion into a box."""
    space = boxes.of_family(space, family)
    return [functools.partial(boxes.from_numbers, space=space, size_px=size) for size in batch.sizes_px]


def _model(name: str, cfg: Any, lora_scale: float, remat: bool) -> tuple[vlm.Vlm, Any, Any]:
    if not cfg.path or not pathlib.Path(cfg.path, "config.json").is_file():
        raise ValueError(f"{name}.path: {cfg.path!r} holds no config.json; give a Hugging Face checkpoint directory")
    architecture, _ = hf_import.load_config(cfg.path)
    model = vlm.Vlm(architecture, jnp.dtype(cfg.dtype), lora_scale, cfg.unroll_layers, remat)
    base = hf_import.place_params(cfg.path, architecture, cfg.dtype)
    # Local files only, and never code from the directory.
    tokenizer = transformers.AutoTokenizer.from_pretrained(cfg.path, local_files_only=True, trust_remote_code=False)
    return model, base, tokenizer


def _check(cfg: Config) -> None:
    for name in ("policy", "referee"):
        attention = getattr(cfg, name).attention
        if attention != "reference":
            raise ValueError(f"{name}.attention: {attention!r} is not implemented; use 'reference'")
    for name, space in (("prompt", cfg.prompt.box_space), ("referee", cfg.referee.box_space)):
        if space not in (*boxes.SPACES, boxes.FAMILY):
            raise ValueError(f"{name}.box_space: {space!r}; choose one of {', '.join((*boxes.SPACES, boxes.FAMILY))}")
    for name in ("train", "eval"):
        path = getattr(cfg.data, name)
        if not pathlib.Path(path).is_file():
            raise ValueError(f"data.{name}: {path!r} is no file; give a JSONL of examples (README, Your own data)")
    if cfg.data.prompts_per_step % (cfg.grpo.micro_batch_prompts or cfg.data.prompts_per_step):
        raise ValueError(
            f"grpo.micro_batch_prompts: {cfg.grpo.micro_batch_prompts} does not divide data.prompts_per_step "
            f"{cfg.data.prompts_per_step}; choose a divisor"
        )
    if cfg.rollout.group_size < 2:
        raise ValueError(f"rollout.group_size: {cfg.rollout.group_size} leaves nothing to compare; set at least 2")
    if cfg.rollout.temperature <= 0:
        raise ValueError(f"rollout.temperature: {cfg.rollout.temperature} samples nothing; set a positive value")
