"""What torch.compile does in a request: recompilations with their guards, graph breaks, time, and the counts of the process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo as dynamo
from torch import nn
from torch._dynamo import convert_frame
from torch._dynamo.utils import counters, graph_break_reasons

import inferspan
from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.support.programs import elsewhere
from tests.support.versions import needs_torch

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:torch._dynamo"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
LIMIT = "recompile_limit" if hasattr(dynamo.config, "recompile_limit") else "cache_size_limit"


@pytest.fixture(autouse=True)
def clean_dynamo() -> Iterator[None]:
    """Each test compiles from nothing."""
    dynamo.reset()
    counters.clear()
    yield
    dynamo.reset()
    counters.clear()


class Model(nn.Module):
    """Calls a compiled function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.part = nn.Linear(4, 4)
        self.function = function

    def forward(self, value: torch.Tensor, *args: Any) -> torch.Tensor:
        """One pass."""
        result: torch.Tensor = self.function(self.part(value), *args)
        return result


class Quiet(Model):
    """Compiles nothing."""


def doubled(value: torch.Tensor, mode: str = "fast") -> torch.Tensor:
    """Compiled for each size and mode."""
    return value * (2 if mode == "fast" else 3)


def broken(value: torch.Tensor) -> torch.Tensor:
    """Ends its graph in the middle."""
    value = value + 1
    print("in the middle")
    return value * 2


def compiled(function: Any, **options: Any) -> Model:
    """A model that calls ``function`` compiled for each shape."""
    return Model(torch.compile(function, **{"backend": "eager", "dynamic": False, **options}))


def events(span: Any, name: str) -> list[dict[str, Any]]:
    """Attributes of the events of this name."""
    return [dict(event.attributes or {}) for event in span.events if event.name == name]


def facts(span: Any) -> dict[str, Any]:
    """Attributes of a span."""
    return dict(span.attributes or {})


def call(telemetry: Telemetry, model: nn.Module, *rows: int, args: tuple[Any, ...] = ()) -> list[Any]:
    """The requests of passes with these numbers of rows."""
    with torch.no_grad():
        for count in rows:
            model(torch.ones(count, 4), *args)
    return telemetry.forwards()


def test_a_recompilation_is_an_event_with_its_guard(telemetry: Telemetry) -> None:
    """The size of the batch changes: the second request has the guard that failed, with both sizes."""
    model = compiled(doubled)
    telemetry.instrument(model)
    first, second = call(telemetry, model, 2, 3)
    (event,) = events(second, semconv.RECOMPILATION_EVENT)
    assert events(first, semconv.RECOMPILATION_EVENT) == []
    assert event[semconv.COMPILE_REASON] == "size"
    assert "size mismatch at index 0. expected 2, actual 3" in event[semconv.COMPILE_GUARD]
    assert event[semconv.CODE_FUNCTION] == "doubled"
    assert event[semconv.CODE_FILE] == __file__
    assert event[semconv.CODE_LINE] == doubled.__code__.co_firstlineno
    assert event[semconv.COMPILE_ID].endswith("/1")


def test_counts_and_seconds_stand_on_the_request(telemetry: Telemetry) -> None:
    """Absent where nothing was compiled, and no count of 0."""
    model = compiled(doubled)
    telemetry.instrument(model)
    first, second, third = (facts(request) for request in call(telemetry, model, 2, 3, 3))
    assert semconv.COMPILE_RECOMPILES not in first
    assert first[semconv.COMPILE_TIME] > 0
    assert second[semconv.COMPILE_RECOMPILES] == 1
    assert second[semconv.WARMUP] is True
    assert semconv.COMPILE_TIME not in third
    assert semconv.WARMUP not in third


def test_the_time_of_a_compilation_is_within_its_request(telemetry: Telemetry) -> None:
    """Seconds of compiling are no more than the request took."""
    model = compiled(doubled)
    telemetry.instrument(model)
    (request,) = call(telemetry, model, 2)
    assert facts(request)[semconv.COMPILE_TIME] <= (request.end_time - request.start_time) / 1e9


