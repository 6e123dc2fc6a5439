"""Who asks for a window: a handle, a setting or a signal, and what each answers if there is none to be had."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
import torch

import inferspan
from inferspan import semconv
from tests.capture.profiler.windows import Blocks, attributes_of
from tests.cases.telemetry import Telemetry


def test_detached_handle(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """A window of a handle that is detached does nothing but say so."""
    model = Blocks()
    handle = telemetry.instrument(model)
    handle.uninstrument()
    with handle.profile() as window:
        model(torch.ones(2, 8))
    assert window.steps == 0 and window.note == "the model is not instrumented any more" and window.note in caplog.text


@pytest.mark.parametrize(
    ("options", "told"), [({"steps": 0}, "1 to 1000"), ({"steps": True}, "1 to 1000"), ({"cpu_ops": "yes"}, "cpu_ops")]
)
def test_wrong_arguments(telemetry: Telemetry, options: dict[str, Any], told: str) -> None:
    """What cannot be meant is said at once."""
    handle = telemetry.instrument(Blocks())
    with pytest.raises(inferspan.SettingsError, match=told):
        handle.profile(**options)


def test_setting(telemetry: Telemetry) -> None:
    """``profile_steps`` profiles as many passes, beginning with the second call: the first warms up."""
    model = Blocks()
    telemetry.instrument(model, profile_steps=2)
    for _ in range(4):
        model(torch.ones(2, 8))
    assert [attributes_of(span).get(semconv.PROFILER_STEPS) for span in telemetry.forwards()] == [None, 1, 1, None]
    telemetry.check()


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="this platform has no SIGUSR2")
def test_signal(telemetry: Telemetry) -> None:
    """At each signal the next passes are profiled, the program's own handler is called too, and it is back after uninstrument()."""
    heard: list[int] = []

    def own(number: int, frame: Any) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGUSR2, own)
    try:
        model = Blocks()
        handle = telemetry.instrument(model, profile_signal="sigusr2", profile_steps=1)
        model(torch.ones(2, 8))
        for _ in range(2):
            signal.raise_signal(signal.SIGUSR2)
            model(torch.ones(2, 8))
            model(torch.ones(2, 8))
        assert [attributes_of(span).get(semconv.PROFILER_STEPS) for span in telemetry.forwards()] == [None, 1, None, 1, None]
        assert heard == [signal.SIGUSR2] * 2
        handle.uninstrument()
        assert signal.getsignal(signal.SIGUSR2) is own
    finally:
        signal.signal(signal.SIGUSR2, before)
    telemetry.check()


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="this platform has no SIGUSR2")
def test_signal_after_another_thread_has_detached(telemetry: Telemetry) -> None:
    """A handler that could not be taken off at once opens no window any more, and goes at the next signal."""
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        model = Blocks()
        handle = telemetry.instrument(model, profile_signal="SIGUSR2")
        thread = threading.Thread(target=handle.uninstrument)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGUSR2) is not signal.SIG_IGN
        signal.raise_signal(signal.SIGUSR2)
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_signal_from_another_thread(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """Instrumented on another thread, the model works, no handler is put in place, and one line says so."""
    thread = threading.Thread(target=telemetry.instrument, args=(Blocks(),), kwargs={"profile_signal": "SIGHUP"})
    before = signal.getsignal(signal.SIGHUP)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGHUP) is before
    assert "only the main thread" in caplog.text


@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT", "USR1", 10])
def test_signals_that_cannot_be_used(telemetry: Telemetry, name: Any) -> None:
    """A signal that is unknown or means something else is refused, and the message names those that can be used."""
    with pytest.raises(inferspan.SettingsError, match=r"profile_signal.*SIGHUP"):
        telemetry.instrument(Blocks(), profile_signal=name)
