"""A whole run in seconds: a few videos of the tiny world, random models even smaller than the shipped ones."""

import contextlib
import dataclasses
import functools
import json
import pathlib
import signal

import jax
import numpy as np
import pytest

from vlrl import main
from vlrl.io import hf_import, metric_log, run_directory
from vlrl.models import lora
from vlrl.rl import optimizer, update
from vlrl.rollout import decode
from vlrl.world import generate, random_checkpoint

REPOSITORY = pathlib.Path(__file__).parents[1]
PROMPTS, GROUP, STEPS, TRAIN, EVAL = 4, 2, 4, 6, 4  # four steps cross the borders of epochs, also within a batch

CONFIG = """
from vlrl import config


def get_config():
    c = config.load_fields({tiny_ser!r})
    c.steps = {steps}
    c.data.train = {root!r} + "/data/train.jsonl"
    c.data.eval = {root!r} + "/data/eval.jsonl"
    c.data.prompts_per_step = {prompts}
    c.data.decode_workers = 1
    c.policy.path = {root!r} + "/policy"
    c.referee.path = {root!r} + "/referee"
    c.referee.claims_per_call = 8
    c.lora.rank = 4
    c.lora.alpha = 8.0
    c.rollout.group_size = {group}
    c.rollout.max_new_tokens = 12
    c.opt.lr = 1e-2
    c.referee.gamma = "argmax"
    c.opt.warmup_steps = 1
    c.eval.num_examples = {examples}
    c.eval.prompts_per_batch = {prompts}
    c.eval.bootstrap = 50
    c.checkpoint.every = 2
    return c
"""


@dataclasses.dataclass(frozen=True)
class Tiny:
    """Where the pieces of the runs are: config.py, data/, policy/, referee/."""

    root: pathlib.Path

    def argv(self, workdir, *overrides):
        workdir = [] if workdir is None else [f"--workdir={workdir}"]
        return ["main", f"--config={self.root / 'config.py'}", *workdir, *overrides]

    def run(self, workdir, *overrides):
        """The main command in this process; returns the work directory."""
        main.main(self.argv(workdir, *overrides))
        return workdir

    def compilation_cache(self):
        """Environment under which processes share what they compile."""
        return {
            "JAX_COMPILATION_CACHE_DIR": str(self.root / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
        }

    def rows(self, split):
        return [json.loads(line) for line in (self.root / "data" / f"{split}.jsonl").read_text().splitlines()]


def write(root):
    generate.main(["--out", str(root / "data"), "--train", str(TRAIN), "--eval", str(EVAL), "--workers", "1"])
    for name, seed in (("policy", 0), ("referee", 1)):
        random_checkpoint.write(root / name, "qwen2_5_vl", seed)
    text = CONFIG.format(
        tiny_ser=str(REPOSITORY / "configs" / "tiny_ser.py"),
        root=str(root),
        steps=STEPS,
        prompts=PROMPTS,
        group=GROUP,
        examples=EVAL,
    )
    (root / "config.py").write_text(text)
    return Tiny(root)


def completion(number):
    """What the teacher might write; different numbers are paid differently."""
    x = 40 * (number % 12)
    return (
        f"<think><obj>red circle</obj><box>[{x},100,{x + 400},640]</box>at<t>{number % 3}.0</t>s</think>"
        f"<answer>{'ABCD'[number % 4]} From <t>0.5</t>s to <t>{1 + number % 3}.0</t>s "
        f"<box>[{x},100,{x + 400},640]</box>at<t>1.0</t>s</answer>"
    )


def claiming_texts(tokenizer, branches, finished):
    """Stands in for decode.texts: random models write no claims, so each sampled number writes some for them."""
    return tuple(tuple(completion(int(row.sum())) for row in group) for group in np.asarray(branches.tokens))


@contextlib.contextmanager
def claiming():
    """Completions hold claims, and runs of equal settings share their compiled step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "texts", claiming_texts)
        patch.setattr(optimizer, "make", _one_optimizer)
        yield


_one_optimizer = functools.cache(optimizer.make)


@contextlib.contextmanager
def signal_after(step, number=signal.SIGTERM):
    """The signal arrives while the metrics of this step (from 0) are being written."""
    plain = metric_log.MetricLog.write

    def write(self, at, metrics):
        plain(self, at, metrics)
        if at == step:
            signal.raise_signal(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metric_log.MetricLog, "write", write)
        yield


def state_of(workdir):
    """The newest training state of a run."""
    cfg = run_directory.read_config(workdir)
    architecture_, _ = hf_import.load_config(cfg.policy.path)
    base = hf_import.shapes(architecture_, cfg.policy.dtype)
    fresh = update.init(lora.init(jax.random.key(0), base, cfg.lora), optimizer.make(cfg.opt, cfg.steps))
    return jax.device_get(run_directory.read_state(workdir, fresh))


def lasting(workdir):
    """Metrics by step without those of the clock and the compiler."""
    passing = ("time/", "tokens_per_s/", "step_time", "compile/", "tflops_per_s", "mfu")
    return [
        {name: value for name, value in line.items() if not name.startswith(passing)}
        for line in metric_log.read(workdir)
    ]
