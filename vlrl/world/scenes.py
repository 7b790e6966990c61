"""Scenes of coloured shapes on straight paths, with the truth of every moment.

Places are fractions of the frame's width and height, times are seconds. Nothing covers anything else, every colour
occurs once in a scene, so "red circle" and "red object" each name one thing.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Float

from vlrl.types import Box

T = TypeVar("T")
Path = tuple[tuple[float, float, float], ...]
"""(time_s, x, y) in rising time: straight in between, still before the first and after the last."""

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (240, 40, 40),
    "green": (40, 215, 70),
    "blue": (60, 110, 255),
    "yellow": (250, 230, 50),
    "purple": (220, 70, 240),
    "cyan": (60, 230, 240),
    "white": (250, 250, 250),
}
SHAPES = ("square", "circle", "triangle", "ring", "cross")
DURATIONS_S = (4.0, 5.0, 6.0, 8.0)
RATES = (6, 8, 10, 12, 15)
# All but the last two have at most 64 patches of 14 px; those have to be scaled down by half.
FRAME_SIZES = ((112, 112), (84, 140), (140, 84), (98, 126), (224, 224), (168, 280))
MAX_SPEED = 0.08
GAP = 0.04
"""Least distance between two objects that do not meet."""
DIRECTIONS: dict[str, tuple[float, float]] = {
    "left": (-1.0, 0.0),
    "right": (1.0, 0.0),
    "up": (0.0, -1.0),
    "down": (0.0, 1.0),
}


@dataclasses.dataclass(frozen=True)
class Shape:
    kind: str
    colour: str
    side: float
    """Side of the square that bounds it, as a fraction of the frame's shorter side."""


@dataclasses.dataclass(frozen=True)
class Object:
    """A shape, where its centre is at which time (straight in between), and when it is to be seen."""

    shape: Shape
    path: Path
    visible_s: tuple[float, float]
    """Shown from the first moment on and no longer at the second."""

    @property
    def phrase(self) -> str:
        return f"{self.shape.colour} {self.shape.kind}"


@dataclasses.dataclass(frozen=True)
class Scene:
    objects: tuple[Object, ...]
    duration_s: float
    fps: int
    height: int
    width: int
    variable_frame_rate: bool
    frame_times_s: tuple[float, ...]
    """When each frame of the video is shown: k / fps, or irregular whole milliseconds."""
    contact: tuple[int, int, float, float] | None = None
    """Numbers of the two objects that touch (the mover first), from when, until when."""


def extent(shape: Shape, height: int, width: int) -> tuple[float, float]:
    """Width and height of the shape's bounds as fractions of the frame's."""
    short = min(height, width)
    return shape.side * short / width, shape.side * short / height


def is_visible(obj: Object, scene: Scene, t: float) -> bool:
    start, end = obj.visible_s
    return start <= t < end or (end >= scene.duration_s and t >= end)


def centres(obj: Object, times_s: Float[np.ndarray, " F"]) -> Float[np.ndarray, "F 2"]:
    """Centre (x, y) at each time."""
    t, x, y = zip(*obj.path, strict=True)
    return np.stack([np.interp(times_s, t, x), np.interp(times_s, t, y)], axis=1)


def box_at(obj: Object, scene: Scene, t: float) -> Box | None:
    """Exact bounds of the drawn shape, None where it is not visible."""
    if not is_visible(obj, scene, t):
        return None
    x, y = _centre(obj.path, t)
    w, h = extent(obj.shape, scene.height, scene.width)
    return x - w / 2, y - h / 2, x + w / 2, y + h / 2


def meeting(scene: Scene) -> tuple[Object, Object, float, float] | None:
    """The two objects that touch and from when until when; None where nothing touches."""
    if scene.contact is None:
        return None
    a, b, start, end = scene.contact
    return scene.objects[a], scene.objects[b], start, end


