"""Records as spans: structure, ids, times, other implementations, and providers that fail or come late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Decision, StaticSampler
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

from inferspan import guard
from inferspan.buffer import CAPACITY
from inferspan.caller import context as caller_context
from inferspan.metrics.requests import RequestMetrics
from inferspan.records import (
    Failure,
    ModelInfo,
    ModuleBatch,
    ModuleCalls,
    ModuleInfo,
    Phase,
    PhaseKey,
    Profiled,
    RequestEnd,
    RequestStart,
    Step,
)
from inferspan.settings import Settings
from inferspan.spans.recorder import SpanRecorder
from inferspan.spans.writer import SpanWriter
from tests.spans.outputs import DECODE, PREFILL

INFO = {name: ModuleInfo(name, "Linear", number, f"layer {number}") for number, name in enumerate(("layers.0", "layers.1"))}
SHAPES = (((1, 4), "torch.float32"),)


class _NoMeter:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self


class _Slow(SpanExporter):
    """Takes its time for each batch."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.released = threading.Event()
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.released.wait(self.seconds)
        self.spans += spans
        return SpanExportResult.SUCCESS


def _provider(*processors: SpanProcessor, **options: Any) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False, **options)
    for processor in processors:
        provider.add_span_processor(processor)
    return provider


def _recorder(tracer: Callable[[], Any], *, queue: int = CAPACITY, **settings: Any) -> SpanRecorder:
    chosen = Settings(**settings)
    return SpanRecorder(chosen, tracer, RequestMetrics(lambda: _NoMeter(), chosen), SpanWriter(capacity=queue))


def _start(kind: str = "generate", *, operation: str | None = "text_completion", nested: bool = False, at: int = 1000) -> RequestStart:
    return RequestStart(kind, operation, ModelInfo("org/model", "huggingface", "Model", {"inferspan.device.id": "cpu"}), at, nested, {})


def _modules(step: int | None, phase: PhaseKey, start: int) -> ModuleBatch:
    calls = [
        (0, -1, INFO["layers.0"], start, start + 40, SHAPES, SHAPES, None, None),
        (1, 0, INFO["layers.1"], start + 10, start + 30, SHAPES, (), "ValueError", 0),
    ]
    return ModuleBatch(step, phase, 0, ModuleCalls(calls), {0: {"inferspan.output.stat.mean": 0.5}})


