"""ROUGE by hand; stems are the examples of Porter's paper."""

import pytest

from vlrl import rouge

# M. F. Porter, An algorithm for suffix stripping, Program 14 (1980): words whose whole way through the steps it gives.
STEMS = {
    "caresses": "caress",
    "ponies": "poni",
    "cats": "cat",
    "feed": "feed",
    "agreed": "agre",
    "plastered": "plaster",
    "bled": "bled",
    "motoring": "motor",
    "sing": "sing",
    "hopping": "hop",
    "falling": "fall",
    "hissing": "hiss",
    "filing": "file",
    "happy": "happi",
    "sky": "sky",
    "generalizations": "gener",
    "oscillators": "oscil",
    "controlling": "control",
    "adoption": "adopt",
    "rate": "rate",
    "cease": "ceas",
}


@pytest.mark.parametrize(("word", "stem"), STEMS.items())
def test_stems_of_porters_paper(word, stem):
    assert rouge.stem(word) == stem


def test_f_by_hand():
    a, b = ["the", "red", "ball", "rolls", "left"], ["the", "ball", "rolls"]
    assert rouge.f_of_ngrams(a, b, 1) == pytest.approx(2 * 3 / 8)  # recall 1, precision 3/5
    assert rouge.f_of_ngrams(a, b, 2) == pytest.approx(2 * 1 / 6)  # (ball, rolls) of 4 and of 2 pairs
    assert rouge.f_of_subsequence(a, b) == pytest.approx(2 * 3 / 8)


def test_subsequence_needs_the_order_and_repeats_count_once():
    assert rouge.f_of_subsequence(["a", "b", "c"], ["c", "b", "a"]) == pytest.approx(1 / 3)
    assert rouge.f_of_ngrams(["a", "a", "a"], ["a", "b"], 1) == pytest.approx(2 / 5)


def test_case_punctuation_and_endings_do_not_count():
    assert rouge.mean_f("The dogs, running!", "the dog runs") == pytest.approx(1.0)


@pytest.mark.parametrize("answer", ["", "?!", "cat"])
def test_nothing_in_common_is_zero(answer):
    assert rouge.mean_f(answer, "the dog") == 0.0


def test_one_word_has_no_pairs():
    assert rouge.mean_f("dog", "dog") == pytest.approx(2 / 3)
