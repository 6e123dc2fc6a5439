"""Ctrl-C at each place in our own code where Python looks for signals: a step, the start of a request, the hooks of modules."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest
import torch

from inferspan.capture import recording
from inferspan.capture.call import Call
from inferspan.capture.generate import call as generating
from inferspan.capture.generate.call import GenerateCall
from inferspan.capture.generate.step_log import StepLog
from inferspan.capture.generate.step_rows import StepRows
from inferspan.capture.inside import attaching
from inferspan.capture.inside.memory import MemoryLog
from inferspan.capture.modules.groups import InsideGroup, Observed
from inferspan.capture.modules.hooks import ModuleObservers
from inferspan.capture.request import Request
from inferspan.spans.recorder import SpanRecorder
from inferspan.spans.writer import inside_a_provider
from tests.cases import models
from tests.cases.forward.nets import hooks_on
from tests.cases.telemetry import Telemetry

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS: dict[str, Any] = {"modules": "all", "every_step": True, "memory": "steps", "numerics": "layers"}
OPTIONS: dict[str, Any] = {"max_new_tokens": 2, "min_new_tokens": 2, "do_sample": False}


class _Interrupts:
    """Raises ``KeyboardInterrupt`` at one of the places in the code of some functions where Python would run a handler of signals.

    Those are the start of a function and the return from C code, as of Python 3.11; its jumps back in loops are left out.

    Args:
        codes: of these functions.
        place: which one of the places that a run comes through; -1 counts them only.
    """

    def __init__(self, codes: set[CodeType], place: int = -1) -> None:
        self._codes, self._place = codes, place
        self.count = 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "c_return") or frame.f_code not in self._codes:
            return
        self.count += 1
        if self.count == self._place + 1:
            sys.setprofile(None)
            self.where = f"{frame.f_code.co_name}:{frame.f_lineno} {event}"
            raise KeyboardInterrupt

    def run(self, function: Callable[[], Any]) -> bool:
        """Call a function; whether it was interrupted."""
        sys.setprofile(self)
        try:
            function()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
        return False


def _codes(*functions: Any) -> set[CodeType]:
    return {inspect.unwrap(function).__code__ for function in functions}


ENDING = _codes(
    recording.run_recorded, GenerateCall.finish, GenerateCall.fail, GenerateCall._end, Request.finish, Request.close, Request.release,
    Call.failure_of, Call.end_span, Call.release,
) | {GenerateCall._end.__code__}  # fmt: skip
"""The last one is of its decorator."""
PLACES = {
    "end of a step": _codes(StepLog.close, StepLog._end_anew, StepLog.end, MemoryLog.end_step, StepRows.hand_over),
    "start of a request": _codes(
        recording.start, recording.open_call, generating.start_generate, SpanRecorder.start, Request.__init__, Request.look_inside
    ),
    "end of a request": ENDING,
    "hooks": _codes(
        Observed.acquire, Observed.attach, InsideGroup.attach, attaching.attach, ModuleObservers.acquire, ModuleObservers.acquire_inside,
        torch.nn.Module.register_forward_hook, torch.nn.Module.register_forward_pre_hook,
    ),
}  # fmt: skip


def _interrupt_at_each(telemetry: Telemetry, model: Any, codes: set[CodeType], function: Callable[[], Any]) -> None:
    """Call a function with an interrupt at one of at most 120 places each time; nothing may be left after any of them."""
    counting = _Interrupts(codes)
    counting.run(function)
    assert counting.count > 10
    done = 0
    for place in range(0, counting.count, max(1, counting.count // 120)):
        interrupts = _Interrupts(codes, place)
        done += interrupts.run(function)
        assert hooks_on(model) == 0, interrupts.where
        telemetry.check()
        assert not inside_a_provider(), interrupts.where
    assert done > 10


@pytest.mark.parametrize("part", PLACES)
def test_an_interrupt_leaves_nothing(telemetry: Telemetry, part: str) -> None:
    """Wherever it comes: each span has its parent, no span stays current, no hook stays on a module, and what follows is recorded."""
    model = models.llama()
    telemetry.instrument(model, **SETTINGS)

    def generate() -> None:
        model.generate(models.prompt(), **OPTIONS)

    generate()
    _interrupt_at_each(telemetry, model, PLACES[part], generate)
    before = len(telemetry.requests())
    generate()
    telemetry.check()
    assert len(telemetry.requests()) == before + 1
    assert all(request.parent is None for request in telemetry.requests())


def test_an_interrupt_at_the_end_of_a_failed_request_leaves_nothing(telemetry: Telemetry) -> None:
    """The same where the model has raised."""

    def fail(hidden: Any) -> Any:
        raise LookupError

    model = models.llama()
    model.lm_head.forward = fail
    telemetry.instrument(model, **SETTINGS)

    def generate() -> None:
        with contextlib.suppress(LookupError):
            model.generate(models.prompt(), **OPTIONS)

    generate()
    _interrupt_at_each(telemetry, model, ENDING, generate)
    before = len(telemetry.requests())
    generate()
    telemetry.check()
    assert len(telemetry.requests()) == before + 1
