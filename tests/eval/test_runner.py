"""Tables of an evaluation to the content of results.json; by hand."""

import dataclasses

import pytest

from vlrl.config import Config, EvalConfig, RolloutConfig
from vlrl.eval import metrics, runner
from vlrl.types import Example

CFG = dataclasses.replace(Config(), eval=EvalConfig(bootstrap=200))
NAN = float("nan")
EXAMPLES = [Example(str(k), "", "when" if k == 3 else "mcq", "Q?", "") for k in range(4)]


def columns(what_acc, **changes):
    names = [field.name for field in dataclasses.fields(metrics.Evaluation)]
    return {**{name: [0.5] * 4 for name in names}, "what_acc": what_acc, **changes}


BEFORE = {"greedy": columns([0.0, 1.0, 0.0, NAN])}
AFTER = {"greedy": columns([1.0, 1.0, 0.0, NAN], reward=[1.5, 0.5, 0.5, 0.5])}


@pytest.fixture(scope="module")
def result():
    return runner.comparison(EXAMPLES, BEFORE, AFTER, CFG)


def test_every_metric_has_mean_and_interval_before_after_and_paired(result):
    assert set(result) == {"before", "after", "paired_difference", "by_task", "examples", "failed_videos"}
    for part in ("before", "after", "paired_difference"):
        assert set(result[part]) >= {"what_acc", "tiou", "viou", "parse_rate", "reward"}
        for interval in result[part].values():
            assert set(interval) == {"mean", "low", "high"}
            assert interval["low"] <= interval["mean"] <= interval["high"]


def test_means_and_differences_leave_out_examples_that_do_not_ask(result):
    means = [result[part]["what_acc"]["mean"] for part in ("before", "after", "paired_difference")]
    assert means == pytest.approx([1 / 3, 2 / 3, 1 / 3])
    assert result["paired_difference"]["reward"]["mean"] == 0.25
    assert result["paired_difference"]["tiou"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert (result["examples"], result["failed_videos"]) == (4, 0)


def test_examples_whose_video_failed_are_counted():
    assert runner.failed_videos({"greedy": columns([NAN] * 4, parse_rate=[0.0, NAN, NAN, 1.0])}) == 2


def test_tasks_are_reported_apart(result):
    assert result["by_task"]["before"]["mcq"]["examples"] == 3
    assert result["by_task"]["after"]["mcq"]["what_acc"] == pytest.approx(2 / 3)
    assert result["by_task"]["after"]["mcq"]["reward"] == pytest.approx(2.5 / 3)
    when = result["by_task"]["after"]["when"]
    assert (when["examples"], when["tiou"]) == (1, 0.5)
    assert when["what_acc"] != when["what_acc"]


def test_sampled_completions_stand_beside_the_greedy_ones():
    before, after = ({**table, "sampled": table["greedy"]} for table in (BEFORE, AFTER))
    result = runner.comparison(EXAMPLES, before, after, CFG)
    assert set(result["sampled"]) == {"before", "after", "paired_difference"}
    assert result["sampled"]["after"] == result["after"]


def test_printed_table_has_a_line_for_every_metric(result):
    lines = runner.printed(result, "greedy").splitlines()
    assert [line.split()[0] for line in lines] == ["greedy", *runner.SHOWN]
    assert "0.667 [" in lines[1]
    tasks = runner.printed_tasks(result["by_task"]).splitlines()
    assert [line.split()[0] for line in tasks] == ["by", "mcq", "when"]
    assert "0.333 -> 0.667" in tasks[1]


def test_evaluation_samples_one_completion_greedily_and_one_at_temperature_one():
    cfg = dataclasses.replace(CFG, rollout=RolloutConfig(group_size=8, temperature=0.3, top_p=0.5, top_k=4))
    modes = runner.modes(cfg)
    assert {name: (m.group_size, m.temperature, m.top_p, m.top_k) for name, m in modes.items()} == {
        "greedy": (1, 0.0, 1.0, 0),
        "sampled": (1, 1.0, 1.0, 0),
    }
    assert list(runner.modes(dataclasses.replace(cfg, eval=EvalConfig(sampled=False)))) == ["greedy"]
