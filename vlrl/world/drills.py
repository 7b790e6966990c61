"""What a decoder has to look up to answer, each step alone: where a named object is, what an asked object is called,
which letter an option has.

A drill is one branch of a video and asks for nothing but its step; whole completions ask for it once in forty tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from vlrl.data import encoding
from vlrl.world import questions, scenes, teacher

LETTER_WEIGHT, NAME_WEIGHT = 5.0, 3.0
"""One token among forty decides a multiple choice, two say what was seen: unweighted they are learnt last."""

Branch = tuple[list[int], list[float]]
"""Tokens, and the weight of each in the loss."""


def pointing(rng: np.random.Generator, tokenizer: Any, scene: scenes.Scene, times: Float[np.ndarray, " F"]) -> Branch:
    """Claims about any object at any slice; only coordinates are graded."""
    true = [shown for t in times[::2] for shown in _seen(scene, float(t))]
    picked = [true[int(i)] for i in rng.integers(len(true), size=3)]
    ids = _ids(tokenizer, " ; ".join(picked))
    coordinates = {tokenizer.convert_tokens_to_ids(str(k)) for k in range(0, 1001, questions.GRID)}
    return ids, [float(i in coordinates) for i in ids]


def naming(rng: np.random.Generator, tokenizer: Any, scene: scenes.Scene, times: Float[np.ndarray, " F"]) -> Branch:
    """Everything a multiple choice asks of the scene, without options, and the name of its object at a time that shows
    it; only the name is graded."""
    ids: list[int] = []
    weights: list[float] = []
    names = name_ids(tokenizer)
    asked = questions.asked_objects(scene, rng)
    for i in rng.permutation(len(asked))[:2].tolist():
        question, obj = asked[i]
        shown = [float(t) for t in times[::2] if scenes.is_visible(obj, scene, float(t))]
        t = shown[int(rng.integers(len(shown)))] if shown else sum(obj.visible_s) / 2
        listed, said = _ids(tokenizer, f"{question}\n"), _ids(tokenizer, f"{t:.1f} s : <obj>{obj.phrase}</obj>")
        ids += [*listed, *said]
        weights += [0.0] * len(listed) + [NAME_WEIGHT * (token in names) for token in said]
    return ids, weights


def choosing(rng: np.random.Generator, tokenizer: Any, scene: scenes.Scene, times: Float[np.ndarray, " F"]) -> Branch:
    """Four options as a prompt lists them, then each with its letter as the teacher restates it; letters are graded.

    The video has nothing to do with it.
    """
    colours, kinds = rng.permutation(list(scenes.COLOURS))[:4].tolist(), rng.permutation(scenes.SHAPES)[:4].tolist()
    phrases = [f"{c} {k}" for c, k in zip(colours, rng.choice(scenes.SHAPES, 4), strict=True)]
    options: Sequence[str] = (phrases, colours, kinds)[int(rng.integers(3))]
    listed = "\n".join(f"{letter}. {text}" for letter, text in zip(questions.LETTERS, options, strict=True))
    ids = _ids(tokenizer, listed + "\n")
    weights = [0.0] * len(ids)
    for k in rng.permutation(4).tolist():
        restated = _ids(tokenizer, teacher.choice(questions.LETTERS[k], options))
        ids, weights = [*ids, *restated], [*weights, *[0.0] * (len(restated) - 1), LETTER_WEIGHT]
    return ids, weights


DRILLS = {"pointing": pointing, "naming": naming, "choosing": choosing}


def name_ids(tokenizer: Any) -> set[int]:
    """Tokens of the words for colours and shapes."""
    return set(tokenizer.convert_tokens_to_ids([*scenes.COLOURS, *(f" {kind}" for kind in scenes.SHAPES)]))


def _seen(scene: scenes.Scene, t: float) -> list[str]:
    """A right claim about each object that is visible."""
    boxes = [(obj, scenes.box_at(obj, scene, t)) for obj in scene.objects]
    return [teacher.claim(obj, t, box) for obj, box in boxes if box is not None]


def _ids(tokenizer: Any, text: str) -> list[int]:
    return encoding.tokenize_text(tokenizer, text, trusted=False)
