"""The span of a plain forward pass is the current one while the model's code runs, and nothing is current afterwards."""

from __future__ import annotations

import copy
import pickle
import sys
from types import FrameType
from typing import Any

import pytest
import torch
from opentelemetry import trace
from torch import Tensor, nn

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

HIDDEN = torch.ones(2, 4)


class Asking(nn.Module):
    """Opens a span of the program's in its forward pass, and keeps which span was current there."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.inside: list[Any] = []

    def forward(self, hidden: Tensor) -> Tensor:
        self.inside.append(trace.get_current_span().get_span_context())
        return self.linear(hidden)


class OwnCall(Asking):
    """With a ``__call__`` of its own, so that only hooks see its passes."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


def _unobserved(telemetry: Telemetry) -> list[Any]:
    return [(span.attributes or {}).get(semconv.UNOBSERVED) for span in telemetry.forwards()]


@pytest.mark.parametrize("compiled", [False, True])
def test_whether_a_model_was_compiled(telemetry: Telemetry, compiled: bool) -> None:
    """Libraries ask for the truth of what ``compile()`` puts on a module, as PEFT does before it changes adapters."""
    model = Asking()
    if compiled:
        model.compile(backend="eager")
    telemetry.instrument(model)
    assert bool(model._compiled_call_impl) is compiled


def test_current_inside(telemetry: Telemetry) -> None:
    """What the model's own code opens is below the request."""
    telemetry.instrument(model := Asking())
    model(HIDDEN)
    telemetry.check()
    assert model.inside == [telemetry.forwards()[0].context]
    assert _unobserved(telemetry) == [None]


def test_only_hooks_are_possible(telemetry: Telemetry) -> None:
    """The span is not current then, and says so."""
    telemetry.instrument(model := OwnCall())
    model(HIDDEN)
    telemetry.check()
    assert not model.inside[0].is_valid
    assert _unobserved(telemetry) == ["context: hooks"]


def test_exception_is_the_same_object(telemetry: Telemetry) -> None:
    """And nothing stays current after it."""
    error = ValueError("mine")

    class Failing(nn.Module):
        def forward(self) -> None:
            raise error

    telemetry.instrument(model := Failing())
    with pytest.raises(ValueError, match="mine") as caught:
        model()
    assert caught.value is error
    telemetry.check()
    assert [(span.attributes or {})[semconv.ERROR_TYPE] for span in telemetry.forwards()] == ["ValueError"]


@pytest.mark.parametrize("how", [copy.deepcopy, copy.copy, lambda one: pickle.loads(pickle.dumps(one))], ids=["deep", "shallow", "pickled"])
def test_copies_are_not_observed(telemetry: Telemetry, how: Any) -> None:
    """A copy computes with its own weights and makes no request."""
    telemetry.instrument(model := Asking())
    twin = how(model)
    twin(HIDDEN)
    assert telemetry.forwards() == []
    assert "_compiled_call_impl" not in vars(twin)


def test_a_replica_that_shares_the_hooks(telemetry: Telemetry) -> None:
    """A replica of DataParallel has a copy of the model's dictionary, and runs itself."""
    telemetry.instrument(model := Asking())
    twin = model._replicate_for_data_parallel()
    twin.inside = []
    twin(HIDDEN)
    assert len(twin.inside) == 1
    assert telemetry.forwards() == []


def test_generate_inside_is_below(telemetry: Telemetry) -> None:
    """A request inside the pass has the span that was current there as its parent."""

    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.language = models.llama()

        def forward(self) -> Any:
            with trace.NoOpTracer().start_as_current_span("nothing"):
                return self.language.generate(models.prompt(), max_new_tokens=2)

    telemetry.instrument(model := Writer())
    telemetry.instrument(model.language)
    with torch.no_grad():
        model()
    telemetry.check()
    (outer,) = telemetry.forwards()
    assert [span.parent for span in telemetry.requests(nested=None)] == [outer.context]


def test_interrupt_at_any_instruction(telemetry: Telemetry) -> None:
    """Ctrl-C at whatever instruction of the function around the pass leaves nothing current, nothing open, and the next pass is whole."""
    telemetry.instrument(model := Asking(), modules="none")
    place, seen = 0, 0

    def trace_frame(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.endswith(("root/call.py", "capture/forward.py")):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if seen == place:
                raise KeyboardInterrupt
        return trace_frame

    while True:
        place, seen = place + 7, 0
        before = sys.gettrace()
        sys.settrace(trace_frame)
        try:
            model(HIDDEN)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert trace.get_current_span() is trace.INVALID_SPAN, place
        if seen < place:
            break
    model.inside.clear()
    model(HIDDEN)
    assert model.inside == [telemetry.forwards()[-1].context]
    assert telemetry.forwards()[-1].parent is None
