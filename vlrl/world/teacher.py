"""Right completions: what the cold start learns to write."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from vlrl.types import Box, Example
from vlrl.world import questions, scenes

Looseness = float | Callable[[np.random.Generator], float]


def teacher(
    example: Example,
    scene: scenes.Scene,
    frame_times_s: Sequence[float] | Float[np.ndarray, " F"],
    rng: np.random.Generator,
    looseness: Looseness = 1.0,
) -> str:
    """A right completion for `example`, a question about `scene`.

    Its claims stand at the first frame of a slice (two of the sampled frames, whose times are given), with that time
    stated before the claim. Every written box is the exact one scaled about its centre by `looseness` (drawn anew for
    each box when it is a function) and cut at the frame.
    """
    scale = looseness if callable(looseness) else lambda _: looseness
    claims = []
    for t, obj in _claimed(example, scene, [float(t) for t in frame_times_s[::2]], rng):
        if (box := scenes.box_at(obj, scene, t)) is not None:
            claims.append(claim(obj, t, loosened(box, scale(rng))))
    boxes = [questions.timed_box_text(loosened(b.box, scale(rng)), b.time_s) for b in example.answer_boxes]
    parts = [example.answer_option] if example.answer_option else []
    if example.answer_span_s is not None:
        start, end = (round(t * 2) / 2 for t in example.answer_span_s)
        parts.append(questions.span_text(start, end))
    chosen = choice(example.answer_option, example.options) if example.answer_option else ""
    return f"<think>{' ; '.join(claims)}{chosen}</think><answer>{' '.join(parts + boxes)}</answer>"


def claim(obj: scenes.Object, t: float, box: Box) -> str:
    """With its time stated first: a moving object's box is otherwise written before its time is fixed."""
    return f"{t:.1f} s : <obj>{obj.phrase}</obj>{questions.timed_box_text(box, round(t, 1))}"


def choice(letter: str, options: Sequence[str]) -> str:
    """The option in words, then its letter: said in this order the letter need only be looked up."""
    return f" ; {options[questions.LETTERS.index(letter)]} {letter}"


def loosened(box: Box, scale: float) -> Box:
    """The box scaled about its centre and cut at the frame."""
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    w, h = (box[2] - box[0]) * scale / 2, (box[3] - box[1]) * scale / 2
    return max(x - w, 0.0), max(y - h, 0.0), min(x + w, 1.0), min(y + h, 1.0)


def _claimed(
    example: Example, scene: scenes.Scene, slices_s: list[float], rng: np.random.Generator
) -> list[tuple[float, scenes.Object]]:
    """(time, object) of each claim."""
    subjects = [questions.named(scene, phrase) for phrase in example.subjects]
    times = [t for t in slices_s if all(scenes.is_visible(obj, scene, t) for obj in subjects)]
    met = scenes.meeting(scene)
    if len(subjects) == 2 and met is not None:
        times = [t for t in times if met[2] <= t <= met[3]] or [(met[2] + met[3]) / 2]
    if not times:
        # Sampled so sparsely that no slice begins while the subject shows: cite the middle of its time.
        times = [sum(subjects[0].visible_s) / 2]
    if len(subjects) == 2:
        t = times[int(rng.integers(len(times)))]
        return [(t, obj) for obj in subjects]
    if example.task == "mcq":
        chosen = [times[int(rng.integers(len(times)))]]
    elif example.task == "where":
        chosen = [min(times, key=lambda t: abs(t - asked.time_s)) for asked in example.answer_boxes]
    else:
        chosen = [times[0], times[-1]]
    return [(t, subjects[0]) for t in dict.fromkeys(chosen)]
