"""Laps and the count of compilations."""

import types

import jax
import jax.numpy as jnp
import pytest

from vlrl import timing


def test_laps_add_up_and_rates_are_of_the_stages_that_handle_tokens(monkeypatch):
    ticks = iter([10.0, 11.0, 13.0, 17.0])
    monkeypatch.setattr(timing, "time", types.SimpleNamespace(monotonic=lambda: next(ticks)))
    watch = timing.Stopwatch()
    for stage in ("data", "rollout", "update"):
        watch.lap(stage)
    assert watch.metrics(40) == pytest.approx(
        {
            "time/data": 1.0,
            "time/rollout": 2.0,
            "time/update": 4.0,
            "tokens_per_s/rollout": 20.0,
            "tokens_per_s/update": 10.0,
            "step_time": 7.0,
        }
    )


def test_new_shapes_are_counted_as_compilations_and_known_ones_are_not():
    double = jax.jit(lambda x: x * 2)
    inputs = [jnp.zeros(3), jnp.zeros(5)]
    before = timing.compilations()
    double(inputs[0])
    double(inputs[0])
    assert timing.compilations() == before + 1
    double(inputs[1])
    assert timing.compilations() == before + 2
