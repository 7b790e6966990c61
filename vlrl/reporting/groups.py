"""The rollouts of runs as the page shows them, group by group, no more of them than fit."""

import base64
import collections
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vlrl.referees import views
from vlrl.reporting import runs, text
from vlrl.reporting.runs import Run

MOST_INVALID = 20
"""So many steps with the most failures are shown before the others."""
PICTURED = 40
"""Frames go first to so many groups with the best, and with the worst completion."""
_KNOWN = ("step", "example_id", "task", "rollout", "prompt", "completion", "reference", "reward", "valid", "reason")
_JPEG = b"\xff\xd8\xff"

Group = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one report holds at most: this bounds its size and the time it takes."""

    rollouts: int = 10_000
    bytes: int = 32 * 2**20
    first_step: int = 0
    last_step: int = 2**62


@dataclasses.dataclass(frozen=True)
class Chosen:
    groups: list[Group]
    media: list[str]
    """JPEG files in base64; groups point at them by number."""
    left_out: list[str]
    """Sentences on what did not fit."""


def choose(all_runs: Sequence[Run], limits: Limits) -> Chosen:
    """Groups of every run, each run having its share of the limits; newest first."""
    share = Limits(limits.rollouts // len(all_runs), limits.bytes // len(all_runs), limits.first_step, limits.last_step)
    groups: list[Group] = []
    media: list[str] = []
    left_out: list[str] = []
    for index, run in enumerate(all_runs):
        mine, size, steps = _fitting(run, index, share)
        groups += sorted(mine, key=lambda group: -group["step"])
        wanted = [step for step in run.steps if share.first_step <= step <= share.last_step]
        if len(steps) < len(wanted):
            left_out.append(f"{run.name}: rollouts of {len(steps)} of {len(wanted)} steps are shown, spread evenly")
        missing = _illustrate(run, mine, media, share.bytes - size)
        if missing:
            left_out.append(f"{run.name}: {missing} groups are shown without their frames, which did not fit")
    return Chosen(groups, media, left_out)


def reading_order(steps: Sequence[int], metrics: Sequence[Mapping[str, float | None]]) -> Iterator[int]:
    """Every step once: the last, the first, those with most failures, then midpoints of what is left between, so that
    wherever the reader stops the steps read are spread over the run."""
    failures = {line["step"]: line.get("invalid/total") or 0.0 for line in metrics}
    worst = sorted((step for step in steps if failures.get(step)), key=lambda step: -failures[step])[:MOST_INVALID]
    seen = set()
    for step in [*steps[-1:], *steps[:1], *worst, *_midpoints(steps)]:
        if step not in seen:
            seen.add(step)
            yield step


def of_rows(rows: Sequence[Mapping[str, Any]], run: Run, index: int) -> list[Group]:
    """Rows of a step, in order, as groups of one prompt each. Where an example comes twice its rollouts start anew."""
    groups: list[Group] = []
    weight = runs.number(runs.group(run.config, "rewards").get("evidence"))
    last: tuple[Any, Any] = (None, None)
    for row in rows:
        name, rollout = row.get("example_id"), row.get("rollout")
        again = isinstance(rollout, int) and isinstance(last[1], int) and rollout <= last[1]
        if not groups or name != last[0] or again:
            groups.append(
                {
                    "run": index,
                    "step": row["step"] if isinstance(row.get("step"), int) else 0,
                    "id": text.clean(name, 200),
                    "task": text.clean(row.get("task"), 40),
                    "prompt": text.clean(row.get("prompt")),
                    "reference": text.clean(row.get("reference")),
                    "rollouts": [],
                }
            )
        last = (name, rollout)
        groups[-1]["rollouts"].append(_rollout(row, weight))
    return groups


def _rollout(row: Mapping[str, Any], weight: float | None) -> dict[str, Any]:
    parts = {name.removeprefix("rewards/"): row[name] for name in row if name.startswith("rewards/")}
    more = {name: row[name] for name in row if name not in (*_KNOWN, "advantage", "verdicts") and "/" not in name}
    claims, other = _claims(row.get("verdicts"), weight)
    shown = {
        "completion": text.clean(row.get("completion")),
        "reward": runs.number(row.get("reward")),
        "valid": row.get("valid") is True,
        "reason": text.clean(row.get("reason"), 200),
        "advantage": runs.number(row.get("advantage")),
        "parts": {text.clean(name, 60): runs.number(value) for name, value in parts.items()},
        "claims": claims,
    }
    more |= {"verdicts": other} if other else {}
    more = {text.clean(name, 60): text.clean(value, 2000) for name, value in more.items() if value not in (None, "")}
    return shown | ({"more": more} if more else {})


def _claims(verdicts: Any, weight: float | None) -> tuple[list[dict[str, Any]], Any]:
    """Claims of the verdicts column, and the column itself where it holds something else."""
    try:
        found = json.loads(verdicts) if isinstance(verdicts, str) and verdicts else []
    except (ValueError, RecursionError):
        return [], verdicts
    if not isinstance(found, list) or not all(isinstance(v, dict) and "box" in v for v in found):
        return [], verdicts
    graded = sum(not verdict.get("failure") for verdict in found)
    return [_claim(verdict, weight, graded) for verdict in found], ""


def _claim(verdict: Mapping[str, Any], weight: float | None, graded: int) -> dict[str, Any]:
    """`pay` is the claim's part of the reward: weight * omega * relevance * localization / graded claims."""
    omega, relevance, localization = (
        runs.number(verdict.get(name)) for name in ("omega", "relevance_grade", "localization_grade")
    )
    pay = None
    if None not in (weight, omega, relevance, localization) and not verdict.get("failure"):
        pay = weight * omega * relevance * localization / graded  # type: ignore[operator]  # none is None
    return {
        "object": text.clean(verdict.get("object"), 200),
        "box": _box(verdict.get("box")),
        "time_s": runs.number(verdict.get("time_s")),
        "frame_time_s": runs.number(verdict.get("frame_time_s"), 12),
        "omega": omega,
        "grades": [relevance, localization],
        "letters": [text.clean(verdict.get(name), 8) for name in ("relevance", "localization")],
        "failure": text.clean(verdict.get("failure"), 200),
        "pay": runs.number(pay),
    }


