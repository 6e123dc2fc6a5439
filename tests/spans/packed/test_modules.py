"""Module calls packed into bytes: how often a structure is prepared, how much is kept, and in how many pieces spans leave."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import SpanContext, TraceFlags

from inferspan.export import protobuf
from inferspan.records import ModuleBatch, ModuleCalls, ModuleInfo, PhaseKey, Profiled
from inferspan.spans.packed import modules as packed_modules
from inferspan.spans.packed import recorded as recorded_passes
from inferspan.spans.packed.modules import ModulePacker
from inferspan.spans.packed.template import SpanTemplate
from tests.capture.modules.recorders import in_c, recorded_in_c

SHAPES = (((1, 7, 64), "torch.float32"),)


def _decode(count: int, step: int, infos: Sequence[ModuleInfo]) -> ModuleBatch:
    calls = ModuleCalls((n, n - 1, infos[n], n, n + 1, SHAPES, SHAPES, None, None) for n in range(count))
    return ModuleBatch(step, PhaseKey("decode", 0), 10, calls, {})


CONTEXT = SpanContext(7, 8, False, TraceFlags(1))


def _infos(count: int, model: str = "m") -> list[ModuleInfo]:
    return [ModuleInfo(f"{model}.{n}", "Linear", n, f"layer {n}") for n in range(count)]


def test_a_structure_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that comes once is not prepared; one that comes again is, once, and leaves as one object for each thousand spans."""
    made: list[int] = []

    class Counted(SpanTemplate):
        def __init__(self, first: int, above: Any, *rest: Any) -> None:
            made.append(len(above))
            super().__init__(first, above, *rest)

    monkeypatch.setattr(packed_modules, "SpanTemplate", Counted)
    packer, small, large = ModulePacker(), _infos(423), _infos(2500, "n")
    assert sum(count for _, count in packer.pack(CONTEXT, _decode(423, 0, small), 9)) == 423 and made == []
    for step in range(1, 200):
        assert [count for _, count in packer.pack(CONTEXT, _decode(423, step, small), 9)] == [423]
    assert made == [423]
    for step in range(3):
        pieces = [count for _, count in packer.pack(CONTEXT, _decode(2500, step, large), 9)]
    assert made == [423, 1024, 1024, 452] and pieces == [1024, 1024, 452]


@pytest.mark.parametrize("recorded", [False, pytest.param(True, marks=in_c)])
def test_structures_are_bounded(recorded: bool) -> None:
    """Of the passes of two hundred models only the last ones are remembered."""
    packer = ModulePacker()
    for model in range(200):
        infos = _infos(423, f"model{model}")
        for step in range(3):
            batch = _decode(423, step, infos)
            for _ in packer.pack(CONTEXT, batch._replace(calls=recorded_in_c(batch.calls)) if recorded else batch, 9):
                pass
    held = len(packer._recorded._templates if recorded else packer._structures)
    assert 10 <= held <= recorded_passes.TEMPLATE_CALLS // 423


@in_c
def test_the_work_in_python_does_not_grow_with_the_calls() -> None:
    """A pass that the C extension has recorded, and that has come before, is packed by as many functions of Python, whatever its size."""

    def functions(count: int) -> int:
        packer, infos, found = ModulePacker(), _infos(count), 0

        def seen(_: Any, event: str, __: Any) -> None:
            nonlocal found
            found += event == "call"

        for step in range(3):
            batch = _decode(count, step, infos)
            batch = batch._replace(calls=recorded_in_c(batch.calls))
            found = 0
            sys.setprofile(seen)
            pieces = [*packer.pack(CONTEXT, batch, 9)]
            sys.setprofile(None)
        assert [number for _, number in pieces] == [count]
        return found

    assert functions(1000) == functions(20) < 40


def test_passes_that_never_repeat_are_packed_all_the_same() -> None:
    """A mixture of experts calls other modules at each step: no template, every span is there."""
    packer, draw, infos = ModulePacker(), random.Random(3), _infos(64)
    for step in range(20):
        chosen = sorted(draw.sample(range(64), 20))
        calls = ModuleCalls((n, -1, infos[n], n, n + 1, SHAPES, (), None, None) for n in chosen)
        (packed,) = packer.pack(CONTEXT, ModuleBatch(step, PhaseKey("decode", 0), 10, calls, {}), 9)
        data = protobuf.request(b"", b"", "", [packed[0]])
        spans = ExportTraceServiceRequest.FromString(data).resource_spans[0].scope_spans[0].spans
        assert [span.name for span in spans] == [f"layer {n}" for n in chosen]
        assert {span.parent_span_id for span in spans} == {(9).to_bytes(8, "big")}


@pytest.mark.parametrize("count", [0, 3, 423])
def test_kernels_and_operations_hang_under_their_modules(count: int) -> None:
    """What a profiler window saw follows the module calls, one by one or from a template, each under its own parent; all are counted."""
    packer, infos = ModulePacker(), _infos(count)
    profiled = [Profiled(1000, count - 1, "aten::linear", 3, 5, {"inferspan.profiler.kind": "op"})]
    profiled += [Profiled(1001 + n, 1000 if n else -1, f"gemm{n}", n, n + 1, {"inferspan.profiler.kind": "kernel"}) for n in range(200)]
    for step in range(3):
        pieces = [*packer.pack(CONTEXT, _decode(count, step, infos)._replace(profiled=profiled), 9)]
        data = protobuf.request(b"", b"", "", [piece for piece, _ in pieces])
        spans = ExportTraceServiceRequest.FromString(data).resource_spans[0].scope_spans[0].spans
        assert len(spans) == count + 201 == sum(number for _, number in pieces) == len({span.span_id for span in spans})
        modules, (op, *kernels) = spans[:count], spans[count:]
        above = (9).to_bytes(8, "big")
        assert op.parent_span_id == (modules[-1].span_id if modules else above)
        assert [kernel.parent_span_id for kernel in kernels] == [above] + [op.span_id] * 199
        assert (op.name, op.start_time_unix_nano, op.end_time_unix_nano) == ("aten::linear", 13, 15)
        keys = {attribute.key: attribute.value for attribute in kernels[0].attributes}
        assert keys["inferspan.step.index"].int_value == step and keys["inferspan.phase"].string_value == "decode"
        assert keys["inferspan.profiler.kind"].string_value == "kernel"
