"""Rewards by hand, one completion at a time, and their weighted total over a step."""

import dataclasses
import math

import numpy as np
import pytest

from vlrl import rewards, types
from vlrl.config import RewardsConfig
from vlrl.rewards import answer, evidence, format, total
from vlrl.types import Claim, Example, Failure, Parsed, Score, TimedBox, Verdict

CFG = RewardsConfig()
LEFT, RIGHT, HALF = (0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 1.0, 1.0), (0.0, 0.0, 0.25, 1.0)
CLAIM = Claim("red circle", LEFT, 1.0)


def example(**kwargs):
    return Example(example_id="e", video_path="v.mp4", task="mcq", question="q", reference="r", **kwargs)


def completion(**kwargs):
    fields = {"rationale": "x", "answer": "y", "claims": (CLAIM,), "num_malformed_claims": 0, "option": None}
    return Parsed(**(fields | {"span_s": None, "boxes": ()} | kwargs))


def verdict(omega=1.0, relevance=1.0, localization=1.0, failure=None):
    return Verdict(CLAIM, 0, 1.0, omega, relevance, localization, ("A", "A"), failure)


FAILED = Failure("referee_unreadable", "no logits")


@pytest.mark.parametrize(("said", "value"), [("B", 1.0), ("A", 0.0), (None, 0.0)])
def test_right_option_pays_one(said, value):
    assert answer.score(example(answer_option="B"), completion(option=said), (), CFG) == Score(value)


def test_span_pays_its_overlap():
    asked = example(answer_span_s=(2.0, 8.0))
    assert answer.score(asked, completion(span_s=(4.0, 10.0)), (), CFG).value == 0.5
    assert answer.score(asked, completion(), (), CFG).value == 0.0


def test_boxes_pay_their_mean_overlap_at_the_asked_moments():
    asked = example(answer_boxes=(TimedBox(2.0, LEFT), TimedBox(5.0, LEFT)))
    said = completion(boxes=(TimedBox(2.2, LEFT), TimedBox(4.9, HALF)))
    assert answer.score(asked, said, (), CFG).value == 0.75
    assert answer.score(asked, completion(boxes=(TimedBox(2.0, LEFT),)), (), CFG).value == 0.5
    assert answer.score(asked, completion(boxes=(TimedBox(3.5, LEFT),)), (), CFG).value == 0.0


def test_box_counts_up_to_the_tolerance_in_time():
    asked = example(answer_boxes=(TimedBox(2.0, LEFT),))
    assert answer.score(asked, completion(boxes=(TimedBox(3.0, LEFT),)), (), CFG).value == 1.0
    assert answer.score(asked, completion(boxes=(TimedBox(3.01, LEFT),)), (), CFG).value == 0.0


def test_spraying_boxes_over_the_asked_moment_gains_nothing():
    asked = example(answer_boxes=(TimedBox(2.0, LEFT),))
    sprayed = completion(boxes=(TimedBox(2.0, RIGHT), TimedBox(2.0, LEFT), TimedBox(2.1, LEFT)))
    assert answer.score(asked, sprayed, (), CFG).value == 0.0


def test_boxes_without_times_are_taken_in_order():
    asked = example(answer_boxes=(TimedBox(2.0, LEFT), TimedBox(5.0, RIGHT)))
    assert answer.score(asked, completion(boxes=(LEFT, RIGHT)), (), CFG).value == 1.0
    assert answer.score(asked, completion(boxes=(RIGHT, LEFT)), (), CFG).value == 0.0


def test_active_signals_are_summed_or_averaged():
    asked = example(answer_span_s=(2.0, 8.0), answer_boxes=(TimedBox(2.0, LEFT),))
    said = completion(span_s=(4.0, 10.0), boxes=(TimedBox(2.0, LEFT),))
    assert answer.score(asked, said, (), CFG).value == 1.5
    assert answer.score(asked, said, (), RewardsConfig(answer_combine="mean")).value == 0.75