def _run(recorder: SpanRecorder, *, failure: Failure | None = None, attributes: Any = None) -> Any:
    scope: Any = recorder.start(_start(), None)
    scope.detail([_modules(0, PREFILL, 1100), Step(0, PREFILL, 1100, 1200, None, {"inferspan.step.tokens": 4})])
    scope.detail([Step(1, DECODE, 1300, 1400, None, lambda: {"late": 1.5}), Phase(PREFILL, 1000, 1250, None, {})])
    scope.detail([Phase(DECODE, 1250, 2000, None, {})])
    scope.end(RequestEnd(2000, failure, attributes or {}, input_tokens=4, output_tokens=2))
    assert recorder.writer.flush(10)
    return scope


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Where spans of the test go."""
    return InMemorySpanExporter()


def test_structure(exporter: InMemorySpanExporter) -> None:
    """A request holds phases, they hold steps, those hold modules, modules hold modules; times and attributes are the records'."""
    provider = _provider(SimpleSpanProcessor(exporter))
    scope = _run(_recorder(lambda: provider.get_tracer("inferspan", "1")))
    spans = {span.name: span for span in exporter.get_finished_spans()}
    names = {span.context.span_id: span.name for span in spans.values() if span.context}
    tree = {span.name: (names.get(span.parent.span_id) if span.parent else None, span.start_time, span.end_time) for span in spans.values()}
    root = "text_completion org/model"
    assert tree == {
        root: (None, 1000, 2000),
        "prefill": (root, 1000, 1250),
        "decode": (root, 1250, 2000),
        "prefill_step": ("prefill", 1100, 1200),
        "decode_step": ("decode", 1300, 1400),
        "layer 0": ("prefill_step", 1100, 1140),
        "layer 1": ("layer 0", 1110, 1130),
    }
    assert {span.context.trace_id for span in spans.values() if span.context} == {scope.context.trace_id}
    scopes = {span.instrumentation_scope.name for span in spans.values() if span.instrumentation_scope}
    assert scopes == {"inferspan"} and all(span.resource is provider.resource for span in spans.values())
    assert all(span.kind is SpanKind.INTERNAL for span in spans.values())
    assert dict(spans["decode_step"].attributes or {}) == {
        "late": 1.5, "inferspan.phase": "decode", "inferspan.step.index": 1, "inferspan.device.id": "cpu",
    }  # fmt: skip
    assert dict(spans["layer 1"].attributes or {}) == {
        "inferspan.phase": "prefill", "inferspan.module.name": "layers.1", "inferspan.module.type": "Linear", "inferspan.step.index": 0,
        "inferspan.module.layer.index": 1, "inferspan.input.shapes": ("1x4",), "inferspan.input.dtypes": ("float32",),
        "inferspan.output.stat.mean": 0.5, "error.type": "ValueError",
    }  # fmt: skip
    assert (spans["layer 1"].status.status_code, spans["layer 0"].status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    attributes = dict(spans[root].attributes or {})
    assert attributes == {
        "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "huggingface", "gen_ai.request.model": "org/model",
        "gen_ai.response.model": "org/model", "inferspan.model.name": "org/model", "inferspan.device.id": "cpu",
        "gen_ai.usage.input_tokens": 4, "gen_ai.usage.text.input_tokens": 4, "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.text.output_tokens": 2,
    }  # fmt: skip


def test_each_span_has_attributes_of_its_own(exporter: InMemorySpanExporter) -> None:
    """A processor that changes one span's attributes does not change another's."""
    provider = _provider(SimpleSpanProcessor(exporter))
    _run(_recorder(lambda: provider.get_tracer("inferspan")))
    held = [span._attributes for span in exporter.get_finished_spans()]
    assert len({id(attributes) for attributes in held}) == len(held)


def test_failure(exporter: InMemorySpanExporter) -> None:
    """A failed request has the status, the type and one exception event; values that cannot be sent are left out."""
    provider = _provider(SimpleSpanProcessor(exporter))
    _run(
        _recorder(lambda: provider.get_tracer("inferspan")),
        failure=Failure("mine.Error", "went wrong", "trace"),
        attributes={"good": 1, "bad": float("nan"), "big": 2**70, "mixed": [1, "a"]},
    )
    (span,) = (span for span in exporter.get_finished_spans() if span.parent is None)
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "went wrong")
    attributes = dict(span.attributes or {})
    assert [attributes[key] for key in ("error.type", "inferspan.failed", "good")] == ["mine.Error", True, 1]
    assert not attributes.keys() & {"bad", "big", "mixed"}
    (event,) = span.events
    assert (event.name, dict(event.attributes or {})) == (
        "exception", {"exception.type": "mine.Error", "exception.message": "went wrong", "exception.stacktrace": "trace"},
    )  # fmt: skip


def test_current_span_and_callers_ids(exporter: InMemorySpanExporter) -> None:
    """A generate is a child of the caller's span and current itself until its end; a forward is not current."""
    provider = _provider(SimpleSpanProcessor(exporter))
    recorder = _recorder(lambda: provider.get_tracer("inferspan"))
    with provider.get_tracer("host").start_as_current_span("host") as host, caller_context(user_id="u"):
        for kind, operation in (("generate", "text_completion"), ("forward", None)):
            scope: Any = recorder.start(_start(kind, operation=operation), None)
            assert (trace.get_current_span() is scope.span) == (kind == "generate")
            scope.end(RequestEnd(2000, None, {}))
            assert trace.get_current_span() is host
        assert recorder.writer.flush(10)
    first, second, _ = exporter.get_finished_spans()
    assert [span.name for span in (first, second)] == ["text_completion org/model", "forward org/model"]
    for span in (first, second):
        assert span.parent is not None and span.parent.span_id == host.get_span_context().span_id
        assert (span.attributes or {})["user.id"] == "u"


