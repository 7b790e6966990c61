"""What the tiny referee is taught: claims right and wrong in every way, with the letters they deserve.

Wrong claims are shifted, loosened, shrunk, the whole frame, anywhere, on another object, under another name, of another
time: a referee that never saw a good box around a wrongly named object pays for one.
"""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8

from vlrl import geometry
from vlrl.config import RefereeConfig
from vlrl.data import encoding
from vlrl.models.config import VlmConfig
from vlrl.referees import prompt as referee_prompt
from vlrl.types import Box, Example, PrefixInput
from vlrl.world import lessons, questions, scenes, teacher

KINDS = {
    "right": 0.18,
    "loose": 0.16,
    "shrunk": 0.08,
    "shifted": 0.16,
    "whole_frame": 0.05,
    "anywhere": 0.07,
    "wrong_object": 0.10,
    "wrong_name": 0.14,
    "wrong_time": 0.06,
}
LOCALIZATION_BOUNDS = (0.75, 0.6, 0.45, 0.3)
"""Least IoU with the named object for A, B, C and D."""
RELEVANCE_BOUNDS = (0.875, 0.625, 0.375, 0.125)


@dataclasses.dataclass(frozen=True)
class Claimed:
    """A claim of a kind at a frame, with its truth."""

    kind: str
    frame: int
    box: Box
    phrase: str
    iou: float
    """With the object that the phrase names, 0 where the frame shows no such object."""
    relevance: float

    @property
    def letters(self) -> tuple[int, int]:
        """Grades as letter numbers (0 is A): relevance, localization."""
        return _letter(self.relevance, RELEVANCE_BOUNDS), _letter(self.iou, LOCALIZATION_BOUNDS)


@dataclasses.dataclass(frozen=True)
class RefereeLesson:
    prefix: PrefixInput
    letters: Int[np.ndarray, "P 2"]
    claims: tuple[Claimed, ...]


def make(
    rng: np.random.Generator, tokenizer: Any, model: VlmConfig, num_frames: int, cfg: RefereeConfig, num_claims: int
) -> RefereeLesson:
    """A batch of claims about new scenes, each with its graded truth."""
    rows: list[encoding.Row] = []
    claims: list[Claimed] = []
    while len(rows) < num_claims:
        scene = scenes.sample_scene(rng)
        pictures, times = lessons.frames(scene, num_frames, rng)
        asked = questions.questions(scene, rng, with_tracks=False)
        for example in [asked[int(i)] for i in rng.permutation(len(asked))[:2]]:
            for _ in range(2):
                claim = corrupted(example, scene, times, rng)
                rows.append(_row(claim, example, scene, pictures, times, rng, tokenizer, model, cfg))
                claims.append(claim)
    rows, claims = rows[:num_claims], claims[:num_claims]
    prefix = encoding.collate(rows, encoding.Buckets(cfg.prompt_buckets, (2,), cfg.patch_buckets), model.vision)
    return RefereeLesson(prefix, np.array([claim.letters for claim in claims], np.int32), tuple(claims))


def corrupted(
    example: Example, scene: scenes.Scene, times: Float[np.ndarray, " F"], rng: np.random.Generator, kind: str = ""
) -> Claimed:
    """A claim about a subject of the question, wrong in one way."""
    kind = kind or str(rng.choice(list(KINDS), p=list(KINDS.values())))
    subjects = [questions.named(scene, phrase) for phrase in example.subjects]
    shown = [(f, obj) for f, t in enumerate(times) for obj in subjects if scenes.is_visible(obj, scene, float(t))]
    frame, obj = shown[int(rng.integers(len(shown)))] if shown else (0, subjects[0])
    box, phrase = _box(obj, scene, times, frame), obj.phrase
    others = [other for other in scene.objects if other is not obj and _visible(other, scene, times, frame)]
    if kind in ("right", "wrong_name"):
        box = teacher.loosened(box, rng.uniform(0.94, 1.1))
    elif kind == "loose":
        box = teacher.loosened(box, rng.uniform(1.1, 2.4))
    elif kind == "shrunk":
        box = teacher.loosened(box, rng.uniform(0.4, 0.94))
    elif kind == "shifted":
        box = _moved(teacher.loosened(box, rng.uniform(0.85, 1.6)), rng)
    elif kind == "whole_frame":
        box = (0.0, 0.0, 1.0, 1.0)
    elif kind == "anywhere":
        box = _anywhere(rng)
    elif kind == "wrong_object":
        box = (
            teacher.loosened(_box(others[0], scene, times, frame), rng.uniform(0.9, 1.5)) if others else _anywhere(rng)
        )
    elif kind == "wrong_time":
        hidden = [f for f in range(len(times)) if not _visible(obj, scene, times, f)]
        frame = hidden[int(rng.integers(len(hidden)))] if hidden else len(times) - 1 - frame
    if kind == "wrong_name":
        phrase = _misnamed(obj, others, rng)
    box = _on_grid(box)
    return Claimed(kind, frame, box, phrase, *_truth(box, phrase, example, scene, float(times[frame])))