def test_example_without_an_answer_signal_scores_zero():
    assert answer.score(example(), completion(option="B"), (), CFG) == Score(0.0)
    assert answer.score(example(), completion(), (), RewardsConfig(answer_combine="mean")) == Score(0.0)


def test_unknown_combination_is_named():
    with pytest.raises(ValueError, match=r"rewards\.answer_combine: no rule 'max'; choose sum or mean"):
        answer.score(example(), completion(), (), RewardsConfig(answer_combine="max"))


@pytest.mark.parametrize(
    ("parts", "value"),
    [
        ({}, 1.0),
        ({"claims": ()}, 0.5),
        ({"rationale": None, "claims": ()}, 0.5),
        ({"answer": None}, 0.0),
        ({"answer": ""}, 0.0),
        ({"answer": None, "claims": ()}, 0.0),
    ],
)
def test_format_pays_for_answer_and_for_claim(parts, value):
    assert format.score(example(), completion(**parts), (), CFG) == Score(value)


def test_evidence_is_the_mean_product_over_graded_claims():
    verdicts = (verdict(0.5, 1.0, 0.5), verdict(1.0, 0.75, 1.0))
    assert evidence.score(example(), completion(), verdicts, CFG).value == pytest.approx((0.25 + 0.75) / 2)


def test_evidence_does_not_depend_on_the_order_of_claims():
    verdicts = (verdict(0.5, 1.0, 0.5), verdict(1.0, 0.75, 1.0), verdict(0.25, 0.5, 1.0))
    forward = evidence.score(example(), completion(), verdicts, CFG).value
    assert evidence.score(example(), completion(), verdicts[::-1], CFG).value == pytest.approx(forward)


def test_no_claim_is_no_evidence():
    assert evidence.score(example(), completion(claims=()), (), CFG) == Score(0.0)


def test_failed_verdict_is_left_out_of_the_mean():
    verdicts = (verdict(0.0, 0.0, 0.0, FAILED), verdict(1.0, 0.5, 0.5))
    assert evidence.score(example(), completion(), verdicts, CFG) == Score(0.25)


def test_evidence_abstains_when_every_verdict_failed():
    result = evidence.score(example(), completion(), (verdict(failure=FAILED),) * 2, CFG)
    assert result == Score(0.0, valid=False, reason="referee_unreadable")
    assert not evidence.score(example(), completion(), (), CFG).valid


def step(examples, failures=None):
    prompts = len(examples)
    zeros = np.zeros((prompts, 1), np.int32)
    vision = types.VisionInput(
        patches=np.zeros((prompts, 1, 4, 8), np.float32),
        rope=np.zeros((prompts, 1, 4, 2), int),
        window=np.zeros((prompts, 1, 4), int),
    )
    prefix = types.PrefixInput(
        tokens=zeros,
        length=zeros[:, 0],
        positions=np.zeros((prompts, 3, 1), int),
        next_position=zeros[:, 0],
        vision_index=zeros,
        vision=vision,
    )
    failures = failures or (None,) * prompts
    return types.Batch(tuple(examples), (None,) * prompts, failures, ("",) * prompts, prefix)


def sampled(prompts, group):
    branches = types.Branches(np.zeros((prompts, group, 2), int), np.ones((prompts, group), int))
    zeros = np.zeros((prompts, group, 2), np.float32)
    return types.Rollouts(branches, zeros, np.ones((prompts, group), bool), (("",) * group,) * prompts)


def test_total_weighs_two_for_answer_one_for_format_half_for_evidence():
    parsed = [[completion(option="B"), completion(option="A", claims=())]]
    verdicts = [[(verdict(1.0, 0.5, 0.5),), ()]]
    scores = rewards.score(step([example(answer_option="B")]), sampled(1, 2), parsed, verdicts, CFG)
    np.testing.assert_allclose(scores.total, [[2 + 1 + 0.5 * 0.25, 0.5]])
    np.testing.assert_allclose(scores.components["answer"], [[1, 0]])
    np.testing.assert_allclose(scores.components["format"], [[1, 0.5]])
    np.testing.assert_allclose(scores.components["evidence"], [[0.25, 0]])
    assert scores.valid.all()
    assert scores.reasons == (("", ""),)