def sample_scene(rng: np.random.Generator, num_objects: int | None = None) -> Scene:
    """A random scene of `num_objects` (1 to 3; mostly 1 or 2 when None)."""
    if num_objects is None:
        num_objects = 1 + _choose(rng, (0, 0, 0, 0, 1, 1, 1, 1, 1, 2))
    if num_objects not in (1, 2, 3):
        raise ValueError(f"sample_scene: num_objects is {num_objects}; ask for 1, 2 or 3")
    duration, fps = _choose(rng, DURATIONS_S), _choose(rng, RATES)
    height, width = _choose(rng, FRAME_SIZES)
    variable = rng.random() < 0.25
    meets = num_objects > 1 and rng.random() < 0.35
    while (placed := _place(rng, num_objects, duration, height, width, meets)) is None:
        pass
    objects, contact = placed
    times = _irregular_times(rng, duration, fps) if variable else [k / fps for k in range(int(duration * fps))]
    return Scene(objects, duration, fps, height, width, variable, tuple(times), contact)


def _choose(rng: np.random.Generator, values: Sequence[T]) -> T:
    return values[int(rng.integers(len(values)))]


def _centre(path: Path, t: float) -> tuple[float, float]:
    """np.interp for one time, without its overhead."""
    if t <= path[0][0]:
        return path[0][1], path[0][2]
    for (t0, x0, y0), (t1, x1, y1) in itertools.pairwise(path):
        if t <= t1:
            share = (t - t0) / (t1 - t0)
            return x0 + share * (x1 - x0), y0 + share * (y1 - y0)
    return path[-1][1], path[-1][2]


def _irregular_times(rng: np.random.Generator, duration_s: float, fps: int) -> list[float]:
    gaps = rng.uniform(0.4, 1.6, int(4 * duration_s * fps)) / fps
    ms = np.concatenate([[0], np.cumsum(np.maximum(np.round(gaps * 1000), 1))]).astype(int)
    return [int(t) / 1000 for t in ms[ms < duration_s * 1000]]


def _half_seconds(rng: np.random.Generator, low: float, high: float) -> float:
    """A multiple of .5 s in [low, high]; the interval must hold one."""
    return float(rng.integers(int(np.ceil(low * 2)), int(np.floor(high * 2)) + 1)) / 2


def _place(
    rng: np.random.Generator, num_objects: int, duration: float, height: int, width: int, meets: bool
) -> tuple[tuple[Object, ...], tuple[int, int, float, float] | None] | None:
    """(objects, contact), or None where the dice left no room."""
    shapes = _shapes(rng, num_objects)
    intervals = _intervals(rng, num_objects, duration, meets)
    paths: list[Path] = []
    contact = None
    if meets:
        met = _meeting_paths(rng, shapes[0], shapes[1], duration, height, width)
        if met is None:
            return None
        pair, start, end = met
        paths, contact = list(pair), (0, 1, start, end)
    extents = [extent(shape, height, width) for shape in shapes]
    while len(paths) < num_objects:
        for _ in range(20):
            path = _free_path(rng, extents[len(paths)], duration)
            placed = zip(paths, extents[: len(paths)], strict=True)
            if path and not any(_near(path, extents[len(paths)], p, e, duration) for p, e in placed):
                paths.append(path)
                break
        else:
            return None
    objects = [Object(*parts) for parts in zip(shapes, paths, intervals, strict=True)]
    return tuple(objects), contact


def _shapes(rng: np.random.Generator, count: int) -> list[Shape]:
    colours = rng.permutation(list(COLOURS))[:count]
    # One in six scenes may repeat a shape: there the colour alone tells objects apart.
    kinds = rng.choice(SHAPES, count) if rng.random() < 1 / 6 else rng.permutation(SHAPES)[:count]
    largest = 0.34 if count == 3 else 0.42
    return [Shape(str(k), str(c), float(rng.uniform(0.22, largest))) for k, c in zip(kinds, colours, strict=True)]


