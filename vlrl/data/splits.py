"""Training and test sides of item examples, and the check that nobody is on both."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from vlrl.types import Example

Split = tuple[tuple[Example, ...], tuple[Example, ...]]


def per_item(examples: Sequence[Example], train_share: float, seed: int) -> Split:
    """`train_share` of the videos of every item to train (SemReward-VL: 90/10), at least one to test where there are
    two. A child with several videos may be on both sides."""
    by_item: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        by_item[example.item.code if example.item else ""].append(example)
    test_ids: set[str] = set()
    for number, code in enumerate(sorted(by_item)):
        rows = sorted(by_item[code], key=lambda e: e.example_id)
        count = max(round((1 - train_share) * len(rows)), 1) if len(rows) > 1 else 0
        chosen = np.random.default_rng([seed, number]).permutation(len(rows))[:count]
        test_ids |= {rows[int(i)].example_id for i in chosen}
    return _parted(examples, lambda e: e.example_id in test_ids)


def disjoint(examples: Sequence[Example], field: str, train_share: float, seed: int) -> Split:
    """No child, or no site, on both sides: whole ones go to test until it has its share of the videos.

    Raises ValueError where a row does not say its `field` or all rows have the same.
    """
    of = FIELDS[field]
    if nameless := [example.example_id for example in examples if not of(example)]:
        raise ValueError(f"{len(nameless)} rows have no {field}, {nameless[0]!r} first; add it to split by {field}")
    sizes: dict[str, int] = defaultdict(int)
    for example in examples:
        sizes[of(example)] += 1
    if len(sizes) < 2:
        raise ValueError(f"all rows are of one {field}; a {field}-disjoint split needs two at least")
    names = sorted(sizes)
    test: set[str] = set()
    for i in np.random.default_rng(seed).permutation(len(names)):
        full = sum(sizes[name] for name in test) >= (1 - train_share) * len(examples)
        if test and (full or len(test) == len(names) - 1):
            break
        test.add(names[int(i)])
    return _parted(examples, lambda e: of(e) in test)


FIELDS: dict[str, Callable[[Example], str]] = {"child": lambda e: e.child_id, "site": lambda e: e.site}


def leaks(train: Sequence[Example], test: Sequence[Example], field: str = "child") -> list[str]:
    """Every child (or site) that is on both sides, sorted."""
    of = FIELDS[field]
    return sorted(({of(e) for e in train} & {of(e) for e in test}) - {""})


def _parted(examples: Sequence[Example], is_test: Callable[[Example], bool]) -> Split:
    return tuple(e for e in examples if not is_test(e)), tuple(e for e in examples if is_test(e))
