"""Every test runs on the CPU unless told otherwise, and no array is broadcast to more axes in silence."""

import contextlib
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Data, models and config file of runs that take seconds."""
    import tiny_run  # here: it loads the whole package, which most tests do without

    return tiny_run.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def finished(tiny, tmp_path_factory):
    """Work directory of a whole run with claims, not to be changed; printed.txt beside it is what it printed."""
    import tiny_run

    workdir = tmp_path_factory.mktemp("finished") / "run"
    with tiny_run.claiming(), (workdir.parent / "printed.txt").open("w") as file, contextlib.redirect_stdout(file):
        tiny.run(workdir)
    return workdir
