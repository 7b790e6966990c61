"""What the cold start is taught: scenes as the policy will see them, several questions a video, dense truth.

Every question of a scene is a branch of one prefix (the video), exactly the token sequence of a policy prompt and its
completion, so a video is encoded once for all its questions.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8

from vlrl.config import DataConfig, PromptConfig
from vlrl.data import encoding, prompt, vision
from vlrl.models.config import VlmConfig
from vlrl.types import Branches, PrefixInput, Task
from vlrl.world import drills, questions, render, scenes, teacher

DENSE_FIELDS = (2, len(scenes.COLOURS), len(scenes.SHAPES), 2, 2, 51, 51, 51, 51)
"""Classes of the dense head: object here or not, colour, shape, in the first frame, in the second, x1, y1, x2, y2."""
MIN_OVERLAP = 0.15
"""A merged unit holds the object that covers at least this share of it."""
LOOSE, TIGHT = 1.75, 1.0


@dataclasses.dataclass(frozen=True)
class Lesson:
    """A batch: prefixes with their branches; loss_mask marks completion tokens; dense truth per merged unit."""

    prefix: PrefixInput
    branches: Branches
    loss_mask: Float[np.ndarray, "P G C"]
    dense: Int[np.ndarray, "P M 9"]
    """Class of each dense field; the last eight hold only where the first is 1."""


@dataclasses.dataclass(frozen=True)
class Syllabus:
    videos: int
    questions: int
    branch_length: int
    num_objects: int | None
    loose_share: float
    """How often the teacher draws boxes far too large: the systematic error that is left for RL to remove."""
    drills: Mapping[str, float] | None = None
    """Instead of questions: drills by name, and the share of each."""


def frames(
    scene: scenes.Scene, num_frames: int, rng: np.random.Generator
) -> tuple[UInt8[np.ndarray, "F height width 3"], Float[np.ndarray, " F"]]:
    """Frames and times as the video loader samples them, with the colour loss of a 4:2:0 codec and its noise."""
    shown = np.array(scene.frame_times_s)
    wanted = np.linspace(shown[0], shown[-1], num_frames)
    times = shown[np.abs(shown[None] - wanted[:, None]).argmin(axis=1)]
    # Frames of twice the size would only be scaled down again.
    half = 2 if max(scene.height, scene.width) > 140 else 1
    return codec_loss(render.render(scene, times, scene.height // half, scene.width // half), rng), times


def codec_loss(
    pixels: UInt8[np.ndarray, "F height width 3"], rng: np.random.Generator
) -> UInt8[np.ndarray, "F height width 3"]:
    """What a 4:2:0 codec leaves of clean pictures: colour at half the resolution, and noise on the brightness."""
    exact = pixels.astype(np.float32)
    luma = exact @ np.array([0.299, 0.587, 0.114], np.float32)
    chroma = exact - luma[..., None]
    coarse = chroma[:, ::2, ::2] + chroma[:, 1::2, ::2] + chroma[:, ::2, 1::2] + chroma[:, 1::2, 1::2]
    blurred = (coarse / 4).repeat(2, axis=1).repeat(2, axis=2)
    luma += rng.standard_normal(luma.shape, np.float32) * 1.5
    return np.clip(luma[..., None] + blurred + 0.5, 0, 255).astype(np.uint8)


def make(
    rng: np.random.Generator,
    tokenizer: Any,
    model: VlmConfig,
    data: DataConfig,
    prompts: PromptConfig,
    syllabus: Syllabus,
) -> Lesson:
    """A batch of new scenes; ValueError where a branch does not fit `branch_length`."""
    shape = (syllabus.videos, syllabus.questions, syllabus.branch_length)
    tokens, mask = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    length = np.ones(shape[:2], np.int32)
    rows, truths = [], []
    for p in range(syllabus.videos):
        scene = scenes.sample_scene(rng, syllabus.num_objects)
        pictures, times = frames(scene, data.num_frames, rng)
        slices = vision.slices(pictures, model.vision, data.min_pixels, data.max_pixels)
        asked = [q for _ in range(syllabus.questions) for q in questions.questions(scene, rng, with_tracks=False)]
        segments = [prompt.policy_prompt(q, slices, times, scene.duration_s, model.family, prompts) for q in asked]
        video, _ = _divided(segments[0])
        for g in range(syllabus.questions):
            if syllabus.drills is not None:
                name = str(rng.choice(list(syllabus.drills), p=list(syllabus.drills.values())))
                branch = drills.DRILLS[name](rng, tokenizer, scene, times)
            else:
                k = int(rng.integers(len(asked)))
                looseness = LOOSE if rng.random() < syllabus.loose_share else TIGHT
                text = teacher.teacher(asked[k], scene, times, rng, looseness)
                branch = _answer(tokenizer, model, _divided(segments[k])[1], text, asked[k].task)
            ids, weights = branch
            if len(ids) > syllabus.branch_length:
                raise ValueError(f"a branch of {len(ids)} tokens, branch_length is {syllabus.branch_length}; raise it")
            tokens[p, g, : len(ids)], mask[p, g, : len(ids)], length[p, g] = ids, weights, len(ids)
        rows.append(encoding.encode(tokenizer, video, model, "video"))
        truths.append(_dense(scene, times, slices))
    buckets = encoding.Buckets(data.prompt_buckets, data.slice_buckets, data.patch_buckets)
    prefix = encoding.collate(rows, buckets, model.vision)
    units = prefix.vision.patches.shape[2] // model.vision.merge_units
    dense = np.zeros((syllabus.videos, prefix.vision.patches.shape[1], units, len(DENSE_FIELDS)), np.int32)
    for p, truth in enumerate(truths):
        dense[p, : truth.shape[0], : truth.shape[1]] = truth
    flat = dense.reshape(syllabus.videos, -1, len(DENSE_FIELDS))
    return Lesson(prefix, Branches(tokens, length), mask, flat)


def _answer(
    tokenizer: Any, model: VlmConfig, question: Sequence[prompt.Segment], text: str, task: Task
) -> drills.Branch:
    """A question and its completion, all of which is graded."""
    asked = encoding.encode(tokenizer, question, model, "question").tokens.tolist()
    completion = [*encoding.tokenize_text(tokenizer, text, trusted=False), tokenizer.eos_token_id]
    weights = [0.0] * len(asked) + [1.0] * len(completion)
    if task == "mcq":
        names = drills.name_ids(tokenizer)
        first = completion.index(tokenizer.convert_tokens_to_ids("</obj><box>["))
        for i in range(first):  # the others name what the question says
            weights[len(asked) + i] = drills.NAME_WEIGHT if completion[i] in names else 1.0
        weights[-5] = drills.LETTER_WEIGHT  # of " A</think><answer>A</answer>" and the end of the turn
    return [*asked, *completion], weights


def _divided(segments: Sequence[prompt.Segment]) -> tuple[Sequence[prompt.Segment], Sequence[prompt.Segment]]:
    """A policy prompt up to the end of its video, and the rest: prefix and beginning of every branch."""
    end = max(i for i, segment in enumerate(segments) if isinstance(segment, prompt.Media)) + 1
    return segments[:end], segments[end:]


def _dense(
    scene: scenes.Scene, times: Float[np.ndarray, " F"], slices: vision.SlicePatches
) -> Int[np.ndarray, "I U 9"]:
    """Truth of every merged unit of every slice: which object is there, what it is and where it begins and ends."""
    count, rows, columns = slices.grid[0], slices.grid[1] // 2, slices.grid[2] // 2
    edges_x, edges_y = np.linspace(0, 1, columns + 1), np.linspace(0, 1, rows + 1)
    truth = np.zeros((count, rows * columns, len(DENSE_FIELDS)), np.int32)
    best = np.full((count, rows * columns), MIN_OVERLAP)
    colours = list(scenes.COLOURS)
    for i in range(count):
        for obj in scene.objects:
            boxes = [scenes.box_at(obj, scene, float(t)) for t in times[2 * i : 2 * i + 2]]
            box = boxes[0] or boxes[1]
            if box is None:
                continue
            over_x = np.clip(np.minimum(edges_x[1:], box[2]) - np.maximum(edges_x[:-1], box[0]), 0, None) * columns
            over_y = np.clip(np.minimum(edges_y[1:], box[3]) - np.maximum(edges_y[:-1], box[1]), 0, None) * rows
            overlap = np.outer(over_y, over_x).reshape(-1)
            here = overlap > best[i]
            best[i] = np.where(here, overlap, best[i])
            corners = [min(max(round(v * 50), 0), 50) for v in box]
            seen = [int(b is not None) for b in boxes]
            truth[i, here] = [1, colours.index(obj.shape.colour), scenes.SHAPES.index(obj.shape.kind), *seen, *corners]
    return truth