def _truth(box: Box, phrase: str, example: Example, scene: scenes.Scene, time_s: float) -> tuple[float, float]:
    """IoU with the named object; relevance: the best subject's share inside the box, less where it is lost in it."""
    iou, relevance = 0.0, 0.0
    for obj in scene.objects:
        true_box = scenes.box_at(obj, scene, time_s)
        if true_box is None:
            continue
        if obj.phrase == phrase:
            iou = geometry.iou(box, true_box)
        if obj.phrase in example.subjects:
            inside = geometry.area(_intersection(box, true_box))
            focus = min(1.0, 4 * inside / max(geometry.area(box), 1e-9))
            relevance = max(relevance, inside / geometry.area(true_box) * focus)
    return iou, relevance


def _row(
    claim: Claimed,
    example: Example,
    scene: scenes.Scene,
    pictures: UInt8[np.ndarray, "F height width 3"],
    times: Float[np.ndarray, " F"],
    rng: np.random.Generator,
    tokenizer: Any,
    model: VlmConfig,
    cfg: RefereeConfig,
) -> encoding.Row:
    text = f"<obj>{claim.phrase}</obj>{questions.timed_box_text(claim.box, round(float(times[claim.frame]), 1))}"
    # Sometimes among other claims of the teacher, sometimes alone: what stands around a claim says nothing of it.
    around = teacher.teacher(example, scene, times, rng, lambda r: r.uniform(0.9, 1.7))
    thought, _, answer = around.removeprefix("<think>").partition("</think>")
    thoughts = [f"{times[claim.frame]:.1f} s : {text}", *([thought] if rng.random() < 0.4 else [])]
    response = f"<think>{' ; '.join(thoughts[i] for i in rng.permutation(len(thoughts)))}</think>{answer}"
    segments = referee_prompt.prefix_segments(
        example, pictures[claim.frame], claim.box, claim.phrase, response, model, cfg, tokenizer
    )
    return encoding.encode(tokenizer, segments, model, "referee lesson")


def _misnamed(obj: scenes.Object, others: list[scenes.Object], rng: np.random.Generator) -> str:
    """Another object of the scene, or the right one with a wrong colour, a wrong shape or both."""
    if others and rng.random() < 0.4:
        return others[int(rng.integers(len(others)))].phrase
    colour, kind = obj.shape.colour, obj.shape.kind
    change = int(rng.integers(3))
    if change != 0:
        colour = str(rng.choice([c for c in scenes.COLOURS if c != colour]))
    if change != 1:
        kind = str(rng.choice([k for k in scenes.SHAPES if k != kind]))
    return f"{colour} {kind}"


def _box(obj: scenes.Object, scene: scenes.Scene, times: Float[np.ndarray, " F"], frame: int) -> Box:
    moment = float(np.clip(times[frame], obj.visible_s[0], max(obj.visible_s[0], obj.visible_s[1] - 1e-3)))
    box = scenes.box_at(obj, scene, moment)
    return box if box is not None else (0.25, 0.25, 0.75, 0.75)


def _visible(obj: scenes.Object, scene: scenes.Scene, times: Float[np.ndarray, " F"], frame: int) -> bool:
    return scenes.is_visible(obj, scene, float(times[frame]))


def _moved(box: Box, rng: np.random.Generator) -> Box:
    width, height = box[2] - box[0], box[3] - box[1]
    dx, dy = rng.normal(0, 0.35, 2) * (width, height)
    dx, dy = float(np.clip(dx, -box[0], 1 - box[2])), float(np.clip(dy, -box[1], 1 - box[3]))
    return box[0] + dx, box[1] + dy, box[2] + dx, box[3] + dy


def _anywhere(rng: np.random.Generator) -> Box:
    width, height = rng.uniform(0.12, 0.6, 2)
    x, y = rng.uniform(0, 1 - width), rng.uniform(0, 1 - height)
    return float(x), float(y), float(x + width), float(y + height)


def _on_grid(box: Box) -> Box:
    """As the policy writes it: in steps of the coordinate grid, never empty."""
    steps = 1000 // questions.GRID
    x1, y1, x2, y2 = (min(max(round(value * steps), 0), steps) for value in box)
    x1, y1 = min(x1, steps - 1), min(y1, steps - 1)
    return x1 / steps, y1 / steps, max(x2, x1 + 1) / steps, max(y2, y1 + 1) / steps


def _intersection(a: Box, b: Box) -> Box:
    return max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])


def _letter(value: float, bounds: tuple[float, ...]) -> int:
    return sum(value < bound for bound in bounds)
