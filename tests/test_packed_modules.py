"""Module calls packed into bytes, one by one and by template: the same spans as the SDK makes and encodes of the same records."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, set_span_in_context

from inferspan import packed_modules, wire
from inferspan.module_template import Part
from inferspan.packed_modules import ModulePacker
from inferspan.records import ModelInfo, ModuleBatch, ModuleInfo, RequestStart
from inferspan.request_metrics import RequestMetrics
from inferspan.settings import Settings
from inferspan.span_parts import span_parts
from inferspan.span_writer import RequestSpan, SpanWriter

SHAPES: list[Any] = [
    (),
    (((1, 7, 64), "torch.float32"),),
    (((), "torch.int64"), ((2, 3), "torch.bfloat16")),
    *((((1, 1, 1, length), "torch.bool"),) for length in range(8)),
]
STATISTICS: list[Mapping[str, Any]] = [{}, {"inferspan.output.stat.mean": 0.5, "inferspan.output.stat.nan_count": 3, "long": "x" * 17_000}]


class _NoMeter:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self


class _Sink:
    """Takes what is offered, as the raw way out does."""

    def __init__(self) -> None:
        self.offers: list[tuple[bytes, int]] = []

    def offer(self, spans: bytes, count: int) -> int:
        self.offers.append((spans, count))
        return count


def _structure(draw: random.Random, count: int) -> list[tuple[int, int, ModuleInfo]]:
    """Number, parent and module of calls in the order in which they end, nested at random."""
    infos = [ModuleInfo(f"model.{n}", draw.choice(("Linear", "Größe")), draw.choice((None, n)), f"layer {n}") for n in range(5)]
    found: list[tuple[int, int, ModuleInfo]] = []
    stack: list[tuple[int, int, ModuleInfo]] = []
    number = 0
    while number < count or stack:
        if number < count and (not stack or draw.random() < 0.6):
            stack.append((number, stack[-1][0] if stack else draw.choice((-1, -1, 10**6)), draw.choice(infos)))
            number += 1
        else:
            found.append(stack.pop())
    return found


def _batch(draw: random.Random, structure: Sequence[tuple[int, int, ModuleInfo]], shapes: list[Any], step: int | None) -> ModuleBatch:
    """A pass of this structure; ``shapes`` change a little from pass to pass."""
    calls: list[Any] = []
    for place, (number, parent, info) in enumerate(structure):
        if draw.random() < 0.1:
            shapes[place] = draw.choice(SHAPES), draw.choice(SHAPES)
        start = draw.randrange(10**15)
        failure = draw.choice(("ValueError", "")) if draw.random() < 0.02 else None
        slot = draw.choice((0, 1, 7)) if draw.random() < 0.05 else None
        calls += (number, parent, info, start, start + draw.randrange(10**9), *shapes[place], failure, slot)
    timed = draw.choice((0.0, 0.0, 0.3, 1.0))
    device = {number: draw.random() for number, *_ in structure if draw.random() < timed}
    return ModuleBatch(step, draw.choice(("prefill", "decode")), 17 * 10**17, calls, dict(enumerate(STATISTICS)), device)


def _passes(seed: int) -> Iterator[ModuleBatch]:
    draw = random.Random(seed)
    for count in (1, 3, 15, 16, 40, 40, 2100 if seed == 0 else 130):
        structure = _structure(draw, count)
        shapes = [(draw.choice(SHAPES), draw.choice(SHAPES)) for _ in structure]
        for _ in range(6):
            yield _batch(draw, structure, shapes, draw.choice((None, 0, 1, 127, 128, 16_384)))


def _request(writer: SpanWriter, state: TraceState | None = None) -> tuple[RequestSpan, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer: Any = provider.get_tracer("inferspan")
    parent = set_span_in_context(NonRecordingSpan(SpanContext(5, 6, False, TraceFlags(1), state)))
    start = RequestStart("generate", None, ModelInfo("m", "huggingface", "M", {}), 0, False, {})
    request = RequestSpan(start, tracer.start_span("request", parent), RequestMetrics(lambda: _NoMeter(), Settings()))
    request.tracer, request.parts = tracer, span_parts(tracer)
    return request, exporter


def _comparable(spans: Sequence[Any]) -> list[Any]:
    """Spans without their random ids: parents are named by their place."""
    places = {span.span_id: place for place, span in enumerate(spans)}
    assert len(places) == len(spans)
    found = []
    for span in spans:
        plain = type(span)()
        plain.CopyFrom(span)
        parent = places.get(span.parent_span_id, span.parent_span_id)
        plain.ClearField("span_id")
        plain.ClearField("parent_span_id")
        if not plain.status.code:
            plain.ClearField("status")
        attributes = sorted(plain.attributes, key=lambda attribute: attribute.key)
        del plain.attributes[:]
        plain.attributes.extend(attributes)
        found.append((parent, plain))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_packed_spans_equal_the_encoders(seed: int) -> None:
    """Random passes, repeated with other times, shapes, failures, statistics and device times, are the SDK's spans message by message."""
    writer = SpanWriter()
    for batch in _passes(seed):
        request, exporter = _request(writer, TraceState([("vendor", "x:1")]) if seed == 1 else None)
        assert writer.put(request, [batch], 1) and writer.flush(10)
        expected = encode_spans(exporter.get_finished_spans()).resource_spans[0].scope_spans[0].spans
        sink = request.sink = _Sink()
        assert writer.put(request, [batch], 1) and writer.flush(10)
        data = wire.request(b"", wire.scope("s"), "", [spans for spans, _ in sink.offers])
        found = ExportTraceServiceRequest.FromString(data).resource_spans[0].scope_spans[0].spans
        assert _comparable(found) == _comparable(expected)
        assert sum(count for _, count in sink.offers) == len(found)


