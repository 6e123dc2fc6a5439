"""Time limits of the program: what its signal handlers, and other threads, raise in the middle of our own code reaches the program."""

from __future__ import annotations

import functools
import signal
import subprocess
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from inferspan import SettingsError, guard
from inferspan.capture.generate import call as generating
from inferspan.capture.generate.call import GenerateCall
from inferspan.capture.generate.step_log import StepLog
from inferspan.capture.logits.ring import LogitRing
from inferspan.capture.modules import recorder
from inferspan.capture.request import Request
from inferspan.spans.recorder import SpanRecorder
from tests.cases import models
from tests.cases.forward.nets import hooks_on
from tests.cases.requests.interrupts import Interrupts, codes_of
from tests.cases.telemetry import Telemetry

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="Windows has no signal for this"),
]


class TimeLimit(Exception):
    """As Celery's soft time limit is: no ``BaseException``."""


def _plain(number: int, frame: FrameType | None) -> None:
    raise TimeLimit


def _starred(*given: Any) -> None:
    raise TimeLimit


def _once(number: int, frame: FrameType | None) -> None:
    """Takes itself off first, so it is none of the installed handlers any more."""
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    raise TimeLimit


class _Object:
    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise TimeLimit

    def method(self, number: int, frame: FrameType | None) -> None:
        raise TimeLimit


def _builtin(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("of the program")


HANDLERS: dict[str, Any] = {
    "function": _plain, "any arguments": _starred, "taken off": _once, "object": _Object(), "method": _Object().method,
    "partial": functools.partial(_plain), "built-in class": _builtin,
}  # fmt: skip


@pytest.fixture
def handled(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Installs a handler and sends its signal."""
    before = signal.getsignal(signal.SIGUSR1)

    def send() -> None:
        signal.signal(signal.SIGUSR1, HANDLERS[request.param])
        signal.raise_signal(signal.SIGUSR1)

    yield send
    signal.signal(signal.SIGUSR1, before)


CODES = codes_of(
    generating.start_generate, SpanRecorder.start, Request.__init__, Request.finish, GenerateCall._end, GenerateCall.begin_loop,
    StepLog.begin, StepLog.end, StepLog.choose, StepLog._end_anew, LogitRing.append_last, guard.report,
)  # fmt: skip


@pytest.mark.parametrize("handled", HANDLERS, indirect=True)
def test_a_limit_in_our_own_code(telemetry: Telemetry, handled: Callable[[], None]) -> None:
    """It is raised by the call, wherever it comes, is counted as no error of ours, and ends the request."""
    model = models.llama()
    telemetry.instrument(model)

    def generate() -> None:
        model.generate(models.prompt(), max_new_tokens=3, min_new_tokens=3, do_sample=False)

    generate()
    kind = (TimeLimit, TimeoutError)
    counting = Interrupts(CODES)
    counting.run(generate)
    assert counting.count > 10
    before = guard.error_counts()
    for place in range(0, counting.count, max(1, counting.count // 25)):
        limit = Interrupts(CODES, place, handled, kind)  # type: ignore[arg-type]
        assert limit.run(generate), limit.where
        assert hooks_on(model) == 0, limit.where
        telemetry.check()
    assert guard.error_counts() == before


@pytest.mark.parametrize("handled", ["function"], indirect=True)
def test_a_limit_while_a_module_is_recorded(telemetry: Telemetry, handled: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same from the code in C that records calls: it asks Python for the figures of an output."""
    model = nn.Sequential(nn.Linear(2, 2))
    telemetry.instrument(model, modules="all", output_stats=True)
    model(torch.ones(1, 2))
    from inferspan.capture.modules.output_stats import OutputStats

    def append(*_: Any) -> None:
        handled()

    monkeypatch.setattr(OutputStats, "append", append)
    with pytest.raises(TimeLimit):
        model(torch.ones(1, 2))
    telemetry.check()
    assert recorder.current.call is None


def _in_a_line_of_ours(error: Exception) -> None:
    """Raise it where ``PyThreadState_SetAsyncExc`` does: without a frame of who has asked for it."""
    names: dict[str, Any] = {}
    exec(compile("def line(error):\n    raise error", guard.__file__, "exec"), names)
    names["line"](error)


def test_an_exception_from_another_thread() -> None:
    """One of a class of the program's comes out of a line of ours, which raises no such class."""
    with pytest.raises(TimeLimit), guard.contain("test of time limits"):
        _in_a_line_of_ours(TimeLimit())


@pytest.mark.parametrize("kind", [ValueError, subprocess.TimeoutExpired, torch.cuda.OutOfMemoryError, SettingsError])
def test_an_exception_of_a_library(contained: list[guard.Swallowed], kind: type[Exception]) -> None:
    """One that code in C, or a line of ours, may have raised is contained."""
    with guard.contain("test of time limits"):
        _in_a_line_of_ours(kind("a", 1.0))
    assert [error.kind for error in contained] == [kind.__name__]
    contained.clear()


@pytest.mark.parametrize("kind", [ValueError, OSError, TimeLimit])
def test_errors_of_ours_stay_contained(contained: list[guard.Swallowed], kind: type[Exception]) -> None:
    """Also of a class of the program's, if a function of its own has raised it, and with handlers installed."""
    before = signal.signal(signal.SIGUSR1, _plain)

    def fail(number: int, frame: Any) -> None:
        raise kind

    try:
        with guard.contain("test of time limits"):
            fail(1, None)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [error.kind for error in contained] == [kind.__name__]
    contained.clear()