def _box(value: Any) -> list[float] | None:
    if not isinstance(value, list) or len(value) != 4:
        return None
    corners = [runs.number(corner) for corner in value]
    return [min(max(corner, 0.0), 1.0) for corner in corners if corner is not None] if None not in corners else None


def _fitting(run: Run, index: int, limits: Limits) -> tuple[list[Group], int, set[int]]:
    """Groups up to the limits, their size in the file, and the steps that they are of."""
    groups: list[Group] = []
    steps: set[int] = set()
    left, size = limits.rollouts, 0
    # Frames get what text leaves, half of the room at least.
    room = limits.bytes // 2 if run.log_media else limits.bytes
    for step in reading_order([s for s in run.steps if limits.first_step <= s <= limits.last_step], run.metrics):
        read = of_rows(run.rows(step), run, index)
        for group in read:
            needed = len(text.embed(group)) + 1
            if len(group["rollouts"]) > left or size + needed > room:
                return groups, size, steps
            groups.append(group)
            left, size = left - len(group["rollouts"]), size + needed
        steps.add(step)
    return groups, size, steps


def _midpoints(steps: Sequence[int]) -> Iterator[int]:
    waiting = collections.deque([(0, len(steps))])
    while waiting:
        start, end = waiting.popleft()
        if start < end:
            middle = (start + end) // 2
            yield steps[middle]
            waiting += [(start, middle), (middle + 1, end)]


def _illustrate(run: Run, groups: Sequence[Group], media: list[str], room: int) -> int:
    """Adds the frames of groups to `media` while there is room, and the number of each to its claim; what is most
    looked at comes first. Returns how many groups with frames went without."""
    missing = 0
    frames: dict[int, dict[tuple[str, float], dict[str, Any]]] = {}
    if not run.log_media:
        return 0
    for group in _most_looked_at(groups):
        step = group["step"]
        if step not in frames:
            frames[step] = {
                (text.clean(f.get("example_id"), 200), _time(f)): f for f in run.frames(step) if _is_jpeg(f)
            }
        mine = {time_s: frame for (name, time_s), frame in frames[step].items() if name == group["id"]}
        size = sum(4 * len(frame["jpeg"]) // 3 + 8 for frame in mine.values())
        if size > room:
            missing += 1
            continue
        room -= size
        numbers = {}
        for time_s in mine:
            numbers[time_s] = len(media)
            media.append(base64.b64encode(mine[time_s]["jpeg"]).decode())
        _point_at(group, mine, numbers)
    return missing


def _most_looked_at(groups: Sequence[Group]) -> list[Group]:
    invalid = [group for group in groups if not all(rollout["valid"] for rollout in group["rollouts"])]
    by_best = sorted(groups, key=lambda group: -max((r["reward"] or 0.0 for r in group["rollouts"]), default=0.0))
    by_worst = sorted(groups, key=lambda group: min((r["reward"] or 0.0 for r in group["rollouts"]), default=0.0))
    newest = sorted(groups, key=lambda group: -group["step"])
    ranked = [*by_best[:PICTURED], *by_worst[:PICTURED], *invalid, *newest]
    return list({id(group): group for group in ranked}.values())


def _point_at(group: Group, frames: Mapping[float, Mapping[str, Any]], numbers: Mapping[float, int]) -> None:
    for claim in (claim for rollout in group["rollouts"] for claim in rollout["claims"]):
        time_s = claim["frame_time_s"]
        if claim["box"] is None or time_s not in frames:
            continue
        height, width = frames[time_s]["height_px"], frames[time_s]["width_px"]
        x1, y1, x2, y2 = views.crop_px(tuple(claim["box"]), height, width)
        claim |= {"frame": numbers[time_s], "size_px": [width, height], "crop_px": [x1, y1, x2, y2]}
    if not any("frame" in claim for rollout in group["rollouts"] for claim in rollout["claims"]) and numbers:
        group["frame"] = next(iter(numbers.values()))


def _time(frame: Mapping[str, Any]) -> float:
    return runs.number(frame.get("frame_time_s"), 12) or 0.0


def _is_jpeg(frame: Mapping[str, Any]) -> bool:
    sizes = [frame.get(name) for name in ("height_px", "width_px")]
    sized = all(isinstance(size, int) and size > 0 for size in sizes)
    return sized and isinstance(frame.get("jpeg"), bytes) and frame["jpeg"].startswith(_JPEG)
