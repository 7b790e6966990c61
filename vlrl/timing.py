"""Where a step's time goes, and how often something was compiled."""

import time

import jax

STARTED_S = time.monotonic()
_COMPILED = [0]


def _count(event: str, duration_secs: float, **_: str | int) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        _COMPILED[0] += 1


jax.monitoring.register_event_duration_secs_listener(_count)


def compilations() -> int:
    """Programs compiled since the process began: constant after warm-up, or shapes are not bucketed."""
    return _COMPILED[0]


class Stopwatch:
    """Laps of one step. A lap ends where its results are on the host, so no wait is added for the clock."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        now = time.monotonic()
        self._laps[stage] = now - self._last
        self._last = now

    def metrics(self, new_tokens: int) -> dict[str, float]:
        """time/<stage> and step_time in seconds, completion tokens a second of the two stages that handle them."""
        rates = {f"tokens_per_s/{stage}": new_tokens / self._laps[stage] for stage in ("rollout", "update")}
        laps = {f"time/{stage}": seconds for stage, seconds in self._laps.items()}
        return {**laps, **rates, "step_time": self._last - self._start}
