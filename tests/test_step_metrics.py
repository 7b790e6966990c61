"""Metrics of a step of two prompts and two completions each, and of one whose video failed."""

import json
import math

import numpy as np
import pytest
import tiny_vlm

from vlrl import step_metrics
from vlrl.types import Batch, Branches, Claim, Example, Failure, Parsed, Rollouts, Scores, Verdict

RED = Claim("red circle", (0.0, 0.0, 0.5, 0.5), 1.0)
BLUE = Claim("blue square", (0.0, 0.0, 1.0, 0.5), 2.0)


def verdict(claim, relevance, localization, omega=1.0, failure=None):
    letters = ("", "") if failure else ("A", "C")
    return Verdict(claim, 0, 1.25, omega, relevance, localization, letters, failure)


def parsed(*claims, answer="B", malformed=0):
    return Parsed("", answer, claims, malformed, None, None, ())


LATE = Failure("referee_prompt_too_long", "300 tokens")
PARSED = (
    (parsed(RED, BLUE), parsed(RED, answer=None, malformed=2)),
    (parsed(), parsed(RED)),
    (parsed(BLUE), parsed(BLUE)),
)
PREFIX = tiny_vlm.collate(tiny_vlm.CFG, [tiny_vlm.row(tiny_vlm.CFG, tiny_vlm.text(1))] * 3, 2)
VERDICTS = (
    ((verdict(RED, 1.0, 0.5), verdict(BLUE, 0.5, 0.5, 0.5)), (verdict(RED, 0.0, 0.0, failure=LATE),)),
    ((), (verdict(RED, 0.0, 1.0, 0.0),)),
    ((), ()),
)


@pytest.fixture
def step():
    """The first prompt has rewards 1 and 2; of the second one completion is invalid; the third has no video."""
    examples = tuple(Example(f"e{p}", f"e{p}.mp4", "mcq", "Q?", f"R{p}") for p in range(3))
    failures = (None, None, Failure("corrupt", "e2.mp4"))
    batch = Batch(examples, (None,) * 3, failures, ("p0", "p1", "p2"), PREFIX)
    branches = Branches(np.zeros((3, 2, 8), np.int32), np.array([[2, 4], [6, 8], [1, 8]], np.int32))
    finished = np.array([[True, True], [True, False], [False, False]])
    texts = (("a", "b"), ("c", "d"), ("e", "f"))
    rollouts = Rollouts(branches, np.zeros((3, 2, 8), np.float32), finished, texts)
    scores = Scores(
        total=np.array([[1.0, 2.0], [6.0, 0.0], [0.0, 0.0]]),
        valid=np.array([[True, True], [True, False], [False, False]]),
        components={"answer": np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]])},
        reasons=(("", ""), ("", "answer_abstained"), ("corrupt", "corrupt")),
    )
    return batch, rollouts, scores


def test_rewards_are_averaged_over_valid_completions(step):
    batch, rollouts, scores = step
    metrics = step_metrics.summarize(batch, rollouts, PARSED, VERDICTS, scores)
    assert metrics["reward"] == 3.0
    assert metrics["reward_std"] == pytest.approx(math.sqrt(0.5))  # only the first group has two
    assert metrics["frac_reward_zero_std"] == 0.0
    assert metrics["rewards/answer/mean"] == 1.0
    assert metrics["rewards/answer/std"] == pytest.approx(math.sqrt(2 / 3))


def test_lengths_are_of_completions_with_a_video(step):
    batch, rollouts, scores = step
    metrics = step_metrics.summarize(batch, rollouts, PARSED, VERDICTS, scores)
    names = ("mean_length", "min_length", "max_length", "clipped_ratio")
    assert [metrics[f"completions/{name}"] for name in names] == [5.0, 2.0, 8.0, 0.25]


def test_claims_and_verdicts_are_averaged_where_there_are_some(step):
    batch, rollouts, scores = step
    metrics = step_metrics.summarize(batch, rollouts, PARSED, VERDICTS, scores)
    assert metrics["claims/per_rollout"] == 1.0
    assert metrics["claims/malformed_per_rollout"] == 0.5
    assert metrics["claims/box_area"] == pytest.approx((0.25 * 3 + 0.5) / 4)
    assert metrics["claims/parse_rate"] == 0.5  # one has no answer, one no claim
    assert metrics["referee/claims"] == 3.0
    assert metrics["referee/relevance"] == 0.5
    assert metrics["referee/localization"] == pytest.approx(2 / 3)
    assert metrics["referee/omega"] == 0.5


def test_what_is_missing_is_counted_once_by_its_reason(step):
    batch, rollouts, scores = step
    metrics = step_metrics.summarize(batch, rollouts, PARSED, VERDICTS, scores)
    assert {name: value for name, value in metrics.items() if name.startswith("invalid/")} == {
        "invalid/total": 3.0,
        "invalid/rate": 0.5,  # 3 of 6: one whose reward abstained, two of the failed video
        "invalid/corrupt": 1.0,  # a video, not its two completions
        "invalid/answer_abstained": 1.0,
        "invalid/claim_referee_prompt_too_long": 1.0,
    }


def test_step_without_any_video_gives_nan_instead_of_an_error(step):
    batch, rollouts, scores = step
    gone = Failure("corrupt", "x")
    batch = Batch(batch.examples, batch.videos, (gone,) * 3, batch.prompts, PREFIX)
    nothing = Scores(scores.total * 0, scores.valid & False, {"answer": scores.total * 0}, (("corrupt",) * 2,) * 3)
    metrics = step_metrics.summarize(batch, rollouts, PARSED, (((), ()),) * 3, nothing)
    assert metrics["invalid/corrupt"] == 3.0
    assert all(math.isnan(metrics[name]) for name in ("reward", "reward_std", "completions/min_length"))


def test_rollout_rows_hold_what_decided_the_pay(step):
    batch, rollouts, scores = step
    advantages = np.array([[-0.7, 0.7], [0.0, 0.0], [0.0, 0.0]], np.float32)
    rows = step_metrics.rollout_rows(7, batch, rollouts, VERDICTS, scores, advantages)
    assert [(row["example_id"], row["rollout"], row["completion"]) for row in rows[:3]] == [
        ("e0", 0, "a"),
        ("e0", 1, "b"),
        ("e1", 0, "c"),
    ]
    assert len(rows) == 6
    first, second = rows[:2]
    assert first["advantage"] == pytest.approx(-0.7)
    assert (first["step"], first["task"], first["prompt"], first["reference"]) == (7, "mcq", "p0", "R0")
    assert (first["reward"], first["rewards/answer"], first["valid"], first["reason"]) == (1.0, 0.0, True, "")
    assert json.loads(first["verdicts"])[1] == {
        "object": "blue square",
        "box": [0.0, 0.0, 1.0, 0.5],
        "time_s": 2.0,
        "frame_time_s": 1.25,
        "omega": 0.5,
        "relevance": "A",
        "localization": "C",
        "relevance_grade": 0.5,
        "localization_grade": 0.5,
        "failure": "",
    }
    assert json.loads(second["verdicts"])[0]["failure"] == "referee_prompt_too_long"
    assert rows[3]["reason"] == "answer_abstained"