def _intervals(rng: np.random.Generator, count: int, duration: float, meets: bool) -> list[tuple[float, float]]:
    """At most one object that appears late and one that vanishes early, each for at least .35 of the time (so the
    first frame of one of four slices shows it); the two that meet stay."""
    intervals = [(0.0, duration)] * count
    free = [int(i) for i in rng.permutation(np.arange(2 if meets else 0, count))]
    if free and rng.random() < 0.5:
        intervals[free.pop()] = (_half_seconds(rng, 0.25 * duration, 0.6 * duration), duration)
    if free and rng.random() < 0.5:
        intervals[free.pop()] = (0.0, _half_seconds(rng, 0.4 * duration, 0.75 * duration))
    return intervals


def _free_path(rng: np.random.Generator, size: tuple[float, float], duration: float) -> Path | None:
    """Still, or on a nearly axis-parallel line through the whole time; None where it would leave the frame."""
    w, h = size
    start = (rng.uniform(w / 2, 1 - w / 2), rng.uniform(h / 2, 1 - h / 2))
    if rng.random() < 0.35:
        return ((0.0, float(start[0]), float(start[1])),)
    dx, dy = _choose(rng, tuple(DIRECTIONS.values()))
    far = rng.uniform(0.16, min(0.4, MAX_SPEED * duration))
    aside = rng.uniform(-0.15, 0.15) * far
    x, y = start[0] + dx * far + dy * aside, start[1] + dy * far + dx * aside
    if not (w / 2 <= x <= 1 - w / 2 and h / 2 <= y <= 1 - h / 2):
        return None
    return ((0.0, float(start[0]), float(start[1])), (duration, float(x), float(y)))


def _meeting_paths(
    rng: np.random.Generator, mover: Shape, rests: Shape, duration: float, height: int, width: int
) -> tuple[tuple[Path, Path], float, float] | None:
    """((path of the mover, path of the other), start_s, end_s) of a touch along one axis; None where there is no room.

    The bounds touch exactly, at mid-height or mid-width where every shape reaches its bounds. A triangle does not do
    so at its sides, hence it is met from above or below.
    """
    axis = 1 if "triangle" in (mover.kind, rests.kind) else int(rng.integers(2))
    a, b = extent(mover, height, width), extent(rests, height, width)
    start = _half_seconds(rng, 0.25 * duration, 0.5 * duration)
    end = _half_seconds(rng, start + 0.35 * duration, duration)
    speed = rng.uniform(0.75, 1) * MAX_SPEED
    sign = 1.0 if rng.random() < 0.5 else -1.0
    place = np.array([rng.uniform(max(s, t) / 2, 1 - max(s, t) / 2) for s, t in zip(a, b, strict=True)])
    unit = np.eye(2)[axis] * sign
    touch = place + unit * (a[axis] + b[axis]) / 2
    knots = [(0.0, touch + unit * speed * start), (start, touch)]
    if end < duration:
        knots += [(end, touch), (duration, touch + unit * speed * (duration - end))]
    if not all(a[i] / 2 <= p[i] <= 1 - a[i] / 2 for _, p in knots for i in (0, 1)):
        return None
    path = tuple((float(t), float(p[0]), float(p[1])) for t, p in knots)
    return (path, ((0.0, float(place[0]), float(place[1])),)), start, end


def _near(path: Path, size: tuple[float, float], other: Path, other_size: tuple[float, float], duration: float) -> bool:
    """Whether two bounds ever come within GAP. A grid of a third of a second is enough: objects approach each other
    by at most .05 in that time, so between two grid points they come nearer by less than GAP."""
    for t in np.linspace(0, duration, 25).tolist():
        (x, y), (u, v) = _centre(path, t), _centre(other, t)
        if abs(x - u) < (size[0] + other_size[0]) / 2 + GAP and abs(y - v) < (size[1] + other_size[1]) / 2 + GAP:
            return True
    return False
