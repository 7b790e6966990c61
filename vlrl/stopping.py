"""SIGTERM and Ctrl-C as a request: the run finishes its step, saves and exits with status 0."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

STDERR = 2


class Stop:
    """Whether the run was asked to end."""

    def __init__(self) -> None:
        self._requested = False

    def requested(self) -> bool:
        return self._requested

    def request(self, number: int, frame: FrameType | None) -> None:
        if self._requested and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C means now
        self._requested = True
        # Not print: the signal may have interrupted a write to stderr, and its buffer cannot be entered twice.
        os.write(STDERR, f"{signal.Signals(number).name}: saving after this step\n".encode())


@contextlib.contextmanager
def on_signals() -> Iterator[Stop]:
    """Within the block both signals set the request; afterwards the former handlers are back."""
    stop = Stop()
    former = {number: signal.signal(number, stop.request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
