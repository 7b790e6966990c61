"""Multiple choice: the option that a response settles on, and accuracy."""

import re
from collections.abc import Sequence

from vlrl import claims

# Phrases that the published Video-MME script removes before it takes the first capital A to D. Two pairs lack a comma
# there and are one phrase each.
_PREFIXES = (
    "The best answer is",
    "The correct answer is",
    "The answer is",
    "The answer",
    "The best option is" + "The correct option is",
    "Best answer:" + "Best option:",
)


def option(text: str, official: bool = False) -> str | None:
    """The letter A to J of the last answer (of the whole text, where there are no answer tags); None without one.

    `official`: the first capital A to D after the usual phrases, as published for Video-MME, so "An apple, so B" is A.
    """
    if official:
        for prefix in _PREFIXES:
            text = text.strip().replace(prefix, "")
        found = re.search("[ABCD]", text)
        return found.group() if found else None
    parsed = claims.parse(text, lambda _: None)
    return parsed.option if parsed.answer is not None else claims.option(text)


def accuracy(answered: Sequence[str | None], right: Sequence[str]) -> float:
    """Share of right options, no option being wrong; NaN without examples."""
    pairs = list(zip(answered, right, strict=True))
    return sum(a is not None and a.upper() == r.upper() for a, r in pairs) / len(pairs) if pairs else float("nan")
