"""ROUGE-1, -2 and -L of free-form answers (Lin 2004): F of recall and precision over stemmed words.

Words are runs of a-z and 0-9 in lower case, stemmed by Porter's algorithm (Porter 1980, with the two changes of his own
later program) where they are longer than three characters, as the `rouge_score` package does. That package stems by
NLTK's dialect of the algorithm, which differs for a few short words ("tied", "news").
"""

import collections
import itertools
import re
from collections.abc import Sequence

_WORD = re.compile(r"[a-z0-9]+")
_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4 = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
)  # fmt: skip


def mean_f(answer: str, reference: str) -> float:
    """Mean F of ROUGE-1, ROUGE-2 and ROUGE-L, in [0, 1]."""
    a, b = words(answer), words(reference)
    return (f_of_ngrams(a, b, 1) + f_of_ngrams(a, b, 2) + f_of_subsequence(a, b)) / 3


def words(text: str) -> list[str]:
    """Stemmed words of a text."""
    return [stem(word) if len(word) > 3 else word for word in _WORD.findall(text.lower())]


def f_of_ngrams(a: Sequence[str], b: Sequence[str], n: int) -> float:
    """ROUGE-n of two word lists."""
    ours, theirs = (collections.Counter(zip(*(w[k:] for k in range(n)), strict=False)) for w in (a, b))
    return _f((ours & theirs).total(), ours.total(), theirs.total())


def f_of_subsequence(a: Sequence[str], b: Sequence[str]) -> float:
    """ROUGE-L of two word lists: by their longest common subsequence."""
    best = [0] * (len(b) + 1)
    for word in a:
        diagonal = 0
        for j, other in enumerate(b, 1):
            above = best[j]
            best[j] = diagonal + 1 if word == other else max(above, best[j - 1])
            diagonal = above
    return _f(best[-1], len(a), len(b))


def stem(word: str) -> str:
    """Porter's stem of a lower case word."""
    if len(word) <= 2:
        return word
    for step in (_plural, _past, _y, _step_2, _step_3, _step_4, _step_5):
        word = step(word)
    return word


def _f(common: int, a: int, b: int) -> float:
    return 2 * common / (a + b) if common else 0.0


def _consonant(word: str, i: int) -> bool:
    if word[i] == "y":
        return i == 0 or not _consonant(word, i - 1)
    return word[i] not in "aeiou"


def _measure(stem_: str) -> int:
    """Porter's m: how often a vowel is followed by a consonant."""
    kinds = [_consonant(stem_, i) for i in range(len(stem_))]
    return sum(not left and right for left, right in itertools.pairwise(kinds))


def _has_vowel(stem_: str) -> bool:
    return not all(_consonant(stem_, i) for i in range(len(stem_)))


def _short_end(word: str) -> bool:
    """Consonant, vowel, consonant other than w, x, y at the end: "hop", not "snow"."""
    if len(word) < 3 or word[-1] in "wxy":
        return False
    return [_consonant(word, i) for i in (-3 + len(word), -2 + len(word), -1 + len(word))] == [True, False, True]


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    ending = next((e for e in ("ed", "ing") if word.endswith(e) and _has_vowel(word[: -len(e)])), None)
    if ending is None:
        return word
    word = word[: -len(ending)]
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if len(word) > 1 and word[-1] == word[-2] and _consonant(word, len(word) - 1) and word[-1] not in "lsz":
        return word[:-1]
    return word + "e" if _measure(word) == 1 and _short_end(word) else word


def _y(word: str) -> str:
    return word[:-1] + "i" if word.endswith("y") and _has_vowel(word[:-1]) else word


def _replaced(word: str, endings: dict[str, str]) -> str:
    ending = max((e for e in endings if word.endswith(e)), key=len, default=None)
    if ending is None or _measure(word[: -len(ending)]) == 0:
        return word
    return word[: -len(ending)] + endings[ending]


def _step_2(word: str) -> str:
    return _replaced(word, _STEP_2)


def _step_3(word: str) -> str:
    return _replaced(word, _STEP_3)


def _step_4(word: str) -> str:
    ending = max((e for e in _STEP_4 if word.endswith(e)), key=len, default=None)
    if ending is None or _measure(word[: -len(ending)]) <= 1:
        return word
    if ending == "ion" and word[-4] not in "st":
        return word
    return word[: -len(ending)]


def _step_5(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _short_end(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word
