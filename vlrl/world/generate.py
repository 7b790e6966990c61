"""Writes a data set of the tiny world: `python -m vlrl.world.generate --out DIR --train 512 --eval 640 --seed 0`.

DIR/train.jsonl and DIR/eval.jsonl hold one Example a line, DIR/train/ and DIR/eval/ the videos. The four tasks take
turns, so each has a quarter of the rows. Equal arguments give equal rows, and the splits share no scene.
"""

import argparse
import concurrent.futures
import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from vlrl.types import Example, TimedBox
from vlrl.world import questions, render, scenes

SPLITS = ("train", "eval")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write videos of the tiny world and questions about them.")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--train", type=int, default=512, help="videos of the training split")
    parser.add_argument("--eval", type=int, default=640, help="videos of the evaluation split")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--questions-per-video", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args(argv)
    seen: set[str] = set()
    for split, count in (("train", args.train), ("eval", args.eval)):
        write_split(args.out, split, count, args.seed, args.questions_per_video, args.workers, seen)


def write_split(
    out: pathlib.Path, split: str, count: int, seed: int, per_video: int, workers: int, seen: set[str]
) -> None:
    """Writes `count` videos and their rows; skips scenes whose hash is in `seen` and adds its own to it."""
    (out / split).mkdir(parents=True, exist_ok=True)
    made = []
    for index in range(count):
        scene, examples = scene_with_questions(seed, split, index, per_video, seen)
        made.append((scene, examples, f"{split}/{index:05d}.mp4"))
        seen.add(scene_hash(scene))
    # Threads are enough: the encoder works outside the interpreter lock.
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda item: render.write_mp4(item[0], out / item[2]), made))
    with (out / f"{split}.jsonl").open("w") as file:
        for index, (_, examples, video) in enumerate(made):
            for number, example in enumerate(examples):
                name = f"{split}-{index:05d}" + (f"-{number}" if per_video > 1 else "")
                file.write(json.dumps(row(example, name, video), separators=(",", ":")) + "\n")


def scene_with_questions(
    seed: int, split: str, index: int, per_video: int = 1, seen: set[str] | frozenset[str] = frozenset()
) -> tuple[scenes.Scene, list[Example]]:
    """A scene that has a question of each task whose turn it is, and those questions."""
    if not 1 <= per_video <= len(questions.TASKS):
        raise ValueError(f"questions per video is {per_video}; ask for 1 to {len(questions.TASKS)}, one of each task")
    rng = np.random.default_rng([seed, SPLITS.index(split), index])
    turns = [questions.TASKS[(index * per_video + k) % len(questions.TASKS)] for k in range(per_video)]
    while True:
        scene = scenes.sample_scene(rng)
        by_task = {example.task: example for example in questions.questions(scene, rng)}
        if all(task in by_task for task in turns) and scene_hash(scene) not in seen:
            return scene, [by_task[task] for task in turns]


def scene_hash(scene: scenes.Scene) -> str:
    """Equal for scenes that show the same, whatever their files are called."""
    return hashlib.sha256(repr(scene).encode()).hexdigest()


def row(example: Example, example_id: str, video: str) -> dict[str, Any]:
    """The example as JSON; `video` is the path relative to the JSONL file."""
    return {
        "example_id": example_id,
        "video": video,
        "task": example.task,
        "question": example.question,
        "reference": example.reference,
        "options": list(example.options),
        "answer_option": example.answer_option,
        "answer_span_s": None if example.answer_span_s is None else list(example.answer_span_s),
        "answer_boxes": [_numbers(box) for box in example.answer_boxes],
        "subjects": list(example.subjects),
        "tracks": {phrase: [_numbers(box) for box in boxes] for phrase, boxes in example.tracks.items()},
    }


def _numbers(timed: TimedBox) -> list[float]:
    return [round(timed.time_s, 4), *(round(value, 4) for value in timed.box)]


if __name__ == "__main__":
    main()
