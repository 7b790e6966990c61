"""What a step reports, under TRL's names where TRL has one, and the table of its rollouts."""

import collections
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from vlrl import geometry
from vlrl.types import Array, Batch, Parsed, Rollouts, Scores, Verdict


def summarize(
    batch: Batch,
    rollouts: Rollouts,
    parsed: Sequence[Sequence[Parsed]],
    verdicts: Sequence[Sequence[Sequence[Verdict]]],
    scores: Scores,
) -> dict[str, float]:
    """Rewards are means over valid completions; reward_std is over groups of which at least two are valid. Lengths are
    of all completions whose prompt has its video. NaN where there is nothing to average."""
    valid = scores.valid
    length, finished = (np.asarray(x)[batch.valid] for x in (rollouts.branches.length, rollouts.finished))
    std = [np.std(row[ok], ddof=1) for row, ok in zip(scores.total, valid, strict=True) if ok.sum() > 1]
    result = {
        "reward": _mean(scores.total[valid]),
        "reward_std": _mean(std),
        "frac_reward_zero_std": _mean([value < 1e-6 for value in std]),
        "completions/mean_length": _mean(length),
        "completions/min_length": float(length.min()) if length.size else float("nan"),
        "completions/max_length": float(length.max()) if length.size else float("nan"),
        "completions/clipped_ratio": _mean(~finished),
    }
    for name, values in scores.components.items():
        result[f"rewards/{name}/mean"] = _mean(values[valid])
        result[f"rewards/{name}/std"] = float(np.std(values[valid])) if valid.any() else float("nan")
    return {**result, **_claim_metrics(batch, parsed, verdicts), **_invalid(batch, scores, verdicts)}


def _claim_metrics(
    batch: Batch, parsed: Sequence[Sequence[Parsed]], verdicts: Sequence[Sequence[Sequence[Verdict]]]
) -> dict[str, float]:
    with_video = [row for row, failure in zip(parsed, batch.failures, strict=True) if failure is None]
    completions = [completion for row in with_video for completion in row]
    graded = [v for row in verdicts for group in row for v in group if v.failure is None]
    return {
        "claims/per_rollout": _mean([len(c.claims) for c in completions]),
        "claims/malformed_per_rollout": _mean([c.num_malformed_claims for c in completions]),
        "claims/box_area": _mean([geometry.area(claim.box) for c in completions for claim in c.claims]),
        "claims/parse_rate": _mean([bool(c.claims) and c.answer is not None for c in completions]),
        "referee/relevance": _mean([v.relevance for v in graded]),
        "referee/localization": _mean([v.localization for v in graded]),
        "referee/omega": _mean([v.omega for v in graded]),
        "referee/claims": float(len(graded)),
    }


def _invalid(batch: Batch, scores: Scores, verdicts: Sequence[Sequence[Sequence[Verdict]]]) -> dict[str, float]:
    """Counts by reason: videos by prompt, rewards by completion, verdicts by claim. The rate is of completions that no
    update learns from."""
    counts = collections.Counter(f"invalid/{failure.reason}" for failure in batch.failures if failure is not None)
    for row, failure in zip(scores.reasons, batch.failures, strict=True):
        counts.update(f"invalid/{reason}" for reason in row if reason and failure is None)
    failed = [v.failure for row in verdicts for group in row for v in group if v.failure is not None]
    counts.update(f"invalid/claim_{failure.reason}" for failure in failed)
    rate = float(np.mean(~np.asarray(scores.valid)))
    return {
        "invalid/total": float(sum(counts.values())),
        "invalid/rate": rate,
        **{name: float(n) for name, n in counts.items()},
    }


def rollout_rows(
    step: int,
    batch: Batch,
    rollouts: Rollouts,
    verdicts: Sequence[Sequence[Sequence[Verdict]]],
    scores: Scores,
    advantages: Float[Array, "P G"],
) -> list[dict[str, Any]]:
    """One row a completion, with everything that decided its pay."""
    rows = []
    for p, example in enumerate(batch.examples):
        for g, text in enumerate(rollouts.text[p]):
            rows.append(
                {
                    "step": step,
                    "example_id": example.example_id,
                    "task": example.task,
                    "rollout": g,
                    "prompt": batch.prompts[p],
                    "completion": text,
                    "reference": example.reference,
                    **{f"rewards/{name}": float(values[p, g]) for name, values in scores.components.items()},
                    "reward": float(scores.total[p, g]),
                    "valid": bool(scores.valid[p, g]),
                    "reason": scores.reasons[p][g],
                    "advantage": float(advantages[p, g]),
                    "verdicts": json.dumps([_verdict(v) for v in verdicts[p][g]]),
                }
            )
    return rows


def _verdict(verdict: Verdict) -> Mapping[str, Any]:
    return {
        "object": verdict.claim.phrase,
        "box": verdict.claim.box,
        "time_s": verdict.claim.time_s,
        "frame_time_s": verdict.frame_time_s,
        "omega": verdict.omega,
        "relevance": verdict.letters[0],
        "localization": verdict.letters[1],
        "relevance_grade": verdict.relevance,
        "localization_grade": verdict.localization,
        "failure": verdict.failure.reason if verdict.failure else "",
    }


def _mean(values: Any) -> float:
    array = np.asarray(values, np.float64)
    return float(array.mean()) if array.size else float("nan")
