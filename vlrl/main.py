"""Trains a video-language policy by GRPO on rewards that read the evidence.

    python -m vlrl.main --config configs/tiny_ser.py --workdir runs/tiny_ser

Overrides: --config.opt.lr=3e-6. --resume goes on from the newest checkpoint of the work directory.
"""

import contextlib
import dataclasses
import functools
import pathlib
import resource
import sys
import time
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from vlrl import build, claims, command_line, config, flops, guard, rewards, step_media, step_metrics, stopping
from vlrl.eval import runner
from vlrl.io import metric_log, run_directory
from vlrl.models import lora, vlm
from vlrl.referees import ser_referee
from vlrl.rl import advantages, optimizer, update
from vlrl.rollout import decode, sampling
from vlrl.timing import Stopwatch, compilations
from vlrl.types import Batch, Parsed, Rollouts, Scores, Verdict


@dataclasses.dataclass(frozen=True)
class Step:
    """What one step made on the way to its update."""

    rollouts: Rollouts
    parsed: tuple[tuple[Parsed, ...], ...]
    verdicts: tuple[tuple[tuple[Verdict, ...], ...], ...]
    scores: Scores
    experience: update.Experience
    losses: dict[str, float]


def train(cfg: config.Config, workdir: pathlib.Path, resume: bool) -> None:
    """The whole job: evaluation before, cfg.steps updates, evaluation after. Ends early, saved, when asked to stop."""
    run_key = jax.random.key(cfg.seed)
    parts = build.parts(cfg)
    directory = run_directory.open_run(workdir, cfg, resume)
    print(sampling.described(cfg.rollout), flush=True)
    transform = optimizer.make(cfg.opt, cfg.steps)
    state = update.init(lora.init(jax.random.fold_in(run_key, 1), parts.base, cfg.lora), transform)
    with (
        contextlib.closing(parts.pool),
        contextlib.closing(build.batches(parts, cfg)) as batches,
        stopping.on_signals() as stop,
    ):
        evaluated = functools.partial(
            runner.run, parts, cfg=cfg, key=jax.random.fold_in(run_key, 2), stopped=stop.requested
        )
        state, num_tokens = directory.restore(state, batches) if resume else (state, 0)
        before = directory.cached("before", functools.partial(evaluated, state.start_adapter))
        watchman = guard.Guard(cfg.guard, workdir)
        with metric_log.MetricLog(workdir, cfg.log.tensorboard, int(state.step), cfg.steps) as log:
            for step in range(int(state.step), cfg.steps):
                if stop.requested():
                    break
                watch, key = Stopwatch(), jax.random.fold_in(jax.random.fold_in(run_key, 3), step)
                with directory.saved_on_error(state, batches, num_tokens):
                    batch = next(batches)
                watch.lap("data")
                state, done = _step(parts, transform, cfg, state, batch, key, watch)
                num_tokens += int(np.sum(done.rollouts.branches.length) + np.sum(batch.prefix.length))
                epoch = (step + 1) * len(batch.examples) / len(parts.train)
                metrics = _log(log, step, parts, cfg, batch, done, watch, {"num_tokens": num_tokens, "epoch": epoch})
                with directory.saved_on_error(state, batches, num_tokens):
                    watchman.check(step, state, done.experience, metrics)
                if (step + 1) % cfg.checkpoint.every == 0 or step + 1 == cfg.steps:
                    directory.save(state, batches, num_tokens)
        if before is None or int(state.step) < cfg.steps:
            directory.save(state, batches, num_tokens)
            print(f"stopped after {int(state.step)} of {cfg.steps} steps, saved; go on with --resume", flush=True)
            return
        after = directory.cached("after", functools.partial(evaluated, state.adapter))
        if after is None:
            print(f"all {cfg.steps} steps are saved, the evaluation is not finished; go on with --resume", flush=True)
            return
        _report(directory, runner.comparison(parts.eval, before, after, cfg), parts.pool.peak_rss_bytes())


