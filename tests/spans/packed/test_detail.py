"""Detail of requests as bytes: the same spans as the SDK makes and encodes of the same records."""

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
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, use_span

from inferspan import guard
from inferspan.export import protobuf
from inferspan.metrics.requests import RequestMetrics
from inferspan.records import Attributes, ModelInfo, ModuleBatch, ModuleCalls, ModuleInfo, ModuleStage, Phase, RequestStart, Step
from inferspan.settings import Settings
from inferspan.spans.packed.recorded import RecordedPasses
from inferspan.spans.recorder import SpanRecorder
from inferspan.spans.request import RequestSpan
from inferspan.spans.writer import SpanWriter
from tests.capture.modules.recorders import in_c, recorded_in_c
from tests.spans.outputs import DECODE, PREFILL

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
    stages = (None, None, ModuleStage("vision_encode", "image", "cuda:1"), ModuleStage("fusion"))
    kinds = ("Linear", "Größe")
    infos = [ModuleInfo(f"model.{n}", draw.choice(kinds), draw.choice((None, n)), f"layer {n}", draw.choice(stages)) for n in range(5)]
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
        calls.append((number, parent, info, start, start + draw.randrange(10**9), *shapes[place], failure, slot))
    timed = draw.choice((0.0, 0.0, 0.3, 1.0))
    device = {number: draw.random() for number, *_ in structure if draw.random() < timed}
    tokens = {number: draw.randrange(1, 10**6) for number, _, info in structure if info.stage is not None and draw.random() < 0.5}
    phase = draw.choice((PREFILL, DECODE))
    return ModuleBatch(step, phase, 17 * 10**17, ModuleCalls(calls), dict(enumerate(STATISTICS)), device, tokens=tokens)


def _passes(seed: int) -> Iterator[ModuleBatch]:
    draw = random.Random(seed)
    for count in (1, 3, 15, 16, 40, 40, 1500 if seed == 0 else 130):
        structure = _structure(draw, count)
        shapes = [(draw.choice(SHAPES), draw.choice(SHAPES)) for _ in structure]
        for _ in range(4):
            yield _batch(draw, structure, shapes, draw.choice((None, 0, 1, 127, 128, 16_384)))


class _Pipeline:
    """A recorder on a provider of the SDK, and requests on it that go either way."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        settings = Settings()
        self.dropped: list[int] = []
        metrics = RequestMetrics(lambda: _NoMeter(), settings)
        metrics.dropped = lambda count, reason: self.dropped.append(count)  # type: ignore[method-assign]
        self.recorder = SpanRecorder(settings, lambda: provider.get_tracer("inferspan"), metrics, SpanWriter())

    @staticmethod
    def other(number: int) -> Any:
        """The span of another request, as steps that requests share are linked to it."""
        start = RequestStart("generate", None, ModelInfo("m", "huggingface", "M"), 0, False, {}, attached=False)
        return RequestSpan(start, NonRecordingSpan(SpanContext(7, 8 + number, False, TraceFlags(1))), RequestMetrics(_NoMeter, Settings()))

    def send(self, records: Sequence[Any], sink: _Sink | None, state: TraceState | None = None) -> list[str]:
        """Spans of the records, in a form to be compared; they go by the sink if there is one."""
        start = RequestStart("generate", None, ModelInfo("m", "huggingface", "M", {"inferspan.device.id": "cpu"}), 0, False, {})
        with use_span(NonRecordingSpan(SpanContext(5, 6, False, TraceFlags(1), state))):
            scope: Any = self.recorder.start(start, None)
            self.recorder.writer.flush(10)
            scope.sender = sink
            scope.detail(records)
            assert self.recorder.writer.flush(10)
            from opentelemetry import context

            context.detach(scope.token)
        if sink is None:
            spans = self.exporter.get_finished_spans()
            self.exporter.clear()
            found = list(encode_spans(spans).resource_spans[0].scope_spans[0].spans)
        else:
            assert not self.exporter.get_finished_spans()
            data = protobuf.request(b"", protobuf.scope("s"), "", [packed for packed, _ in sink.offers])
            found = list(ExportTraceServiceRequest.FromString(data).resource_spans[0].scope_spans[0].spans)
            assert sum(count for _, count in sink.offers) == len(found)
        names = {scope.context.span_id: "request", **{scope.above_in(phase): phase.name for phase in (PREFILL, DECODE)}}
        names |= {scope.step_id(record.step): "step" for record in records if isinstance(record, ModuleBatch) and record.step is not None}
        return _comparable(found, names)


def _comparable(spans: Sequence[Any], names: Mapping[int, str]) -> list[str]:
    """Spans without their random ids, as text, in which one NaN equals another: parents are named by their place, or what they are."""
    places = {span.span_id: place for place, span in enumerate(spans)}
    assert len(places) == len(spans)
    found = []
    for span in spans:
        plain = type(span)()
        plain.CopyFrom(span)
        parent = places.get(span.parent_span_id)
        above = names[int.from_bytes(span.parent_span_id, "big")] if parent is None else parent
        plain.ClearField("span_id")
        plain.ClearField("parent_span_id")
        if not plain.status.code:
            plain.ClearField("status")
        attributes = sorted(plain.attributes, key=lambda attribute: attribute.key)
        del plain.attributes[:]
        plain.attributes.extend(attributes)
        found.append(f"{above}: {plain}")
    return found


@in_c
@pytest.mark.parametrize("seed", range(3))
def test_modules_recorded_in_c_equal_the_encoders(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same random passes from the C extension, which fills in those that come again."""
    filled: list[int] = []
    fill = RecordedPasses.fill

    def counted(self: RecordedPasses, found: Any, head: Any, batch: ModuleBatch, above: int) -> Iterator[tuple[bytes, int]]:
        filled.append(len(batch.calls))
        return fill(self, found, head, batch, above)

    monkeypatch.setattr(RecordedPasses, "fill", counted)
    pipeline = _Pipeline()
    state = TraceState([("vendor", "x:1")]) if seed == 1 else None
    for batch in _passes(seed):
        for plain in (batch, batch._replace(tokens={})):
            in_c_code = plain._replace(calls=recorded_in_c(plain.calls))
            assert pipeline.send([in_c_code], _Sink(), state) == pipeline.send([plain], None, state)
    assert {16, 40} <= set(filled)


