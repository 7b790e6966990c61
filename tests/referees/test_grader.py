"""Letters to grades by hand; letter logits against a full forward pass without sharing."""

import numpy as np
import pytest
import tiny_vlm

from vlrl.data import encoding
from vlrl.referees import grader
from vlrl.referees import prompt as referee_prompt

GRADES = np.array(referee_prompt.GRADES)


def test_argmax_is_the_grade_of_the_likeliest_letter():
    logits = np.array([[0.0, 3.0, 1.0, 0.0, 2.9], [-1.0, -2.0, -3.0, -4.0, -0.5]])
    assert grader.argmax(logits, GRADES).tolist() == [0.75, 0.0]


def test_argmax_of_a_tie_is_the_better_grade():
    assert grader.argmax(np.array([[0.0, 2.0, 2.0, 0.0, 2.0]]), GRADES).tolist() == [0.75]


def test_expected_is_the_mean_under_the_letters_alone():
    logits = np.log([[0.5, 0.25, 0.125, 0.0625, 0.0625]])
    # .5 + .25 * .75 + .125 * .5 + .0625 * .25
    assert grader.expected(logits, GRADES).tolist() == pytest.approx([0.765625])
    assert grader.expected(logits + 1000, GRADES).tolist() == pytest.approx([0.765625])
    assert grader.expected(np.zeros((2, 3, 5)), GRADES).shape == (2, 3)


def test_questions_of_unequal_length_are_padded_for_every_row():
    questions = grader.repeated(([4, 5, 6], [7]), 2)
    assert questions.tokens.tolist() == [[[4, 5, 6], [7, 0, 0]]] * 2
    assert questions.length.tolist() == [[3, 1]] * 2


def test_letters_after_one_prefill_equal_a_full_forward_of_prefix_and_question(
    referee, tokenizer, vlm_cfg, cfg, example, video
):
    """Both questions, of unequal length, and prompts of unequal length."""
    rows = [
        encoding.encode(
            tokenizer,
            referee_prompt.prefix_segments(
                example, video.frames[k], (0.1, 0.2, 0.9, 0.8), phrase, "seen", vlm_cfg, cfg, tokenizer
            ),
            vlm_cfg,
            "row",
        )
        for k, phrase in enumerate(("red circle", "the large blue square in the corner"))
    ]
    prefix = encoding.collate(rows, encoding.Buckets((128,), (2,), (16,)), vlm_cfg.vision)
    questions = grader.repeated((referee.questions[0], [*referee.questions[1], 5]), 2)
    logits = grader.letter_logits(referee.model, referee.base, prefix, questions, referee.letters)

    features = tiny_vlm.encode(referee.model, referee.base, prefix.vision)
    embedded, positions, place = tiny_vlm.unshared(referee.base, prefix, features, questions)
    every = np.asarray(tiny_vlm.sequence_logits(vlm_cfg, referee.base, {}, embedded, positions))
    every = every.reshape(2, 2, *every.shape[1:])
    for p, g in np.ndindex(2, 2):
        last = every[p, g, place[p, g, questions.length[p, g] - 1]]
        np.testing.assert_allclose(logits[p, g], last[referee.letters], rtol=1e-4, atol=1e-4)
    assert logits.dtype == np.float32
