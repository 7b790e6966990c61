"""What is worth no question to the judge: descriptions that are empty, cut, or say the same over and over."""

import collections
import re

RUN = re.compile(r"(\S{1,8}?)\1{9,}")
"""Up to eight characters, ten times or more in a row."""
WORDS_IN_A_ROW = 4


def reason(description: str, finished: bool, max_repeats: int) -> str:
    """empty, truncated, repetitive, or "" for a description that may be judged."""
    words = re.findall(r"\w+", description.casefold())
    if not words:
        return "empty"
    if not finished:
        return "truncated"
    rows = collections.Counter(zip(*(words[k:] for k in range(WORDS_IN_A_ROW)), strict=False))
    if RUN.search(description) or max(rows.values(), default=0) > max_repeats:
        return "repetitive"
    return ""