@pytest.mark.parametrize("seed", range(3))
def test_modules_equal_the_encoders(seed: int) -> None:
    """Random passes, repeated with other times, shapes, failures, statistics and device times, are the SDK's spans message by message."""
    pipeline = _Pipeline()
    state = TraceState([("vendor", "x:1")]) if seed == 1 else None
    for batch in _passes(seed):
        expected = pipeline.send([batch], None, state)
        assert pipeline.send([batch], _Sink(), state) == expected


def _attributes(draw: random.Random) -> Attributes:
    values: dict[str, Any] = {
        "double": draw.choice((0.0, -1.5, 1e300, float("nan"))),
        "small": draw.choice((0, 1, 127)),
        "medium": draw.choice((128, 129, 16_383)),
        "large": draw.choice((16_384, 2**62, -1, -(2**63))),
        "flag": draw.choice((True, False)),
        "text": draw.choice(("", "Größe", "x" * 500)),
        "texts": draw.choice((("1x2", "3"), ["1x2", "3"], [])),
        "ints": draw.choice(((1, 2), [1, 2], (1,))),
        "doubles": draw.choice(((1.0, 2.0), [1.0, 2.0], (1.0,))),
        "flags": draw.choice(((True,), [True, False])),
    }
    keys = draw.sample(sorted(values), draw.randrange(len(values)))
    return {"one": draw.choice((1, 1.0, True, "1")), **{key: values[key] for key in keys}}


@pytest.mark.parametrize("state", [None, TraceState([("vendor", "x:1"), ("other", "2")])])
def test_phases_and_steps_equal_the_encoders(state: TraceState | None) -> None:
    """Phases and steps with attributes and links, and failed ones, are the SDK's spans."""
    draw = random.Random(0)
    pipeline, sink = _Pipeline(), _Sink()
    others = [pipeline.other(number) for number in range(3)]
    records: list[Any] = []
    for number in range(300):
        attributes = _attributes(draw)
        start = draw.randrange(1000, 2000)
        failure = draw.choice((None, None, None, "ValueError", ""))
        late = draw.choice((attributes, lambda attributes=attributes: attributes))
        records.append(Step(number, draw.choice((PREFILL, DECODE)), start, start + draw.randrange(900), failure, late, links=others[: draw.randrange(4)]))
    records += [Phase(PREFILL, 900, 1200, None, {}), Phase(DECODE, 1200, 2900, "ValueError", {"a": "b"})]
    expected = pipeline.send(records, None, state)
    found = pipeline.send(records, sink, state)
    assert found == expected
    assert len(sink.offers) == -(-302 // 32)


def test_a_span_that_cannot_be_packed_costs_itself(contained: list[guard.Swallowed]) -> None:
    """A value that OTLP has no type for costs its span and no other."""
    records = [Step(number, DECODE, 1000, 1100, None, {"bad": 1j if number == 1 else 1}) for number in range(3)]  # type: ignore[dict-item]
    sink = _Sink()
    assert len(_Pipeline().send(records, sink)) == 2
    assert [(error.place, error.kind) for error in contained] == [("span hand-over", "TypeError")]
    contained.clear()


def test_refused_spans_are_counted() -> None:
    """What the sink does not take is counted as dropped, steps and modules alike."""

    class Full(_Sink):
        def offer(self, spans: bytes, count: int) -> int:
            super().offer(spans, count)
            return 1

    draw = random.Random(1)
    structure = _structure(draw, 20)
    batch = _batch(draw, structure, [((), ()) for _ in structure], 1)
    pipeline = _Pipeline()
    pipeline.send([batch, *(Step(number, DECODE, 1000, 1100, None, {}) for number in range(40))], Full())
    assert pipeline.dropped == [19, 31, 7]