def test_each_row_is_scored_by_its_own_task():
    examples = [example(answer_option="B"), example(answer_span_s=(0.0, 4.0)), example(answer_option="C")]
    said = completion(option="B", span_s=(0.0, 2.0))
    graded = (verdict(),)
    for order in ([0, 1, 2], [1, 2, 0], [2, 1, 0]):
        batch = step([examples[i] for i in order])
        scores = rewards.score(batch, sampled(3, 1), [[said]] * 3, [[graded]] * 3, CFG)
        np.testing.assert_allclose(scores.components["answer"][:, 0], np.array([1, 0.5, 0])[order])


def test_abstaining_evidence_invalidates_its_completion_alone():
    parsed = [[completion(option="B")] * 3]
    verdicts = [[(verdict(),), (verdict(failure=FAILED),), (verdict(),)]]
    scores = rewards.score(step([example(answer_option="B")]), sampled(1, 3), parsed, verdicts, CFG)
    assert scores.valid.tolist() == [[True, False, True]]
    assert scores.reasons == (("", "referee_unreadable", ""),)
    np.testing.assert_allclose(scores.total, [[3.5, 0, 3.5]])
    np.testing.assert_allclose(scores.components["answer"], [[1, 0, 1]])


def test_reward_without_weight_cannot_invalidate():
    parsed, verdicts = [[completion(option="B")]], [[()]]
    cfg = RewardsConfig(evidence=0.0)
    scores = rewards.score(step([example(answer_option="B")]), sampled(1, 1), parsed, verdicts, cfg)
    assert scores.valid.tolist() == [[True]]
    np.testing.assert_allclose(scores.total, [[3]])


def test_failed_video_invalidates_its_group_alone():
    batch = step([example(answer_option="B")] * 2, (Failure("decode", "v.mp4: broken"), None))
    scores = rewards.score(batch, sampled(2, 2), [[completion(option="B")] * 2] * 2, [[(verdict(),)] * 2] * 2, CFG)
    assert scores.valid.tolist() == [[False, False], [True, True]]
    assert scores.reasons == (("decode", "decode"), ("", ""))
    np.testing.assert_allclose(scores.total, [[0, 0], [3.5, 3.5]])


def test_reward_that_is_not_finite_is_invalid():
    def broken(asked, parsed, verdicts, cfg):
        return Score(math.nan)

    batch = step([example()])
    scores = total.score(batch, sampled(1, 1), [[completion()]], [[()]], CFG, {"answer": broken})
    assert scores.reasons == (("answer_not_finite",),)
    assert scores.total.tolist() == [[0.0]]


def test_permuting_the_group_permutes_the_scores():
    parsed = [
        completion(option="B"),
        completion(option="A"),
        completion(option="B", claims=()),
        completion(answer=None),
    ]
    verdicts = [(verdict(1.0, 0.5, 0.5),), (verdict(),), (), (verdict(failure=FAILED),)]
    batch, order = step([example(answer_option="B")]), [2, 0, 3, 1]
    straight = rewards.score(batch, sampled(1, 4), [parsed], [verdicts], CFG)
    permuted = rewards.score(batch, sampled(1, 4), [[parsed[i] for i in order]], [[verdicts[i] for i in order]], CFG)
    np.testing.assert_array_equal(permuted.total[0], straight.total[0, order])
    np.testing.assert_array_equal(permuted.valid[0], straight.valid[0, order])


def test_missing_completions_are_named():
    with pytest.raises(ValueError, match=r"parsed has 1 groups of sizes \[1\], rollouts have 1 groups of 2"):
        rewards.score(step([example()]), sampled(1, 2), [[completion()]], [[(), ()]], CFG)


def test_every_reward_has_a_weight():
    assert set(rewards.REWARDS) <= {field.name for field in dataclasses.fields(RewardsConfig)}
