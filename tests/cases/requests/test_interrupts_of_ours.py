"""Ctrl-C at each place in our own code where Python looks for signals: a step, the start of a request, the hooks of modules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest
import torch

from inferspan import semconv
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
from inferspan.spans.live import LiveRequestSpan, _Ending
from inferspan.spans.recorder import SpanRecorder
from inferspan.spans.writer import inside_a_provider
from tests.cases import models
from tests.cases.forward.nets import hooks_on
from tests.cases.requests.interrupts import Interrupts, codes_of
from tests.cases.telemetry import Telemetry

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS: dict[str, Any] = {"modules": "all", "every_step": True, "memory": "steps", "numerics": "layers"}
OPTIONS: dict[str, Any] = {"max_new_tokens": 2, "min_new_tokens": 2, "do_sample": False}


ENDING = codes_of(
    recording.run_recorded, GenerateCall.finish, GenerateCall.fail, GenerateCall._end, Request.finish, Request.close, Request.release,
    Call.failure_of, Call.end_span, Call.release,
) | {GenerateCall._end.__code__}  # fmt: skip
"""The last one is of its decorator."""
PLACES = {
    "end of a step": codes_of(StepLog.close, StepLog._end_anew, StepLog.end, MemoryLog.end_step, StepRows.hand_over),
    "start of a request": codes_of(
        recording.start, recording.open_call, generating.start_generate, SpanRecorder.start, Request.__init__, Request.look_inside
    ),
    "end of a request": ENDING,
    "hooks": codes_of(
        Observed.acquire, Observed.attach, InsideGroup.attach, attaching.attach, ModuleObservers.acquire, ModuleObservers.acquire_inside,
        torch.nn.Module.register_forward_hook, torch.nn.Module.register_forward_pre_hook,
    ),
}  # fmt: skip


def _interrupt_at_each(telemetry: Telemetry, model: Any, codes: set[CodeType], function: Callable[[], Any]) -> None:
    """Call a function with an interrupt at one of at most 120 places each time; nothing may be left after any of them."""
    counting = Interrupts(codes)
    counting.run(function)
    assert counting.count > 10
    done = 0
    for place in range(0, counting.count, max(1, counting.count // 120)):
        interrupts = Interrupts(codes, place)
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


@pytest.mark.parametrize("settings", [{}, {"keep": "slow", "slow_after": 0.0}, {"capture_content": "SPAN_AND_EVENT"}], ids=["default", "keep", "content"])
def test_an_interrupt_at_the_end_of_a_span_loses_no_request(telemetry: Telemetry, settings: dict[str, Any]) -> None:
    """The rest of the end is done by the thread that writes spans, whatever part the interrupt came in; it is counted as well."""
    model = models.llama()
    handle = telemetry.instrument(model, **settings)

    def generate() -> None:
        model.generate(models.prompt(), **OPTIONS)

    codes = codes_of(
        _Ending.close, _Ending._analysed, _Ending.measure, _Ending._finish_span, _Ending._end_span, _Ending._tell_content, _Ending._count,
        LiveRequestSpan.finish_span, LiveRequestSpan._end_attributes, LiveRequestSpan.emit_content,
    )  # fmt: skip
    counting = Interrupts(codes)
    counting.run(generate)
    assert counting.count > 10
    for place in range(0, counting.count, max(1, counting.count // 60)):
        before = len(telemetry.requests())
        interrupts = Interrupts(codes, place)
        interrupts.run(generate)
        telemetry.check()
        assert len(telemetry.requests()) == before + 1, interrupts.where
        assert handle.summary().requests == len(telemetry.requests()), interrupts.where


def test_an_interrupt_while_tokens_are_counted_leaves_no_negative_count(telemetry: Telemetry) -> None:
    """Tokens of a request that was interrupted in its first step are none, or as many as were chosen."""
    model = models.llama()
    telemetry.instrument(model)
    codes = codes_of(GenerateCall.choose, GenerateCall._note_rows, GenerateCall._settle)

    def generate() -> None:
        model.generate(models.prompt(1), **OPTIONS)

    counting = Interrupts(codes)
    counting.run(generate)
    assert counting.count > 5
    for place in range(counting.count):
        interrupts = Interrupts(codes, place)
        assert interrupts.run(generate), place
        told = (telemetry.requests()[-1].attributes or {}).get(semconv.OUTPUT_TOKENS)
        assert told in (0, 1, 2), interrupts.where