def _step(
    parts: build.Parts,
    transform: optax.GradientTransformation,
    cfg: config.Config,
    state: update.TrainState,
    batch: Batch,
    key: PRNGKeyArray,
    watch: Stopwatch,
) -> tuple[update.TrainState, Step]:
    """Encode once, sample, grade, compare within groups, update."""
    features = vlm.encode_video(parts.policy, parts.base, batch.prefix.vision)
    policy, prefix = {"params": parts.base, "lora": state.adapter}, batch.prefix.without_patches()
    rollouts = decode.sample(parts.policy, policy, features, prefix, key, parts.tokenizer, parts.eos_ids, cfg.rollout)
    watch.lap("rollout")
    to_boxes = build.to_boxes(batch, parts.policy.cfg.family, cfg.prompt.box_space)
    parsed = claims.parse_all(rollouts.text, to_boxes)
    verdicts = ser_referee.grade(parts.referee, batch, rollouts, parsed)
    scores = rewards.score(batch, rollouts, parsed, verdicts, cfg.rewards)
    watch.lap("referee")
    adv = advantages.group_normalized(scores.total, scores.valid, cfg.grpo)
    experience = update.Experience(prefix, features, rollouts.branches, rollouts.logp, adv, scores.valid)
    state, losses = update.train_step(
        parts.policy, transform, state, parts.base, experience, parts.suppressed, cfg.grpo, cfg.rollout.temperature
    )
    measured = {name: float(value) for name, value in losses.items()}
    watch.lap("update")
    return state, Step(rollouts, parsed, verdicts, scores, experience, measured)


def _log(
    log: metric_log.MetricLog,
    step: int,
    parts: build.Parts,
    cfg: config.Config,
    batch: Batch,
    done: Step,
    watch: Stopwatch,
    progress: dict[str, int | float],
) -> dict[str, float]:
    length = np.asarray(done.rollouts.branches.length)
    needed = flops.grpo_step(parts.policy.cfg, parts.base, batch.prefix, length, cfg.grpo.inner_iterations)
    laps = watch.metrics(int(length.sum()))
    measured = {
        **done.losses,
        **step_metrics.summarize(batch, done.rollouts, done.parsed, done.verdicts, done.scores),
        **progress,
        "learning_rate": float(optimizer.learning_rate(cfg.opt, cfg.steps, step)),
        **laps,
        **flops.utilization(needed, laps["step_time"]),
        "compile/count": compilations(),
    }
    log.write(step, measured)
    if cfg.log.rollouts:
        adv = np.asarray(done.experience.advantages)
        rows = step_metrics.rollout_rows(step, batch, done.rollouts, done.verdicts, done.scores, adv)
        log.write_rollouts(step, rows)
    if cfg.log.log_media:
        log.write_media(step, step_media.rows(batch, done.verdicts))
    return measured


def _report(directory: run_directory.RunDirectory, result: dict[str, Any], workers_bytes: int) -> None:
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + workers_bytes
    result |= {"wall_s": directory.wall_s(), "peak_rss_bytes": peak_bytes}
    directory.write_json("results.json", result)
    print(f"\n{result['examples']} held-out videos, {result['failed_videos']} of them could not be read")
    print(runner.printed(result, "greedy"))
    if "sampled" in result:
        print(runner.printed(result["sampled"], "sampled"))
    print(runner.printed_tasks(result["by_task"]))
    peak_gib = result["peak_rss_bytes"] / 2**30
    print(f"{result['wall_s']:.0f} s, peak {peak_gib:.2f} GiB; {directory.path / 'results.json'}")


def main(argv: list[str]) -> None:
    flags = command_line.parse(argv, __doc__ or "", {"workdir": "", "resume": False})
    workdir = pathlib.Path(flags.workdir or time.strftime("runs/%Y-%m-%d_%H-%M-%S"))
    train(flags.config, workdir, flags.resume)


if __name__ == "__main__":
    command_line.run(main, sys.argv)