@pytest.mark.parametrize(("kind", "nested", "expected"), [
    ("internal", False, SpanKind.INTERNAL), ("client", False, SpanKind.CLIENT), ("server", False, SpanKind.SERVER), ("client", True, SpanKind.INTERNAL),
])  # fmt: skip
def test_span_kind(kind: str, nested: bool, expected: SpanKind, exporter: InMemorySpanExporter) -> None:
    """The kind that is asked for is that of the request span; a nested one is internal."""
    provider = _provider(SimpleSpanProcessor(exporter))
    recorder = _recorder(lambda: provider.get_tracer("inferspan"), span_kind=kind)
    scope: Any = recorder.start(_start(nested=nested), None)
    scope.end(RequestEnd(2000, None, {}))
    assert recorder.writer.flush(10)
    assert [span.kind for span in exporter.get_finished_spans()] == [expected]


def test_vllm_latencies(exporter: InMemorySpanExporter) -> None:
    """The latencies of other engines' traces are there when asked for."""
    provider = _provider(SimpleSpanProcessor(exporter))
    for wanted in (False, True):
        recorder = _recorder(lambda: provider.get_tracer("inferspan"), compat_vllm_latency=wanted)
        scope: Any = recorder.start(_start(at=0), None)
        scope.end(RequestEnd(2_000_000_000, None, {}, time_to_first_token=0.5, step_seconds={"prefill": [0.4], "decode": [0.1, 0.2]}))
        assert recorder.writer.flush(10)
    found = [{key: value for key, value in (span.attributes or {}).items() if "latency" in key} for span in exporter.get_finished_spans()]
    prefix = "gen_ai.latency."
    assert found == [{}, {
        f"{prefix}e2e": 2.0, f"{prefix}time_to_first_token": 0.5, f"{prefix}time_in_model_prefill": 0.4,
        f"{prefix}time_in_model_decode": pytest.approx(0.3), f"{prefix}time_in_model_inference": pytest.approx(0.7),
    }]  # fmt: skip


def test_inside_another_librarys_call(exporter: InMemorySpanExporter) -> None:
    """Inside a gen_ai span of another library ours has another name, no gen_ai attribute, and tells the other what it lacks."""

    class Theirs:
        usage_output_tokens: int | None = None

    theirs = Theirs()
    provider = _provider(SimpleSpanProcessor(exporter))
    token = otel_context.attach(otel_context.set_value("opentelemetry.genai.client.inference.context", theirs))
    try:
        _run(_recorder(lambda: provider.get_tracer("inferspan"), span_kind="client"), attributes={"gen_ai.request.max_tokens": 4})
    finally:
        otel_context.detach(token)
    (span,) = (span for span in exporter.get_finished_spans() if span.parent is None)
    assert (span.name, span.kind, theirs.usage_output_tokens) == ("inferspan.generate", SpanKind.INTERNAL, 2)
    assert not [key for key in span.attributes or {} if key.startswith("gen_ai.")]


@pytest.mark.parametrize("key", [otel_context._SUPPRESS_INSTRUMENTATION_KEY, "suppress_instrumentation"], ids=["SDK", "older"])
def test_suppression(key: str, exporter: InMemorySpanExporter) -> None:
    """Where the caller has switched telemetry off there is no request."""
    provider = _provider(SimpleSpanProcessor(exporter))
    token = otel_context.attach(otel_context.set_value(key, True))
    try:
        assert _recorder(lambda: provider.get_tracer("inferspan")).start(_start(), None) is None
    finally:
        otel_context.detach(token)


