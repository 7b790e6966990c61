"""Signals as requests."""

import signal

import pytest

from vlrl import stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_a_request_and_is_said_once_on_stderr(number, capfd):
    with stopping.on_signals() as stop:
        assert not stop.requested()
        signal.raise_signal(number)
        assert stop.requested()
    assert capfd.readouterr().err == f"{signal.Signals(number).name}: saving after this step\n"


def test_second_interrupt_stops_at_once_but_a_second_sigterm_does_not():
    with stopping.on_signals():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_former_handlers_are_back_after_an_error():
    former = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def fail():
        with stopping.on_signals():
            assert signal.getsignal(signal.SIGTERM) != former[1]
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == former
