"""Reads a frozen model's verdict as logits over a few letters after one prefill: nothing is generated or parsed."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from vlrl.models import vlm
from vlrl.types import Array, Branches, PrefixInput


@functools.partial(jax.jit, static_argnames=("model",))
def letter_logits(
    model: vlm.Vlm, base: Any, prefix: PrefixInput, questions: Branches, letters: Int[Array, " A"]
) -> Float[Array, "P G A"]:
    """float32 logits of the letters where each question ends; the questions of a row share its prefix."""
    variables = {"params": base}
    prompt = vlm.prefill(model, variables, prefix, vlm.encode_video(model, base, prefix.vision))
    hidden = vlm.branch_hidden(model, variables, prompt, questions)
    last = jnp.take_along_axis(hidden, (questions.length - 1)[..., None, None], axis=2)[:, :, 0]
    return vlm.next_logits(model, variables, last)[..., letters]


def repeated(questions: tuple[list[int], ...], num_rows: int) -> Branches:
    """The same questions as branches of every row."""
    longest = max(len(tokens) for tokens in questions)
    tokens = np.zeros((num_rows, len(questions), longest), np.int32)
    for g, question in enumerate(questions):
        tokens[:, g, : len(question)] = question
    return Branches(tokens, np.tile(np.array([len(q) for q in questions], np.int32), (num_rows, 1)))


def argmax(logits: Float[np.ndarray, "*rows A"], grades: Float[np.ndarray, " A"]) -> Float[np.ndarray, "*rows"]:
    """The grade of the likeliest letter; the better one of a tie."""
    return grades[np.argmax(logits, axis=-1)]


def expected(logits: Float[np.ndarray, "*rows A"], grades: Float[np.ndarray, " A"]) -> Float[np.ndarray, "*rows"]:
    """The mean grade under the distribution over the letters."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return (weights @ grades) / weights.sum(axis=-1)


GAMMA: dict[str, Callable[..., Float[np.ndarray, "*rows"]]] = {"argmax": argmax, "expected": expected}
"""Gamma of SER: letters to grades. Which one the paper uses is not published."""