def test_an_ordinary_end_leaves_the_models_thread(exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where processors only queue spans, the hand-over thread ends a request, after its detail, with the times and attributes of the end."""
    threads: list[str] = []
    end = Span.end

    def noting(self: Span, end_time: int | None = None) -> None:
        threads.append(threading.current_thread().name)
        end(self, end_time)

    monkeypatch.setattr(Span, "end", noting)
    queue = BatchSpanProcessor(exporter)
    provider = _provider(queue)
    scope: Any = _recorder(lambda: provider.get_tracer("inferspan")).start(_start("forward", operation=None), None)
    scope.detail([_modules(None, PhaseKey("forward"), 1100)._replace(statistics={})])
    scope.end(RequestEnd(2000, None, {"given": 1}))
    waiting_until = time.monotonic() + 30
    while len(found := exporter.get_finished_spans()) < 3 and time.monotonic() < waiting_until:
        queue.force_flush()
    assert threads == ["inferspan-spans"]
    assert [span.name for span in found] == ["layer 0", "layer 1", "forward org/model"]
    assert (found[-1].end_time, (found[-1].attributes or {})["given"]) == (2000, 1)
    provider.shutdown()


def test_a_failed_request_ends_at_once(exporter: InMemorySpanExporter) -> None:
    """A program that is about to die of the exception has the span already."""
    provider = _provider(SimpleSpanProcessor(exporter))
    recorder = _recorder(lambda: provider.get_tracer("inferspan"))
    scope: Any = recorder.start(_start(), None)
    scope.end(RequestEnd(2000, Failure("ValueError", "no", ""), {}))
    assert [span.status.status_code for span in exporter.get_finished_spans()] == [StatusCode.ERROR]


def test_requests_at_the_exit_end_at_once(exporter: InMemorySpanExporter) -> None:
    """Once the interpreter exits, no thread is relied on."""
    provider = _provider(SimpleSpanProcessor(exporter))
    recorder = _recorder(lambda: provider.get_tracer("inferspan"))
    for number in (1, 2):
        scope: Any = recorder.start(_start(), None)
        scope.end(RequestEnd(2000, None, {}))
        if number == 1:
            recorder.writer.exits()
        assert len(exporter.get_finished_spans()) == number


def test_a_kernel_keeps_its_times(exporter: InMemorySpanExporter) -> None:
    """A kernel may run behind the end of the request that has launched it."""
    provider = _provider(SimpleSpanProcessor(exporter))
    recorder = _recorder(lambda: provider.get_tracer("inferspan"))
    scope: Any = recorder.start(_start("forward", operation=None), None)
    scope.detail([_modules(None, PhaseKey("forward"), 1100)._replace(profiled=[Profiled(2, 1, "gemm", 1900, 2100, {})])])
    scope.end(RequestEnd(2000, None, {}))
    assert recorder.writer.flush(10)
    (kernel,) = (span for span in exporter.get_finished_spans() if span.name == "gemm")
    assert (kernel.start_time, kernel.end_time) == (1900, 2100)


def test_unsampled(exporter: InMemorySpanExporter) -> None:
    """An unsampled request wants no detail, and its context still reaches what is inside."""
    provider = _provider(SimpleSpanProcessor(exporter), sampler=ALWAYS_OFF)
    scope = _run(_recorder(lambda: provider.get_tracer("inferspan")))
    assert not scope.recording and exporter.get_finished_spans() == ()


def test_late_provider(exporter: InMemorySpanExporter) -> None:
    """Requests before the host has a provider cost nothing, those after it are recorded."""
    provider = _provider(SimpleSpanProcessor(exporter))
    tracers: list[Any] = [trace.NoOpTracerProvider().get_tracer("inferspan"), provider.get_tracer("inferspan")]
    recorder = _recorder(lambda: tracers[0])
    assert not _run(recorder).recording
    tracers.pop(0)
    assert _run(recorder).recording and len(exporter.get_finished_spans()) == 7


class _OtherTracer(trace.Tracer):
    """A tracer of another implementation."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    def start_span(self, name: str, context: Any = None, kind: Any = SpanKind.INTERNAL, attributes: Any = None, links: Any = None,
                   start_time: Any = None, record_exception: bool = True, set_status_on_exception: bool = True) -> Any:  # fmt: skip
        told: dict[str, Any] = {"name": name, "parent": trace.get_current_span(context), "start": start_time, **(attributes or {})}
        self.spans.append(told)

        class Span(NonRecordingSpan):
            def is_recording(self) -> bool:
                return True

            def end(self, end_time: int | None = None) -> None:
                told["end"] = end_time

        return Span(SpanContext(1, len(self.spans), False, TraceFlags(1)))

    start_as_current_span: Any = None