def test_texts_that_a_guard_compares_with_are_left_out(telemetry: Telemetry) -> None:
    """An argument may be a prompt."""
    model = compiled(doubled)
    telemetry.instrument(model)
    call(telemetry, model, 2, args=("a secret prompt",))
    (event,) = events(call(telemetry, model, 2, args=("another",))[-1], semconv.RECOMPILATION_EVENT)
    assert event[semconv.COMPILE_REASON] == "value"
    assert "secret" not in event[semconv.COMPILE_GUARD]
    assert "mode" in event[semconv.COMPILE_GUARD]


def test_a_graph_break_is_an_event_with_its_line(telemetry: Telemetry) -> None:
    """``print`` ends a graph: reason, function and line, once."""
    model = compiled(broken)
    telemetry.instrument(model)
    first, second = call(telemetry, model, 2, 2)
    (event,) = events(first, semconv.GRAPH_BREAK_EVENT)
    assert "print" in event[semconv.COMPILE_REASON]
    assert event[semconv.CODE_FUNCTION] == "broken"
    assert event[semconv.CODE_LINE] == broken.__code__.co_firstlineno + 3
    assert facts(first)[semconv.COMPILE_GRAPH_BREAKS] == 1
    assert events(second, semconv.GRAPH_BREAK_EVENT) == []


def test_graph_breaks_after_a_reset_of_dynamo_are_events_too(telemetry: Telemetry) -> None:
    """``torch._dynamo.reset()`` forgets the breaks; there are as many afterwards."""
    telemetry.instrument(model := compiled(broken))
    call(telemetry, model, 2)
    dynamo.reset()
    first, second = call(telemetry, model, 2)
    assert [len(events(request, semconv.GRAPH_BREAK_EVENT)) for request in (first, second)] == [1, 1]


@pytest.mark.skipif(LIMIT == "cache_size_limit", reason="this torch gives no figures of a compilation that its limit refuses")
def test_the_limit_of_recompilations_is_marked(telemetry: Telemetry) -> None:
    """The compilation that torch refuses says so, with the function; afterwards none is tried."""
    model = compiled(doubled)
    telemetry.instrument(model)
    with dynamo.config.patch({LIMIT: 2}):
        *_, refused, last = call(telemetry, model, 2, 3, 4, 5)
    (event,) = events(refused, semconv.RECOMPILATION_EVENT)
    assert event[semconv.COMPILE_LIMIT] is True
    assert event[semconv.CODE_FUNCTION] == "doubled"
    assert events(last, semconv.RECOMPILATION_EVENT) == []


def test_events_are_bounded_and_counts_are_of_all(telemetry: Telemetry) -> None:
    """A request with 40 recompilations has 32 events, the first ones."""
    function = torch.compile(doubled, backend="eager", dynamic=False)
    model = Model(lambda value: list(map(function, (value[:count] for count in range(2, 43)))).pop())
    telemetry.instrument(model)
    with dynamo.config.patch({LIMIT: 64}):
        (request,) = call(telemetry, model, 50)
    assert facts(request)[semconv.COMPILE_RECOMPILES] == 40
    found = events(request, semconv.RECOMPILATION_EVENT)
    assert [event[semconv.COMPILE_ID].rpartition("/")[2] for event in found] == [str(number) for number in range(1, 33)]


def test_threads_are_not_mixed(telemetry: Telemetry) -> None:
    """A request during which another thread compiles has nothing of it."""
    inside, done = threading.Event(), threading.Event()

    def wait(value: torch.Tensor) -> torch.Tensor:
        inside.set()
        done.wait(60)
        return value

    compiling, quiet = compiled(doubled), Quiet(wait)
    telemetry.instrument(compiling)
    telemetry.instrument(quiet)
    call(telemetry, compiling, 2)
    waiting = threading.Thread(target=lambda: quiet(torch.ones(2, 4)))
    waiting.start()
    inside.wait(60)
    call(telemetry, compiling, 3)
    done.set()
    waiting.join(60)
    _, second, other = sorted(telemetry.forwards(), key=lambda request: ("Quiet" in request.name, request.end_time or 0))
    assert facts(second)[semconv.COMPILE_RECOMPILES] == 1
    assert semconv.COMPILE_TIME not in facts(other)


