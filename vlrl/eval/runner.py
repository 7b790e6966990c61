"""Evaluation of an adapter on held-out examples: the same preprocessing, referee and rewards as training."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from vlrl import build, claims, rewards
from vlrl.config import Config, RolloutConfig
from vlrl.data import loader
from vlrl.eval import metrics, statistics
from vlrl.models import vlm
from vlrl.referees import ser_referee
from vlrl.rollout import decode
from vlrl.types import Batch, Example, Score

Table = dict[str, dict[str, list[float]]]
"""Mode (greedy, sampled), metric, one value an example (NaN: does not apply)."""

SHOWN = ("what_acc", "tiou", "viou", "parse_rate", "reward")


def run(parts: build.Parts, adapter: Any, cfg: Config, key: PRNGKeyArray, stopped: Callable[[], bool]) -> Table | None:
    """Metrics of every example of `parts.eval`, None when asked to stop before the end."""
    rows: dict[str, list[metrics.Evaluation]] = {mode: [] for mode in modes(cfg)}
    variables = {"params": parts.base, "lora": adapter}
    batches = loader.eval_batches(
        parts.eval,
        parts.pool,
        parts.tokenizer,
        parts.policy.cfg,
        cfg.data,
        cfg.prompt,
        min(cfg.eval.prompts_per_batch, len(parts.eval)),
    )
    for number, (batch, num_real) in enumerate(batches):
        features = vlm.encode_video(parts.policy, parts.base, batch.prefix.vision)
        prefix, step_key = batch.prefix.without_patches(), jax.random.fold_in(key, number)
        for mode, rollout_cfg in modes(cfg).items():
            rollouts = decode.sample(
                parts.policy, variables, features, prefix, step_key, parts.tokenizer, parts.eos_ids, rollout_cfg
            )
            rows[mode] += _rows(parts, batch, rollouts, cfg)[:num_real]
        if stopped():
            return None
    return {
        mode: {name: column.tolist() for name, column in metrics.columns(table).items()} for mode, table in rows.items()
    }


def modes(cfg: Config) -> dict[str, RolloutConfig]:
    """One completion an example: the likeliest, and one sampled at temperature 1."""
    one = dataclasses.replace(cfg.rollout, group_size=1, top_p=1.0, top_k=0)
    greedy = {"greedy": dataclasses.replace(one, temperature=0.0)}
    return greedy | ({"sampled": dataclasses.replace(one, temperature=1.0)} if cfg.eval.sampled else {})


def _rows(parts: build.Parts, batch: Batch, rollouts: Any, cfg: Config) -> list[metrics.Evaluation]:
    to_boxes = build.to_boxes(batch, parts.policy.cfg.family, cfg.prompt.box_space)
    parsed = claims.parse_all(rollouts.text, to_boxes)
    verdicts = ser_referee.grade(parts.referee, batch, rollouts, parsed)
    scores = rewards.score(batch, rollouts, parsed, verdicts, cfg.rewards)
    return [
        metrics.evaluate_completion(example, parsed[p][0], Score(scores.total[p, 0], bool(scores.valid[p, 0])))
        if batch.failures[p] is None
        else metrics.NOT_EVALUATED
        for p, example in enumerate(batch.examples)
    ]


def summary(table: Table, cfg: Config) -> dict[str, dict[str, dict[str, float]]]:
    """Mode, metric, {mean, low, high}: 95 % bootstrap intervals over examples."""
    return {
        mode: {
            name: dataclasses.asdict(statistics.bootstrap_mean(np.array(columns[name]), cfg.eval.bootstrap, cfg.seed))
            for name in columns
        }
        for mode, columns in table.items()
    }


def difference(before: Table, after: Table, cfg: Config) -> dict[str, dict[str, dict[str, float]]]:
    """As summary, of after - before example by example."""
    paired = {
        mode: {name: np.subtract(after[mode][name], before[mode][name]).tolist() for name in after[mode]}
        for mode in after
    }
    return summary(paired, cfg)


def by_task(examples: Sequence[Example], table: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float | int]]:
    """Mean of each metric over the examples of each task, with their number."""
    result: dict[str, dict[str, float | int]] = {}
    for task in sorted({example.task for example in examples}):
        chosen = np.array([example.task == task for example in examples])
        means = {name: _mean(np.array(table[name])[chosen]) for name in SHOWN}
        result[task] = {"examples": int(chosen.sum()), **means}
    return result


def comparison(examples: Sequence[Example], before: Table, after: Table, cfg: Config) -> dict[str, Any]:
    """The content of results.json: greedy figures on top, sampled ones and those by task beside them."""
    first, last, change = summary(before, cfg), summary(after, cfg), difference(before, after, cfg)
    result: dict[str, Any] = {"before": first["greedy"], "after": last["greedy"], "paired_difference": change["greedy"]}
    if "sampled" in last:
        sampled = {"before": first["sampled"], "after": last["sampled"], "paired_difference": change["sampled"]}
        result["sampled"] = sampled
    tasks = {"before": by_task(examples, before["greedy"]), "after": by_task(examples, after["greedy"])}
    counts = {"examples": len(examples), "failed_videos": failed_videos(after)}
    return {**result, "by_task": tasks, **counts}


def failed_videos(table: Table) -> int:
    """Examples without a row, as their video failed: they are in no mean."""
    return int(np.isnan(table["greedy"]["parse_rate"]).sum())


def printed(result: Mapping[str, Any], title: str) -> str:
    """Before, after and paired difference as a table; times 100."""
    lines = [f"{title:<12}{'before':>22}{'after':>22}{'difference':>24}"]
    for name in SHOWN:
        cells = [_cell(result[part][name], name) for part in ("before", "after", "paired_difference")]
        lines.append(f"{name:<12}{cells[0]:>22}{cells[1]:>22}{cells[2]:>24}")
    return "\n".join(lines)


def printed_tasks(tasks: Mapping[str, Mapping[str, Mapping[str, float | int]]]) -> str:
    """Mean of each metric before and after, by task."""
    lines = [f"{'by task':<12}{'examples':>10}" + "".join(f"{name:>22}" for name in SHOWN)]
    for task, before in tasks["before"].items():
        after = tasks["after"][task]
        cells = [f"{before[name]:.3f} -> {after[name]:.3f}" for name in SHOWN]
        lines.append(f"{task:<12}{before['examples']:>10}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


def _cell(interval: Mapping[str, float], name: str) -> str:
    return f"{interval['mean']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}]"


def _mean(values: Iterable[float]) -> float:
    real = [value for value in values if not np.isnan(value)]
    return float(np.mean(real)) if real else float("nan")