def test_other_implementations() -> None:
    """On a tracer that is not the SDK's, detail goes through the API with its times, under the request."""
    tracer = _OtherTracer()
    scope = _run(_recorder(lambda: tracer))
    root, *detail = tracer.spans
    assert (root["name"], root["start"], root["end"]) == ("text_completion org/model", 1000, 2000)
    assert sorted((span["name"], span["start"], span["end"]) for span in detail) == [
        ("decode", 1250, 2000), ("decode_step", 1300, 1400), ("layer 0", 1100, 1140), ("layer 1", 1110, 1130), ("prefill", 1000, 1250),
        ("prefill_step", 1100, 1200),
    ]  # fmt: skip
    assert all(span["parent"] is scope.span for span in detail)


class _Raising(SpanProcessor):
    """Raises wherever it is asked to."""

    def __init__(self, *places: str) -> None:
        self.places = places

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if "start" in self.places:
            raise OSError("start")

    def on_end(self, span: ReadableSpan) -> None:
        if "end" in self.places:
            raise OSError("end")


def test_failing_processors(exporter: InMemorySpanExporter, contained: list[guard.Swallowed]) -> None:
    """A processor that raises costs spans, leaves the caller's span current inside the request, and recovery needs nothing."""
    raising = _Raising("start", "end")
    provider = _provider(SimpleSpanProcessor(exporter), raising)
    recorder = _recorder(lambda: provider.get_tracer("inferspan"))
    with trace.use_span(NonRecordingSpan(SpanContext(5, 6, True, TraceFlags(1)))):
        scope: Any = recorder.start(_start(), None)
        assert trace.get_current_span().get_span_context().span_id == 6
        scope.end(RequestEnd(2000, None, {}))
    raising.places = ("end",)
    _run(recorder)
    raising.places = ()
    exporter.clear()
    _run(recorder)
    assert len(exporter.get_finished_spans()) == 7
    assert {(error.place, error.kind) for error in contained} == {("request span", "OSError"), ("span hand-over", "OSError")}
    assert recorder.metrics.summary.totals().requests == 3
    contained.clear()


def _many(recorder: SpanRecorder, count: int) -> None:
    scope: Any = recorder.start(_start(), None)
    for first in range(0, count, 500):
        scope.detail([Step(number, DECODE, 1300, 1400, None, {}) for number in range(first, min(count, first + 500))])
    scope.end(RequestEnd(2000, None, {}))


@pytest.mark.parametrize(("queue", "batch"), [(2048, 512), (2048, 2048), (100, 100)])
def test_paced(queue: int, batch: int) -> None:
    """Five thousand spans pass a batch processor of any size without one being dropped."""
    slow = _Slow(0.005)
    processor = BatchSpanProcessor(slow, max_queue_size=queue, max_export_batch_size=batch)
    provider = _provider(processor)
    recorder = _recorder(lambda: provider.get_tracer("inferspan"))
    _many(recorder, 5000)
    assert recorder.writer.flush(30) and processor.force_flush()
    assert len(slow.spans) == 5001
    provider.shutdown()


def test_flush_with_a_stuck_exporter() -> None:
    """A flush ends in its time though the host's exporter hangs."""
    slow = _Slow(120.0)
    processor = BatchSpanProcessor(slow, max_queue_size=64, max_export_batch_size=32)
    provider = _provider(processor, sampler=ALWAYS_ON)
    recorder = _recorder(lambda: provider.get_tracer("inferspan"))
    began = time.monotonic()
    _many(recorder, 3000)
    recorder.writer.flush(0.5)
    assert time.monotonic() - began < 100
    slow.seconds = 0.0
    slow.released.set()
    # What is left must not fill the queue while other tests run.
    assert recorder.writer.flush(100)
    provider.shutdown()


