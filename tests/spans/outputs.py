"""Records of every kind of span under a request, and the spans that each output makes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry import context
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inferspan import semconv
from inferspan.export import protobuf
from inferspan.export.files.session_file import SpanFileExporter
from inferspan.metrics.requests import RequestMetrics
from inferspan.records import (
    ModelInfo,
    ModuleBatch,
    ModuleCalls,
    ModuleInfo,
    Phase,
    PhaseKey,
    Profiled,
    RequestEnd,
    RequestStart,
    Stage,
    Step,
)
from inferspan.settings import Settings
from inferspan.spans import attributes
from inferspan.spans.recorder import SpanRecorder
from inferspan.spans.writer import SpanWriter

__all__ = ["CASES", "STEP_ATTRIBUTES", "Emitted", "packed_spans", "recorder_on", "sdk_spans", "send", "session_file_spans"]

PREFILL, DECODE = PhaseKey("prefill", 7), PhaseKey("decode", 8)
SHAPES = (((1, 7, 64), "torch.float32"), ((), "torch.int64"))
INFO = ModuleInfo("layers.0", "Linear", 0, "layer 0")
BARE = ModuleInfo("head", "Größe", None, "head")
STEP_ATTRIBUTES: dict[str, Any] = {"given.double": 1.5, "given.int": 300, "given.text": "é"}
KERNEL = Profiled(9, 0, "gemm", 5, 8, {semconv.PROFILER_KIND: "kernel", semconv.KERNEL_STREAM: 7})
OPERATION = Profiled(8, 0, "aten::linear", 4, 6, {semconv.PROFILER_KIND: "op"})


def _calls(*, times: int = 1) -> ModuleCalls:
    calls: list[Any] = []
    for first in range(0, 3 * times, 3):
        calls.append((first, -1, INFO, 1, 9, SHAPES, SHAPES, None, None))
        calls.append((first + 1, first, BARE, 2, 3, (), SHAPES[:1], None, 1))
        calls.append((first + 2, first, INFO, 4, 5, SHAPES, (), "ValueError", 0))
    return ModuleCalls(calls)


STATISTICS: dict[int, Any] = {0: {}, 1: {semconv.OUTPUT_STAT_NAN_COUNT: 3, "inferspan.output.stat.mean": 0.5}}
FEW = ModuleBatch(4, DECODE, 100, _calls(), STATISTICS, {0: 0.25, 2: 1.0}, (OPERATION, KERNEL), collectives={0: 0.125})
PLAIN = ModuleBatch(None, PhaseKey("forward"), 100, _calls(), STATISTICS)
# The second and later passes of one structure are filled into a template.
MANY = [ModuleBatch(step, DECODE, 100, _calls(times=8), STATISTICS, dict.fromkeys(range(24), 0.125)) for step in range(3)]
MANY[2] = MANY[2]._replace(collectives={3: 0.25, 4: 0.25})


class Case(NamedTuple):
    """Records of one request and the attributes of their spans, in order."""

    records: Sequence[Any]
    expected: list[Mapping[str, Any]]


def _modules(*batches: ModuleBatch) -> Case:
    found: list[Mapping[str, Any]] = []
    for batch in batches:
        found += [attributes.of_call(batch, call) for call in batch.calls.rows()]
        found += [attributes.of_profiled(batch, profiled) for profiled in batch.profiled]
    return Case(batches, found)


def _steps(*steps: Step) -> Case:
    return Case(steps, [attributes.of_step(step, "cuda:0") for step in steps])


def _phases(*phases: Phase) -> Case:
    return Case(phases, [attributes.of_phase(phase) for phase in phases])


def _stages(*stages: Stage) -> Case:
    return Case(stages, [attributes.of_stage(stage) for stage in stages])


CASES = {
    "stage": _stages(
        Stage(0, "text_encode", 1, 9, None, {}, phase=PREFILL), Stage(1, "denoise_step", 1, 9, "ValueError", lambda: STEP_ATTRIBUTES, parent=0)
    ),
    "phase": _phases(Phase(PREFILL, 1, 9, None, {}), Phase(DECODE, 1, 9, "ValueError", {"given.int": 7})),
    "step": _steps(Step(0, PREFILL, 1, 9, None, {}), Step(300, DECODE, 1, 9, "ValueError", lambda: STEP_ATTRIBUTES)),
    "module, operation and kernel of a step": _modules(FEW),
    "module of a plain forward": _modules(PLAIN),
    "modules from a template": _modules(*MANY),
}


Emitted = tuple[Mapping[str, Any], int]
"""Attributes of a span, and how many it has lost."""


class NoMeter:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self


class Sender:
    """Keeps packed spans, as the sender of the direct path would."""

    def __init__(self) -> None:
        self.packed: list[bytes] = []

    def offer(self, spans: bytes, count: int) -> int:
        self.packed.append(spans)
        return count


def recorder_on(provider: TracerProvider) -> SpanRecorder:
    """A recorder with the default settings, whose metrics go nowhere."""
    tracer, settings = provider.get_tracer("inferspan"), Settings()
    return SpanRecorder(settings, lambda: tracer, RequestMetrics(lambda: NoMeter(), settings), SpanWriter())


def send(records: Sequence[Any], *processors: SpanProcessor, sender: Sender | None = None, limits: SpanLimits | None = None) -> None:
    """Hand records over as the detail of one request.

    Args:
        records: phases, steps and batches of module calls.
        processors: processors of the provider.
        sender: takes packed spans; without, spans go through the provider.
        limits: limits of the provider.
    """
    provider = TracerProvider(shutdown_on_exit=False, span_limits=limits)
    for processor in processors:
        provider.add_span_processor(processor)
    recorder = recorder_on(provider)
    model = ModelInfo("m", "huggingface", "M", {semconv.DEVICE: "cuda:0"})
    scope: Any = recorder.start(RequestStart("generate", None, model, 0, False, {}), None)
    scope.sender = sender
    scope.detail(records)
    assert recorder.writer.flush(10)
    context.detach(scope.token)
    scope.token = None
    scope.end(RequestEnd(1000, None, {}))
    assert recorder.writer.flush(10)
    provider.shutdown()


def sdk_spans(records: Sequence[Any], limits: SpanLimits | None = None) -> list[Emitted]:
    """Spans of the records as the processors of the SDK get them."""
    exporter = InMemorySpanExporter()
    send(records, SimpleSpanProcessor(exporter), limits=limits)
    return [(dict(span.attributes or {}), span.dropped_attributes) for span in exporter.get_finished_spans()[:-1]]


def packed_spans(records: Sequence[Any], limits: SpanLimits | None = None) -> list[Emitted]:
    """Spans of the records as OTLP bytes, decoded."""
    sender = Sender()
    send(records, sender=sender, limits=limits)
    message = ExportTraceServiceRequest.FromString(protobuf.request(b"", b"", "", sender.packed))
    spans = message.resource_spans[0].scope_spans[0].spans
    return [({item.key: plain(item.value) for item in span.attributes}, span.dropped_attributes_count) for span in spans]


def session_file_spans(records: Sequence[Any], path: Path, limits: SpanLimits | None = None) -> list[Emitted]:
    """Spans of the records as they stand in a session file at ``path``."""
    send(records, SimpleSpanProcessor(SpanFileExporter(str(path))), limits=limits)
    blocks = [block for line in path.read_text().splitlines() for block in json.loads(line)["resourceSpans"]]
    spans = [span for block in blocks for scope in block["scopeSpans"] for span in scope["spans"]][:-1]
    return [
        ({item["key"]: plain(item["value"]) for item in span.get("attributes", ())}, span.get("droppedAttributesCount", 0)) for span in spans
    ]


def plain(value: Any) -> Any:
    """A value of OTLP, in protobuf or in its JSON form, as Python's."""
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind == "arrayValue":
            return tuple(plain(item) for item in content["values"])
        return int(content) if kind == "intValue" else content
    content = getattr(value, value.WhichOneof("value"))
    return tuple(plain(item) for item in content.values) if value.HasField("array_value") else content
