"""Mismatched pairs (x, c'): a video with an item that it has nothing to do with, where abstaining is right."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from vlrl.types import Example, Item


def with_mismatched(examples: Sequence[Example], share: float, rule: str, seed: int) -> tuple[Example, ...]:
    """The examples, then as many mismatched pairs as make `share` of the whole; which ones depends on the seed and on
    the examples' ids only, not on their order.

    Raises ValueError where the share is not in [0, 1), the rule is unknown or leaves a video without an item.
    """
    if not 0 <= share < 1:
        raise ValueError(f"data.mismatched_share: {share} must be from 0 to below 1; 0.25 makes every fourth pair one")
    if rule not in RULES:
        raise ValueError(f"data.mismatched_rule: no rule {rule!r}; choose one of {', '.join(RULES)}")
    videos = sorted((e for e in examples if e.item is not None), key=lambda e: e.example_id)
    catalogue = {e.item.code: e.item for e in videos if e.item is not None}
    items = [catalogue[code] for code in sorted(catalogue)]
    count = round(share / (1 - share) * len(videos))
    rng = np.random.default_rng([seed, 0x9A1])
    order = [int(i) for _ in range(-(-count // max(len(videos), 1))) for i in rng.permutation(len(videos))]
    made: dict[str, Example] = {}
    for i in order[:count]:
        pair = _pair(videos[i], items, rule, rng)
        made[pair.example_id] = pair  # drawn twice where the share is high: once is enough
    return (*examples, *made.values())


def _pair(example: Example, items: Sequence[Item], rule: str, rng: np.random.Generator) -> Example:
    assert example.item is not None
    others = [item for item in items if RULES[rule](example.item, item)]
    if not others:
        raise ValueError(
            f"data.mismatched_rule: no item is an unrelated one for {example.item.code} by the rule {rule!r}; "
            f"add items, choose another rule or set data.mismatched_share to 0"
        )
    other = others[int(rng.integers(len(others)))]
    return dataclasses.replace(
        example,
        example_id=f"{example.example_id}~{other.code}",
        question=other.text,
        reference=other.criterion,
        item=other,
        outcome=None,
        held_s=None,
        mismatched=True,
    )


RULES: dict[str, Callable[[Item, Item], bool]] = {
    "domain": lambda own, other: own.domain != other.domain,
    "item": lambda own, other: own.code != other.code,
}
"""Whether another item is unrelated to a video of an item."""
