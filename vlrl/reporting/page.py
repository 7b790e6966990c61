"""The report: one HTML file that needs no network and runs no script but its own."""

import base64
import dataclasses
import hashlib
import importlib.resources
from collections.abc import Sequence
from typing import Any

import jinja2
import markupsafe

from vlrl.reporting import comparison, curves, evaluations, groups, runs, text
from vlrl.reporting.groups import Limits
from vlrl.reporting.runs import Run

SCRIPTS = ("dom.js", "charts.js", "groups.js", "rollouts.js", "tables.js", "main.js")
"""Joined in this order into one function."""


def render(all_runs: Sequence[Run], limits: Limits, reload_s: float = 0.0) -> str:
    """The whole file. With `reload_s` the page offers to load itself again so often, for a run that goes on."""
    style = _file("page.css")
    script = "(() => {\n" + '"use strict";\n' + "\n".join(_file(name) for name in SCRIPTS) + "})();\n"
    chosen = groups.choose(all_runs, limits)
    # Autoescape is off in jinja2 unless it is asked for.
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(_file("page.html.jinja")).render(
        policy=_policy(script, style),
        style=markupsafe.Markup(style),
        script=markupsafe.Markup(script),
        data=text.embed(_data(all_runs, chosen, reload_s)),
        names=", ".join(run.name for run in all_runs),
        runs=[_about(run) for run in all_runs],
        figures=comparison.figures(all_runs),
        left_out=chosen.left_out,
    )


def _data(all_runs: Sequence[Run], chosen: groups.Chosen, reload_s: float) -> dict[str, Any]:
    return {
        "runs": [_about(run) for run in all_runs],
        "charts": [dataclasses.asdict(chart) for chart in curves.charts(all_runs)],
        "groups": chosen.groups,
        "media": chosen.media,
        "evaluations": [{"modes": evaluations.of_run(run), "tasks": evaluations.by_task(run)} for run in all_runs],
        "figures": comparison.figures(all_runs),
        "settings": comparison.settings(all_runs),
        "reload_s": reload_s,
    }


def _about(run: Run) -> dict[str, Any]:
    done = len(run.metrics)
    state = "finished" if run.evaluations["results"] else "not finished"
    return {
        "name": run.name,
        "state": f"{done} of {run.total_steps} steps, {state}",
        "media": run.log_media,
        "notes": list(run.notes),
        "weights": {
            text.clean(name, 60): weight
            for name, value in runs.group(run.config, "rewards").items()
            if (weight := runs.number(value)) is not None
        },
    }


def _policy(script: str, style: str) -> str:
    """Content security policy: nothing may be loaded, and only this very script and style count."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def _file(name: str) -> str:
    return importlib.resources.files("vlrl.reporting").joinpath("assets", name).read_text(encoding="utf-8")
