"""Events of the program: where they land, with which attributes, and what they cost where nothing is recorded."""

from __future__ import annotations

import decimal
import pathlib
import subprocess
import sys
import threading
import time
from typing import Any

import numpy
import pytest
import torch
from opentelemetry import context as otel_context
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import inferspan
from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

QUIET: dict[str, Any] = {"nvml": False, "host": False, "allocator": False}


def _events(telemetry: Telemetry, name: str) -> list[tuple[str, dict[str, Any]]]:
    (span,) = telemetry.spans(name)
    return [(event.name, dict(event.attributes or {})) for event in span.events]


def test_on_the_innermost_stage(telemetry: Telemetry, model: Any) -> None:
    """An event stands on the span of the innermost stage, with its attributes and the time."""
    with inferspan.stage("outer"), inferspan.stage("inner"):
        before = time.time_ns()
        inferspan.event("cache_cleared", entries=40, **{"app.tenant": "blue"})
        after = time.time_ns()
    assert _events(telemetry, "inner") == [("cache_cleared", {"entries": 40, "app.tenant": "blue"})]
    assert _events(telemetry, "outer") == []
    (span,) = telemetry.spans("inner")
    assert (span.start_time or 0) <= span.events[0].timestamp <= (span.end_time or 0)
    # Two clocks of one machine.
    assert before - 5e7 <= span.events[0].timestamp <= after + 5e7
    telemetry.check()


def test_in_a_session(telemetry: Telemetry) -> None:
    """In a session that has no stage, it stands on that of the session; it carries its id, name and tags."""
    with inferspan.session("job", tags={"mode": "t2v"}, tracer_provider=telemetry.tracer_provider) as session:
        inferspan.event("here")
        with inferspan.stage("part"):
            inferspan.event("there")
    want = {semconv.SESSION_ID: session.id, semconv.SESSION_NAME: "job", f"{semconv.SESSION_TAG}.mode": "t2v"}
    assert _events(telemetry, "session job") == [("here", want)]
    assert _events(telemetry, "part") == [("there", want)]


