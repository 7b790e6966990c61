"""Videos played backwards, in another order, or at another speed: examples whose outcome only time decides.

A way out that SemReward-VL names for the items it fails on (section 3.5): direction, order, duration.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from vlrl.types import Example, Outcome, Video

OPPOSITE: dict[Outcome | None, Outcome] = {"pass": "fail", "fail": "pass"}


def added(examples: Sequence[Example], kinds: Sequence[str], speed: float) -> tuple[Example, ...]:
    """The examples, then an edited one of each of the `kinds` for every example whose item says what it then shows.

    Raises ValueError for an unknown kind or a speed that changes nothing.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"data.temporal: no kind {kind!r}; choose from {', '.join(KINDS)}")
    if speed <= 1:
        raise ValueError(f"data.temporal_speed: {speed} must be above 1; 2 plays at double and at half speed")
    edited = [e for kind in kinds for example in examples for e in KINDS[kind](example, speed)]
    return (*examples, *edited)


def reversal(example: Example, _: float) -> list[Example]:
    if example.item is None or example.outcome is None or not example.item.under_reversal:
        return []
    flips = example.item.under_reversal == "flips"
    return [_edited(example, "reversed", OPPOSITE[example.outcome] if flips else example.outcome)]


def order(example: Example, _: float) -> list[Example]:
    """A fail stays one in any order."""
    if example.item is None or example.outcome is None or not example.item.under_shuffle:
        return []
    return [_edited(example, "shuffled", "fail" if example.item.under_shuffle == "fails" else example.outcome)]


def duration(example: Example, speed: float) -> list[Example]:
    """Faster and slower, where it was recorded how long the behaviour lasts; only what changes the outcome."""
    item, held_s = example.item, example.held_s
    if item is None or example.outcome is None or item.min_duration_s is None or held_s is None:
        return []
    made = []
    for factor in (speed, 1 / speed):
        outcome: Outcome = "pass" if held_s / factor >= item.min_duration_s else "fail"
        if outcome != example.outcome and held_s > 0:
            made.append(dataclasses.replace(_edited(example, f"speed:{factor}", outcome), held_s=held_s / factor))
    return made


KINDS: dict[str, Callable[[Example, float], list[Example]]] = {
    "reversal": reversal,
    "order": order,
    "duration": duration,
}


def apply(video: Video, edit: str, name: str) -> Video:
    """The edited video; `name` decides the order of a shuffled one. Frames keep their number, size and bytes."""
    kind, _, number = edit.partition(":")
    if kind == "":
        return video
    if kind == "reversed":
        times_s = video.times_s[0] + video.times_s[-1] - video.times_s[::-1]
        return dataclasses.replace(video, frames=video.frames[::-1], times_s=times_s)
    if kind == "shuffled":
        return dataclasses.replace(video, frames=video.frames[_other_order(len(video.frames), name)])
    if kind == "speed":
        factor = float(number)
        return dataclasses.replace(
            video, times_s=video.times_s / factor, duration_s=video.duration_s / factor, fps=video.fps * factor
        )
    raise ValueError(f"{name}: no edit {edit!r}; use reversed, shuffled or speed:FACTOR")


def _other_order(count: int, name: str) -> np.ndarray:
    """int [F]: a permutation that is not the identity (with two frames or more), the same for the same name."""
    rng = np.random.default_rng(list(name.encode()))
    while True:
        permutation = rng.permutation(count)
        if count < 2 or np.any(permutation != np.arange(count)):
            return permutation


def _edited(example: Example, edit: str, outcome: Outcome) -> Example:
    return dataclasses.replace(example, example_id=f"{example.example_id}@{edit}", edit=edit, outcome=outcome)