def test_overfull(exporter: InMemorySpanExporter) -> None:
    """What the buffer refuses is counted, and nobody waits."""
    provider = _provider(SimpleSpanProcessor(exporter))
    recorder = _recorder(lambda: provider.get_tracer("inferspan"), queue=2)
    refused: list[tuple[int, str]] = []
    recorder.metrics.dropped = lambda count, reason: refused.append((count, reason))  # type: ignore[method-assign]
    _run(recorder)
    assert (3, "queue_full") in refused


def test_a_model_inside_a_processor(exporter: InMemorySpanExporter) -> None:
    """A processor that runs an instrumented model for each span makes no further requests: there would be no end to it."""

    class Guardrail(SpanProcessor):
        asked: ClassVar[list[Any]] = []

        def on_start(self, span: Any, parent_context: Any = None) -> None:
            self.asked.append(recorder.start(_start("forward", operation=None), None))

        def on_end(self, span: ReadableSpan) -> None:
            self.asked.append(recorder.start(_start(), None))

    provider = _provider(Guardrail(), SimpleSpanProcessor(exporter))
    recorder = _recorder(lambda: provider.get_tracer("inferspan"))
    _run(recorder)
    assert Guardrail.asked == [None] * 14  # at the start and the end of each span
    assert len(exporter.get_finished_spans()) == 7
    assert recorder.start(_start("forward", operation=None), None) is not None


def test_attributes_for_samplers(exporter: InMemorySpanExporter) -> None:
    """The caller's ids and the mark for tail samplers are there when a head sampler decides."""
    seen: list[dict[str, Any]] = []

    class Watching(StaticSampler):
        def should_sample(self, *arguments: Any, **options: Any) -> Any:
            seen.append(dict(options.get("attributes") or arguments[4]))
            return super().should_sample(*arguments, **options)

    provider = _provider(SimpleSpanProcessor(exporter), sampler=Watching(Decision.RECORD_AND_SAMPLE))
    with caller_context(conversation_id="c", user_id="u"):
        _run(_recorder(lambda: provider.get_tracer("inferspan"), mark=True))
    wanted = {"gen_ai.conversation.id": "c", "user.id": "u", "inferspan.keep": True, "gen_ai.request.model": "org/model"}
    assert wanted.items() <= seen[0].items()
    (span,) = (span for span in exporter.get_finished_spans() if span.parent is None)
    assert wanted.items() <= dict(span.attributes or {}).items()


def test_raw_module_calls_are_measured(exporter: InMemorySpanExporter) -> None:
    """Module calls that leave the raw way have their durations recorded like those that go through the provider."""

    class Sink:
        def offer(self, spans: bytes, count: int) -> int:
            return count

    provider, reader = _provider(SimpleSpanProcessor(exporter)), InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    settings = Settings(module_metric=True)
    metrics = RequestMetrics(lambda: meters.get_meter("test"), settings)
    recorder = SpanRecorder(settings, lambda: provider.get_tracer("inferspan"), metrics, SpanWriter())
    scope: Any = recorder.start(_start(), None)
    scope.sender = Sink()
    scope.detail([_modules(0, PREFILL, 1100)])
    assert recorder.writer.flush(10)
    data: Any = reader.get_metrics_data()
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics[1:]
    seen = {point.attributes["inferspan.module.name"]: (point.count, point.sum) for point in metric.data.data_points}
    assert (metric.name, seen) == ("inferspan.module.duration", {"layers.0": (1, 4e-8), "layers.1": (1, 2e-8)})
    assert exporter.get_finished_spans() == ()
    scope.end(RequestEnd(2000, None, {}))
    meters.shutdown()