class _Marks:
    """A stopping criterion that tells of each token."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        inferspan.event("token", length=input_ids.shape[1])
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def test_in_a_request(telemetry: Telemetry) -> None:
    """In ``generate()`` it stands on the request, and on a stage inside of it where there is one."""
    network: Any = models.llama()
    telemetry.instrument(network)
    with inferspan.stage("outer"):
        network.generate(models.prompt(1, 4), max_new_tokens=3, stopping_criteria=[_Marks()])
    (request,) = telemetry.requests()
    assert [(event.name, (event.attributes or {})["length"]) for event in request.events] == [("token", 5), ("token", 6), ("token", 7)]
    assert _events(telemetry, "outer") == []
    telemetry.check()


def test_in_a_step(telemetry: Telemetry) -> None:
    """Inside a forward pass of ``generate()`` it has the phase and the number of the step, and the path of its module."""
    network: Any = models.llama()
    telemetry.instrument(network)
    layer = network.model.layers[1]
    hook = layer.register_forward_hook(lambda module, args, output: inferspan.event("layer", module=module))
    network.generate(models.prompt(1, 4), max_new_tokens=3)
    hook.remove()
    (request,) = telemetry.requests()
    found = [dict(event.attributes or {}) for event in request.events]
    assert [one[semconv.STEP_INDEX] for one in found] == [0, 1, 2]
    assert [one[semconv.PHASE] for one in found] == ["prefill", "decode", "decode"]
    assert {one[semconv.MODULE_NAME] for one in found} == {"model.layers.1"}
    assert {one[semconv.MODULE_TYPE] for one in found} == {type(layer).__name__}
    for event in request.events:
        assert (request.start_time or 0) <= event.timestamp <= (request.end_time or 0)


def test_in_a_forward_pass(telemetry: Telemetry, model: Any) -> None:
    """In a plain forward pass it stands on that; in a stage inside of the pass, on the stage."""
    hook = model.register_forward_pre_hook(lambda module, args: _two_events())
    with inferspan.stage("outer"):
        model(torch.zeros(1, 2))
    hook.remove()
    assert _events(telemetry, "forward small") == [("first", {})]
    assert _events(telemetry, "inside") == [("second", {})]
    assert _events(telemetry, "outer") == []


def _two_events() -> None:
    inferspan.event("first")
    with inferspan.stage("inside"):
        inferspan.event("second")


def test_a_module_by_name(telemetry: Telemetry, model: Any) -> None:
    """A module may be named by its path; without a request, a module has no path."""
    with inferspan.stage("part"):
        inferspan.event("one", module="layers.3.mlp")
        inferspan.event("two", module=model)
    assert _events(telemetry, "part") == [("one", {semconv.MODULE_NAME: "layers.3.mlp"}), ("two", {semconv.MODULE_TYPE: "Linear"})]


def test_on_a_thread(telemetry: Telemetry, model: Any) -> None:
    """An event on a thread that was started in a stage stands on that stage."""
    with inferspan.stage("outer"):
        thread = threading.Thread(target=inferspan.event, args=("there",))
        thread.start()
        thread.join()
    assert _events(telemetry, "outer") == [("there", {})]


def test_alone_as_a_log_record(telemetry: Telemetry) -> None:
    """Without a span of ours around it, an event is a log record of its own."""
    exporter, logs = InMemoryLogRecordExporter(), LoggerProvider(shutdown_on_exit=False)
    logs.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    module = torch.nn.Linear(2, 2)
    handle = inferspan.instrument(
        module, tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider, logger_provider=logs, **QUIET
    )
    with handle:
        before = time.time_ns()
        inferspan.event("alone", count=2)
        with telemetry.tracer_provider.get_tracer("theirs").start_as_current_span("theirs") as theirs:
            inferspan.event("beside", count=3)
    alone, beside = (record.log_record for record in exporter.get_finished_logs())
    assert (alone.event_name, alone.attributes, alone.severity_number.value if alone.severity_number else None) == ("alone", {"count": 2}, 9)
    assert before <= (alone.timestamp or 0) <= time.time_ns()
    assert beside.trace_id == theirs.get_span_context().trace_id
    assert [span.name for span in telemetry.spans()] == ["theirs"]


def test_alone_as_a_span(telemetry: Telemetry, model: Any) -> None:
    """Where no logs are sent, such an event is a span without duration."""
    inferspan.event("alone", count=2)
    (span,) = telemetry.spans()
    assert (span.name, dict(span.attributes or {})) == ("alone", {"count": 2})
    assert span.start_time == span.end_time
    telemetry.check()


class _Fails:
    def __str__(self) -> str:
        raise OSError("theirs")


class _Enumerated:
    def __str__(self) -> str:
        return "by its text"


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (1, 1),
        (True, True),
        (0.5, 0.5),
        ("text", "text"),
        ([1, 2], (1, 2)),
        ([], ()),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (2**70, str(2**70)),
        (1 + 2j, "(1+2j)"),
        (b"raw", "b'raw'"),
        (decimal.Decimal("1.5"), "1.5"),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        (_Enumerated(), "by its text"),
        ({"a": [1, None], "b": {"c": "d"}}, "{'a': [1, None], 'b': {'c': 'd'}}"),
        ([1, "a"], "[1, 'a']"),
        ((1, "a"), "(1, 'a')"),
        ({3}, "{3}"),
        (torch.tensor(3), 3),
        (torch.tensor([0.5]), 0.5),
        (numpy.float32(0.5), 0.5),
        (torch.zeros(2, 3, dtype=torch.bfloat16), "Tensor(2x3 bfloat16)"),
        (numpy.zeros((2, 3)), "ndarray(2x3 float64)"),
        ([torch.zeros(2)], "[Tensor(2 float32)]"),
        (torch.zeros(1, device="meta"), "Tensor(1 float32)"),
        (torch.nn.Linear(2, 2), "Linear"),
        ("\ud800", "?"),
    ],
    ids=str,
)
def test_values(value: Any, sent: Any, telemetry: Telemetry, model: Any) -> None:
    """What OpenTelemetry cannot carry becomes text; a tensor is described, and not read from a device."""
    with inferspan.stage("part"):
        inferspan.event("odd", value=value)
    assert _events(telemetry, "part") == [("odd", {"value": sent})]
    telemetry.check()


def test_long_and_nested_values(telemetry: Telemetry, model: Any) -> None:
    """Texts of values are bounded, and a collection that contains itself has an end."""
    endless: list[Any] = ["x"]
    endless.append(endless)
    with inferspan.stage("part"):
        inferspan.event("odd", endless=endless, large={number: "y" * 100 for number in range(1000)}, gone=None)
    ((_, attributes),) = _events(telemetry, "part")
    assert attributes["endless"] == "['x', ['x', ['x', ['x', ...]]]]"
    assert len(attributes["large"]) == 1024
    assert "gone" not in attributes


def test_very_many_attributes(telemetry: Telemetry, model: Any, caplog: pytest.LogCaptureFixture, contained: list[Any]) -> None:
    """The first 128 are sent; OpenTelemetry would log a line for each of the others, for every event."""
    with inferspan.stage("s"):
        for _ in range(3):
            inferspan.event("e", **{f"key{number}": number for number in range(300)})
    ((_, attributes), *_) = _events(telemetry, "s")
    assert list(attributes) == [f"key{number}" for number in range(128)]
    assert len(caplog.messages) <= 1
    assert [error.place for error in contained] == ["attributes of an event"] * 3
    contained.clear()


def test_an_attribute_without_a_name_is_left_out(telemetry: Telemetry, model: Any, caplog: pytest.LogCaptureFixture) -> None:
    """OpenTelemetry cannot carry it, and would log it for every event."""
    with inferspan.stage("s"):
        inferspan.event("e", **{"": 1, "kept": 2})
    assert _events(telemetry, "s") == [("e", {"kept": 2})]
    assert caplog.messages == []


def test_a_value_that_fails(telemetry: Telemetry, model: Any, contained: list[Any]) -> None:
    """A value whose text raises is left out, contained and counted; the event and its other values are there."""
    with inferspan.stage("part"):
        inferspan.event("odd", bad=_Fails(), good=1)
    assert [error.place for error in contained] == ["attributes of an event"]
    contained.clear()
    assert _events(telemetry, "part") == [("odd", {"good": 1})]


@pytest.mark.parametrize(("name", "error"), [(3, TypeError), (None, TypeError), ("", ValueError), ("  ", ValueError)])
def test_a_wrong_name_raises(name: Any, error: type[Exception]) -> None:
    """A name is a text that is not empty, recorded or not."""
    with pytest.raises(error, match=r"inferspan.event\(\) takes a name"):
        inferspan.event(name)


def test_attributes_may_have_any_name(telemetry: Telemetry, model: Any) -> None:
    """An attribute may be called ``name`` or ``self``."""
    with inferspan.stage("part"):
        inferspan.event("odd", name="n", **{"self": "s"})
    assert _events(telemetry, "part") == [("odd", {"name": "n", "self": "s"})]


def test_nothing_is_evaluated_where_it_is_not_sampled(telemetry: Telemetry) -> None:
    """In a stage that is not sampled, no value is looked at."""
    listener = Telemetry(ALWAYS_OFF)
    listener.instrument(torch.nn.Linear(2, 2))
    with inferspan.stage("part"):
        inferspan.event("odd", value=_Fails())
    listener.close()
    assert listener.spans() == []


def test_suppressed(telemetry: Telemetry, model: Any) -> None:
    """Where the caller has switched telemetry off there is no event, and no value is looked at."""
    token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
    try:
        inferspan.event("odd", value=_Fails())
    finally:
        otel_context.detach(token)
    assert telemetry.spans() == []


def test_a_provider_that_fails(contained: list[Any]) -> None:
    """A provider that fails costs the event and nothing else."""

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise OSError("theirs")

    with inferspan.session("s", tracer_provider=Broken()):
        inferspan.event("odd")
    assert contained
    contained.clear()


def test_off_loads_nothing() -> None:
    """Events and decorators that record nothing load neither torch nor OpenTelemetry."""
    code = """
import sys, inferspan
@inferspan.session("job")
def never(): pass
@inferspan.model_parameters()
@inferspan.block_computation()
@inferspan.diffusion_step()
@inferspan.event_on_return("done")
@inferspan.stage("part")
def work(): return 1
inferspan.event("here", value=object())
assert work() == 1
print([name for name in ("torch", "opentelemetry") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.strip() == "[]"