def _decode(count: int, step: int, infos: Sequence[ModuleInfo]) -> ModuleBatch:
    calls = [value for n in range(count) for value in (n, n - 1, infos[n], n, n + 1, SHAPES[1], SHAPES[1], None, None)]
    return ModuleBatch(step, "decode", 10, calls, {})


def _described(described: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return ("1",), ("float32",)


CONTEXT = SpanContext(7, 8, False, TraceFlags(1))


def _infos(count: int, model: str = "m") -> list[ModuleInfo]:
    return [ModuleInfo(f"{model}.{n}", "Linear", n, f"layer {n}") for n in range(count)]


def test_a_structure_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that comes once is not prepared; one that comes again is, once, and leaves as one object for each thousand spans."""
    made: list[int] = []

    class Counted(Part):
        def __init__(self, first: int, above: Any, *rest: Any) -> None:
            made.append(len(above))
            super().__init__(first, above, *rest)

    monkeypatch.setattr(packed_modules, "Part", Counted)
    packer, small, large = ModulePacker(_described), _infos(423), _infos(2500, "n")
    assert sum(count for _, count in packer.pack(CONTEXT, _decode(423, 0, small), 9)) == 423 and made == []
    for step in range(1, 200):
        assert [count for _, count in packer.pack(CONTEXT, _decode(423, step, small), 9)] == [423]
    assert made == [423]
    for step in range(3):
        pieces = [count for _, count in packer.pack(CONTEXT, _decode(2500, step, large), 9)]
    assert made == [423, 1024, 1024, 452] and pieces == [1024, 1024, 452]


def test_structures_are_bounded() -> None:
    """Of the passes of two hundred models only the last ones are remembered."""
    packer = ModulePacker(_described)
    for model in range(200):
        infos = _infos(423, f"model{model}")
        for step in range(3):
            for _ in packer.pack(CONTEXT, _decode(423, step, infos), 9):
                pass
    held = len(packer._structures)
    assert 10 <= held <= packed_modules.KEPT_CALLS // 423


def test_passes_that_never_repeat_are_packed_all_the_same() -> None:
    """A mixture of experts calls other modules at each step: no template, every span is there."""
    packer, draw, infos = ModulePacker(_described), random.Random(3), _infos(64)
    for step in range(20):
        chosen = sorted(draw.sample(range(64), 20))
        calls = [value for n in chosen for value in (n, -1, infos[n], n, n + 1, SHAPES[1], (), None, None)]
        (packed,) = packer.pack(CONTEXT, ModuleBatch(step, "decode", 10, calls, {}), 9)
        data = wire.request(b"", b"", "", [packed[0]])
        spans = ExportTraceServiceRequest.FromString(data).resource_spans[0].scope_spans[0].spans
        assert [span.name for span in spans] == [f"layer {n}" for n in chosen]
        assert {span.parent_span_id for span in spans} == {(9).to_bytes(8, "big")}
