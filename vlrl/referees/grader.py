"""Reads a frozen model's verdict as logits over a few letters after one prefill: nothing is generated or parsed."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from vlrl.data import encoding
from vlrl.models import vlm
from vlrl.types import Array, Branches, PrefixInput


@functools.partial(jax.jit, static_argnames=("model",))
def letter_logits(
    model: vlm.Vlm, base: Any, prefix: PrefixInput, questions: Branches, letters: Int[Array, " A"]
) -> Float[Array, "P G A"]:
    """float32 logits of the letters where each question ends; the questions of a row share its prefix."""
    return answer_logits(model, base, prefix, questions, (questions.length - 1)[..., None], letters)[:, :, 0]


@functools.partial(jax.jit, static_argnames=("model",))
def answer_logits(
    model: vlm.Vlm,
    base: Any,
    prefix: PrefixInput,
    branches: Branches,
    places: Int[Array, "P G places"],
    words: Int[Array, " A"],
) -> Float[Array, "P G places A"]:
    """float32 logits of the words after the branch tokens with the numbers `places`: several turns of a branch are read
    in one pass, each knowing those before it."""
    variables = {"params": base}
    prompt = vlm.prefill(model, variables, prefix, vlm.encode_video(model, base, prefix.vision))
    hidden = vlm.branch_hidden(model, variables, prompt, branches)
    read = jnp.take_along_axis(hidden, places[..., None], axis=2)
    return vlm.next_logits(model, variables, read)[..., words]


def word_ids(tokenizer: Any, words: Sequence[str], whose: str) -> Int[np.ndarray, " A"]:
    """Token ids of the answers. Raises ValueError where one is not a single token, or the same as another."""
    ids: list[int] = []
    for word in words:
        tokens = encoding.tokenize_text(tokenizer, word, trusted=False)
        if len(tokens) != 1:
            raise ValueError(f"{whose} tokenizer: {word!r} is {len(tokens)} tokens, must be 1; use another {whose}")
        ids += tokens
    if len(set(ids)) < len(ids):
        raise ValueError(f"{whose} tokenizer: {', '.join(words)} are not different tokens; use another {whose}")
    return np.array(ids, np.int32)


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
