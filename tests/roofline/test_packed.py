"""Figures of module calls on the direct OTLP path, as bytes."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import SpanContext, TraceFlags

from inferspan import semconv
from inferspan.capture.modules.recorder import CallLog
from inferspan.export import protobuf
from inferspan.records import ModuleBatch, ModuleCalls, ModuleInfo, PassFacts, PassRun, PhaseKey
from inferspan.roofline.costs import Cost
from inferspan.roofline.model import ModelCosts, ModulePart
from inferspan.roofline.peaks import Peaks
from inferspan.roofline.request import StepRoofline
from inferspan.spans.attributes import of_call
from inferspan.spans.packed.modules import ModulePacker

SHAPES = (((2, 1, 64), "torch.float32"),)
COUNT = 40
CONTEXT = SpanContext(7, 8, False, TraceFlags(1))
COSTS = ModelCosts(
    parts=tuple(ModulePart(f"m.{number}", Cost(flops=2 * 64 * 64, weights=64 * 64 * 4, moved=128)) for number in range(COUNT)),
    kind="decoder", peaks=Peaks(1e12, 1e11),
)  # fmt: skip


def _batch(step: int, infos: list[ModuleInfo], roofline: StepRoofline | None) -> ModuleBatch:
    calls = ModuleCalls((n, -1, infos[n], 1_000 * n, 1_000 * n + 700, SHAPES, SHAPES, None, None) for n in range(COUNT))
    return ModuleBatch(step, PhaseKey("decode", 0), 10, calls, {}, roofline=roofline)


def _attributes(packed: bytes) -> list[dict[str, Any]]:
    """Those of the spans in some packed ones."""
    spans = ExportTraceServiceRequest.FromString(protobuf.request(b"", b"", "", [packed])).resource_spans[0].scope_spans[0].spans
    return [{pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in span.attributes} for span in spans]


@pytest.mark.parametrize("passes", [1, 3], ids=["one by one", "template"])
def test_packed_calls_have_the_figures(passes: int) -> None:
    """A call has the same figures packed as in a span of the SDK, also where passes fill a template."""
    infos = [ModuleInfo(f"m.{number}", "Linear", number, f"layer {number}") for number in range(COUNT)]
    roofline = StepRoofline(COSTS, PassRun(2, 1, 9), PassFacts())
    packer = ModulePacker()
    for step in range(passes):
        batch = _batch(step, infos, roofline)
        packed = b"".join(piece for piece, _ in packer.pack(CONTEXT, batch, 9))
    found = _attributes(packed)
    keys = (semconv.DEVICE_FLOPS, semconv.DEVICE_BYTES, semconv.DEVICE_PEAK_SHARE, semconv.DEVICE_BOUND)
    wanted = [of_call(batch, row) for row in batch.calls.rows()]
    assert len(found) == COUNT
    for key in keys:
        assert [one.get(key) for one in found] == [one.get(key) for one in wanted]
    assert found[0][semconv.DEVICE_FLOPS] == 2 * 2 * 64 * 64


def test_columns_of_every_recorder_give_rows() -> None:
    """The C extension and its Python counterpart hand over the same columns."""
    log = CallLog()
    log.calls_left = 3
    info = ModuleInfo("m.0", "Linear", 0, "layer 0")
    log.enter(info, SHAPES, 5)
    log.leave(9, SHAPES, None)
    calls = log.cut()
    assert calls.columns().row(0) == next(iter(calls.rows()))