def test_an_event_stands_on_the_innermost_request(telemetry: Telemetry) -> None:
    """The request around it has the counts."""
    inner = compiled(doubled)
    outer = Model(lambda value: inner(value))
    object.__setattr__(outer, "other", inner)
    telemetry.instrument(inner)
    telemetry.instrument(outer)
    call(telemetry, outer, 2, 3)
    around, inside = sorted(telemetry.forwards(), key=lambda request: request.start_time or 0)[-2:]
    assert len(events(inside, semconv.RECOMPILATION_EVENT)) == 1
    assert events(around, semconv.RECOMPILATION_EVENT) == []
    assert facts(around)[semconv.COMPILE_RECOMPILES] == 1


@needs_torch(2, 6, reason="before torch 2.6 not every compilation in generate() is told of")
def test_generate_has_the_recompilations_of_its_steps(telemetry: Telemetry) -> None:
    """A compiled forward of a model whose cache grows."""
    model = models.llama()
    model.forward = torch.compile(model.forward, backend="aot_eager", dynamic=False)
    telemetry.instrument(model)
    model.generate(torch.ones(1, 4, dtype=torch.long), max_new_tokens=3, min_new_tokens=3, do_sample=False)
    (request,) = telemetry.requests()
    recompiled = sum(max(0, number - 1) for number in convert_frame.FRAME_COMPILE_COUNTER.values())
    assert recompiled > 0
    assert facts(request)[semconv.COMPILE_RECOMPILES] == recompiled
    assert len(events(request, semconv.RECOMPILATION_EVENT)) == min(recompiled, 32)


def test_metrics_are_the_counts_of_torch(telemetry: Telemetry) -> None:
    """Graphs, breaks and recompilations since the model was instrumented, also after torch's counters were reset."""
    model, other = compiled(doubled).requires_grad_(False), compiled(broken).requires_grad_(False)
    model(torch.ones(7, 4))
    telemetry.instrument(model)
    before = counters["stats"]["unique_graphs"]
    call(telemetry, model, 2, 3, 4)
    other(torch.ones(2, 4))
    graphs = counters["stats"]["unique_graphs"] - before
    recompiled = sum(max(0, number - 1) for number in convert_frame.FRAME_COMPILE_COUNTER.values())
    assert telemetry.metric_sum(semconv.M_COMPILE_GRAPHS) == graphs
    assert telemetry.metric_sum(semconv.M_COMPILE_GRAPH_BREAKS) == len(graph_break_reasons) == 1
    assert telemetry.metric_sum(semconv.M_COMPILE_RECOMPILES) == recompiled
    counters.clear()
    call(telemetry, model, 9)
    assert telemetry.metric_sum(semconv.M_COMPILE_GRAPHS) == graphs + counters["stats"]["unique_graphs"]


def whether_wrapped() -> list[bool]:
    """Whether torch's function is not its own: before ``instrument()``, after it, and after ``uninstrument()``."""
    utils: Any = sys.modules["torch._dynamo.utils"]
    original = utils.log_compilation_event
    model = compiled(doubled)
    found = [utils.log_compilation_event is not original]
    handle = inferspan.instrument(model)
    found.append(utils.log_compilation_event is not original)
    handle.uninstrument()
    return [*found, utils.log_compilation_event is not original]


def test_the_function_of_torch_is_restored() -> None:
    """The last ``uninstrument()`` takes the wrapper off; in another process, because engines by hand keep their models here."""
    assert elsewhere(whether_wrapped) == [False, True, False]


def test_without_figures_of_torch_a_graph_makes_a_warm_up(telemetry: Telemetry) -> None:
    """``log_compilation_metrics=False`` hides compilations; nothing is told that is not known."""
    model = compiled(doubled)
    telemetry.instrument(model)
    with dynamo.config.patch(log_compilation_metrics=False):
        second = call(telemetry, model, 2, 3)[1]
    assert semconv.COMPILE_RECOMPILES not in facts(second)
    assert facts(second)[semconv.WARMUP] is True
