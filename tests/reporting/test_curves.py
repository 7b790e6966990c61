"""Metrics on charts: which, how many points, what is left out."""

import made
import pytest

from vlrl.reporting import comparison, curves, evaluations, runs


def read(tmp_path, metrics, name="run", **kwargs):
    return runs.read(made.run(tmp_path / name, [[]] * len(metrics), dict(enumerate(metrics)), **kwargs))


def titled(found):
    return {chart.title: [series.label for series in chart.series] for chart in found}


def test_metrics_of_a_kind_share_a_chart_and_unknown_ones_have_their_own(tmp_path):
    run = read(tmp_path, [{"reward": 1, "rewards/a/mean": 1, "rewards/b/mean": 2, "own/x": 1, "rewards/a/std": 1}])
    assert titled(curves.charts([run])) == {
        "Reward": ["reward"],
        "Reward components": ["rewards/a/mean", "rewards/b/mean"],
        "own/x": ["own/x"],
        "rewards/a/std": ["rewards/a/std"],
    }


def test_several_runs_share_a_chart_for_each_metric(tmp_path):
    first = read(tmp_path, [{"reward": 1, "rewards/a/mean": 1, "rewards/b/mean": 1}], "first")
    second = read(tmp_path, [{"reward": 2, "rewards/a/mean": 2}], "second")
    assert titled(curves.charts([first, second])) == {
        "Reward": ["first", "second"],
        "Reward components: rewards/a/mean": ["first", "second"],
        "Reward components: rewards/b/mean": ["first"],
    }


def test_steps_without_a_reason_of_failure_count_0_and_nan_is_a_gap(tmp_path):
    nan = float("nan")
    run = read(tmp_path, [{"kl": 1.0}, {"kl": nan, "invalid/corrupt": 2.0}, {"kl": 3.0, "mfu": nan}])
    series = {s.label: (list(s.steps), list(s.mean)) for chart in curves.charts([run]) for s in chart.series}
    assert series == {
        "kl": ([0.0, 1.0, 2.0], [1.0, None, 3.0]),
        "invalid/corrupt": ([0.0, 1.0, 2.0], [0.0, 2.0, 0.0]),
    }


def test_long_curves_keep_their_extremes():
    steps = [float(i) for i in range(1000)]
    values = [0.0] * 1000
    values[437], values[3] = 9.0, None
    x, mean, low, high = curves.thinned(steps, values, 100)
    assert len(x) == len(mean) == len(low) == len(high) == 100
    assert (x[0], x[43]) == (4.5, 434.5)
    assert (mean[43], low[43], high[43]) == (0.9, 0.0, 9.0)
    assert (mean[0], low[0], high[0]) == (0.0, 0.0, 0.0)


def test_stretch_without_a_value_is_a_gap():
    assert curves.thinned([0.0, 1.0, 2.0, 3.0], [None, None, 1.0, 2.0], 2)[1:] == (
        [None, 1.5],
        [None, 1.0],
        [None, 2.0],
    )


def test_smoothing_starts_at_the_first_value_and_passes_over_gaps():
    # weights .5: (1), (.25 * 1 + .5 * 4) / .75, gap, (.125 * 1 + .25 * 4 + .5 * 0) / .875
    assert curves.smoothed([1.0, 4.0, None, 0.0], 0.5) == [1.0, 3.0, None, pytest.approx(1.125 / 0.875)]


def test_number_of_charts_is_bounded(tmp_path):
    run = read(tmp_path, [{f"own/{i}": i for i in range(1000)}])
    assert len(curves.charts([run])) == curves.MAX_METRICS


def test_end_of_a_run_is_the_mean_of_its_last_tenth(tmp_path):
    run = read(tmp_path, [{"reward": float(i)} for i in range(20)])
    assert curves.last(run, "reward") == 18.5
    assert curves.last(run, "kl") is None


def test_comparison_tells_figures_and_differing_settings_only(tmp_path):
    first = read(tmp_path, [{"reward": 1.0, "kl": 0.5}], "first")
    second = read(tmp_path, [{"reward": 2.0, "other": 1.0}], "second", config={"seed": 1, "data": {"train": "/x/y"}})
    assert comparison.figures([first, second]) == [
        {"name": "reward", "values": [1.0, 2.0]},
        {"name": "kl", "values": [0.5, None]},
    ]
    rows = {row["name"]: row["values"] for row in comparison.settings([first, second])}
    assert set(rows) == {"seed", "data.train", "data.num_frames"}
    assert rows["seed"] == ["0", "1"]
    assert rows["data.num_frames"] == ["8", "(absent)"]
    assert "orchard" not in str(rows)


EVALUATIONS = {
    "before": {"greedy": {"viou": [0.5, None, 0.25], "reward": [1.0, 2.0, 3.0]}},
    "after": {"greedy": {"viou": [0.75, None, 0.25], "reward": [1.0, 1.0, None]}},
    "results": {
        "before": {"viou": {"mean": 0.375, "low": 0.1, "high": 0.6}},
        "after": {"viou": {"mean": 0.5, "low": 0.2, "high": 0.8}},
        "paired_difference": {"viou": {"mean": 0.125, "low": 0.0, "high": 0.25}},
        "by_task": {
            "before": {"where": {"examples": 2, "viou": 0.25, "tiou": None}},
            "after": {"where": {"examples": 2, "viou": 0.5, "tiou": None}},
        },
    },
}


def test_evaluations_are_paired_by_example(tmp_path):
    run = read(tmp_path, [{"reward": 1.0}], files=EVALUATIONS)
    (mode,) = evaluations.of_run(run)
    assert (mode["mode"], mode["examples"]) == ("greedy", 3)
    assert mode["rows"][0] == {
        "metric": "viou",
        "before": [0.375, 0.1, 0.6],
        "after": [0.5, 0.2, 0.8],
        "paired_difference": [0.125, 0.0, 0.25],
    }
    assert mode["pairs"] == {"viou": [[0, 0.5, 0.75], [2, 0.25, 0.25]], "reward": [[0, 1.0, 1.0], [1, 2.0, 1.0]]}
    assert evaluations.by_task(run) == [
        {"task": "where", "examples": 2.0, "means": {"viou": [0.25, 0.5], "tiou": [None, None]}}
    ]


def test_run_that_goes_on_shows_the_means_before(tmp_path):
    run = read(tmp_path, [{"reward": 1.0}], files={"before": EVALUATIONS["before"]})
    (mode,) = evaluations.of_run(run)
    assert mode["rows"][1] == {
        "metric": "reward",
        "before": [2.0, None, None],
        "after": None,
        "paired_difference": None,
    }
    assert mode["pairs"] == {}


@pytest.mark.parametrize("damage", [{"greedy": []}, {"greedy": {"a": 1}}, {"greedy": {"a": ["x", {}]}}, {"": {}}])
def test_evaluations_of_another_form_have_no_pairs_and_are_no_error(tmp_path, damage):
    run = read(tmp_path, [{"reward": 1.0}], files=dict.fromkeys(("before", "after", "results"), damage))
    assert [pairs for mode in evaluations.of_run(run) for pairs in mode["pairs"].values() if pairs] == []
    assert evaluations.by_task(run) == []
