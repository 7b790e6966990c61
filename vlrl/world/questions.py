"""Questions about a scene with their true answers."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from vlrl.data import boxes
from vlrl.types import Box, Example, Task, TimedBox
from vlrl.world import scenes

T = TypeVar("T")

LETTERS = "ABCD"
TASKS: tuple[Task, ...] = ("mcq", "when", "where", "both")
GRID = 20
"""Boxes are written in thousandths of the frame, as multiples of this."""


Variant = tuple[str, str, list[str], tuple[str, ...]]
"""Question, right option, wrong options, subjects."""


@dataclasses.dataclass(frozen=True)
class Event:
    """What a when-question asks for: its wording, the interval, the phrases, and an object to locate meanwhile."""

    question: str
    span_s: tuple[float, float]
    subjects: tuple[str, ...]
    located: scenes.Object
    reference_to_located: str


def questions(scene: scenes.Scene, rng: np.random.Generator, with_tracks: bool = True) -> tuple[Example, ...]:
    """One random question of each task the scene has one for: always mcq and where, when and both with an event.

    `example_id` and `video_path` are left empty. `with_tracks=False` saves the true boxes at every frame time.
    """
    true_boxes = tracks(scene) if with_tracks else {}
    made = [_choice(scene, rng), _when(scene, rng), _where(scene, rng), _both(scene, rng)]
    return tuple(dataclasses.replace(example, tracks=true_boxes) for example in made if example is not None)


def tracks(scene: scenes.Scene) -> dict[str, tuple[TimedBox, ...]]:
    """True boxes, to four digits, of every object at the time of each video frame that shows it."""
    result = {}
    for obj in scene.objects:
        boxes = ((t, scenes.box_at(obj, scene, t)) for t in scene.frame_times_s)
        result[obj.phrase] = tuple(
            TimedBox(round(t, 4), (round(b[0], 4), round(b[1], 4), round(b[2], 4), round(b[3], 4)))
            for t, b in boxes
            if b is not None
        )
    return result


def span_text(start_s: float, end_s: float) -> str:
    return f"From <t>{start_s:.1f}</t>s to <t>{end_s:.1f}</t>s"


def box_text(box: Box) -> str:
    """`<box>[x1,y1,x2,y2]</box>` in thousandths, on the grid, never empty."""
    x1, y1, x2, y2 = (min(max(round(v * 1000 / GRID), 0), 1000 // GRID) for v in box)
    x1, y1 = min(x1, 1000 // GRID - 1), min(y1, 1000 // GRID - 1)
    x2, y2 = max(x2, x1 + 1), max(y2, y1 + 1)
    on_grid = (x1 * GRID / 1000, y1 * GRID / 1000, x2 * GRID / 1000, y2 * GRID / 1000)
    return f"<box>{boxes.to_text(on_grid, 'norm1000', (1, 1))}</box>"


def timed_box_text(box: Box, time_s: float) -> str:
    return f"{box_text(box)}at<t>{time_s:.1f}</t>s"


def asked_objects(scene: scenes.Scene, rng: np.random.Generator) -> list[tuple[str, scenes.Object]]:
    """Every multiple-choice question of a random object or of the scene, and the object it asks for."""
    return [(question, named(scene, subjects[0])) for question, _, _, subjects in _choice_variants(scene, rng)]


def named(scene: scenes.Scene, phrase: str) -> scenes.Object:
    return next(obj for obj in scene.objects if obj.phrase == phrase)


def _pick(rng: np.random.Generator, values: Sequence[T]) -> T:
    return values[int(rng.integers(len(values)))]


def _make(task: Task, question: str, reference: str, **rest: Any) -> Example:
    return Example(example_id="", video_path="", task=task, question=question, reference=reference, **rest)


def _choice(scene: scenes.Scene, rng: np.random.Generator) -> Example:
    """A question with four options, the right one at a random letter."""
    question, answer, others, subjects = _pick(rng, _choice_variants(scene, rng))
    wrong = [others[int(i)] for i in rng.permutation(len(others))[:3]]
    place = int(rng.integers(4))
    options = (*wrong[:place], answer, *wrong[place:])
    letter = LETTERS[place]
    return _make("mcq", question, f"{letter}. {answer}", options=options, answer_option=letter, subjects=subjects)


def _choice_variants(scene: scenes.Scene, rng: np.random.Generator) -> list[Variant]:
    """Everything of this kind that the scene can be asked."""
    obj = _pick(rng, scene.objects)
    colour, kind = obj.shape.colour, obj.shape.kind
    same = [other for other in scene.objects if other.shape.kind == kind]
    wrong = [k for k in scenes.SHAPES if k != kind]
    variants: list[Variant] = [(f"What shape is the {colour} object?", kind, wrong, (obj.phrase,))]
    if len(same) == 1:
        wrong = [c for c in scenes.COLOURS if c != colour]
        variants.append((f"What colour is the {kind}?", colour, wrong, (obj.phrase,)))
    for question, subject in _which(scene):
        variants.append((question, subject.phrase, _absent(scene, subject, rng), (subject.phrase,)))
    if (met := scenes.meeting(scene)) is not None:
        a, b = (met[0], met[1]) if rng.random() < 0.5 else (met[1], met[0])
        wrong = [phrase for phrase in _absent(scene, a, rng) if phrase != b.phrase]
        variants.append((f"Which object touches the {b.phrase}?", a.phrase, wrong, (a.phrase, b.phrase)))
    return variants


def _which(scene: scenes.Scene) -> list[tuple[str, scenes.Object]]:
    """Questions that exactly one object answers."""
    found = []
    for obj in scene.objects:
        if obj.visible_s[0] > 0:
            found.append(("Which object appears late?", obj))
        if obj.visible_s[1] < scene.duration_s:
            found.append(("Which object vanishes?", obj))
    if scene.contact is None:
        # Who comes to touch may also turn back: no question about its direction has one answer.
        for name, (dx, dy) in scenes.DIRECTIONS.items():
            along = [(obj, _moved(obj, scene, dx, dy)) for obj in scene.objects]
            movers = [obj for obj, far in along if far > 0.05]
            if len(movers) == 1 and max(far for _, far in along) >= 0.15:
                found.append((f"Which object moves {name}?", movers[0]))
    return found


def _moved(obj: scenes.Object, scene: scenes.Scene, dx: float, dy: float) -> float:
    """How far the object comes in a direction while it is visible."""
    (x0, y0), (x1, y1) = scenes.centres(obj, np.array(obj.visible_s)).tolist()
    return (x1 - x0) * dx + (y1 - y0) * dy


def _absent(scene: scenes.Scene, answer: scenes.Object, rng: np.random.Generator) -> list[str]:
    """Wrong options: the other objects of the scene, and as many absent ones as make four."""
    phrases = [obj.phrase for obj in scene.objects if obj is not answer]
    colours = [c for c in scenes.COLOURS if c not in {obj.shape.colour for obj in scene.objects}]
    # Absent ones also for the two that _choice may drop; colours of the scene never repeat, so each phrase is wrong.
    phrases += [f"{colours[int(i)]} {_pick(rng, scenes.SHAPES)}" for i in rng.permutation(len(colours))]
    return phrases[:4] if len(scene.objects) > 1 else phrases[:3]


def _event(scene: scenes.Scene, rng: np.random.Generator) -> Event | None:
    events = [
        Event(f"When is the {o.phrase} visible", o.visible_s, (o.phrase,), o, "it")
        for o in scene.objects
        if o.visible_s != (0.0, scene.duration_s)
    ]
    if (met := scenes.meeting(scene)) is not None:
        a, b, start, end = met
        located = _pick(rng, (a, b))
        text = f"When do the {a.phrase} and the {b.phrase} touch"
        events.append(Event(text, (start, end), (a.phrase, b.phrase), located, f"the {located.phrase}"))
    return _pick(rng, events) if events else None


def _when(scene: scenes.Scene, rng: np.random.Generator) -> Example | None:
    if (event := _event(scene, rng)) is None:
        return None
    reference = span_text(*event.span_s)
    return _make("when", f"{event.question}?", reference, answer_span_s=event.span_s, subjects=event.subjects)


def _where(scene: scenes.Scene, rng: np.random.Generator) -> Example:
    obj = _pick(rng, scene.objects)
    moments = _moments(scene, obj, obj.visible_s)
    count = 2 if len(moments) > 3 and rng.random() < 0.25 else 1
    times = sorted(moments[int(i)] for i in rng.permutation(len(moments))[:count])
    boxes = tuple(_true_box(scene, obj, t) for t in times)
    question = f"Where is the {obj.phrase} at {' and '.join(f'{t:.1f} s' for t in times)}?"
    # No coordinates: the referee must look at the pixels, not compare numbers.
    reference = f"{obj.phrase} at {' and '.join(f'{t:.1f} s' for t in times)}"
    return _make("where", question, reference, answer_boxes=boxes, subjects=(obj.phrase,))


def _both(scene: scenes.Scene, rng: np.random.Generator) -> Example | None:
    if (event := _event(scene, rng)) is None:
        return None
    obj = event.located
    box = _true_box(scene, obj, _pick(rng, _moments(scene, obj, event.span_s)))
    question = f"{event.question} and where is {event.reference_to_located} at {box.time_s:.1f} s?"
    reference = f"{span_text(*event.span_s)} and {obj.phrase} at {box.time_s:.1f} s"
    boxes = (box,)
    return _make("both", question, reference, answer_span_s=event.span_s, answer_boxes=boxes, subjects=event.subjects)


def _moments(scene: scenes.Scene, obj: scenes.Object, span_s: tuple[float, float]) -> list[float]:
    """Multiples of .5 s within the span that a frame of the video shows."""
    last = min(span_s[1], scene.frame_times_s[-1])
    times = [k / 2 for k in range(int(np.ceil(span_s[0] * 2)), int(last * 2) + 1)]
    return [t for t in times if scenes.is_visible(obj, scene, t)]


def _true_box(scene: scenes.Scene, obj: scenes.Object, t: float) -> TimedBox:
    box = scenes.box_at(obj, scene, t)
    if box is None:
        raise ValueError(f"{obj.phrase} is not visible at {t} s; ask only for moments that show it")
    return TimedBox(t, box)
