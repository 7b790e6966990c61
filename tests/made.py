"""Run directories with chosen content, written as a run writes them."""

import io
import json

import numpy as np

from vlrl import step_media
from vlrl.io import metric_log

CONFIG = {
    "seed": 0,
    "steps": 4,
    "data": {"train": "/data/orchard/train.jsonl", "num_frames": 8},
    "rewards": {"answer": 2.0, "format": 1.0, "evidence": 0.5, "answer_combine": "sum"},
    "log": {"rollouts": True, "log_media": False},
}


def verdict(**changes):
    return {
        "object": "red circle",
        "box": [0.25, 0.5, 0.5, 0.75],
        "time_s": 1.0,
        "frame_time_s": 1.125,
        "omega": 0.5,
        "relevance": "A",
        "localization": "C",
        "relevance_grade": 1.0,
        "localization_grade": 0.5,
        "failure": "",
    } | changes


def row(step=0, example_id="e0", rollout=0, verdicts=(), **changes):
    return {
        "step": step,
        "example_id": example_id,
        "task": "where",
        "rollout": rollout,
        "prompt": f"Where is it in {example_id}?",
        "completion": "<think>seen</think><answer>there</answer>",
        "reference": "there",
        "rewards/answer": 0.5,
        "rewards/format": 1.0,
        "rewards/evidence": 0.25,
        "reward": 2.125,
        "valid": True,
        "reason": "",
        "advantage": 0.5,
        "verdicts": json.dumps(list(verdicts)),
    } | changes


def frame(example_id="e0", time_s=1.125, shade=200):
    picture = np.full((40, 80, 3), shade, np.uint8)
    return {
        "example_id": example_id,
        "frame_time_s": time_s,
        "height_px": 40,
        "width_px": 80,
        "jpeg": step_media.small_jpeg(picture),
    }


def run(directory, rows_of_steps, metrics=None, media=None, config=None, files=None):
    """A run with these rows for each step, metrics and frames by step, and further JSON files by name."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | (config or {})))
    with metric_log.MetricLog(directory, tensorboard=False, screen=io.StringIO()) as log:
        for step, rows in enumerate(rows_of_steps):
            log.write(step, (metrics or {}).get(step, {"reward": 1.0 + step, "kl": 0.5}))
            log.write_rollouts(step, rows)
            if media:
                log.write_media(step, media.get(step, []))
    for name, value in (files or {}).items():
        (directory / f"{name}.json").write_text(json.dumps(value))
    return directory


MEDIA = {"log": {"log_media": True}}
