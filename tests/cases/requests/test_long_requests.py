"""Requests of many steps: what they hold in memory while they run, and that their detail leaves before they end."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest
import torch
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

import inferspan
from inferspan import semconv
from inferspan.capture.call import current
from inferspan.capture.generate import step_log
from inferspan.capture.generate.arguments import PassEnd
from inferspan.records import ModuleBatch, ModuleInfo
from inferspan.spans.recorder import LiveRequestSpan
from tests.cases import models
from tests.cases.telemetry import Telemetry

LIFTED = {"max_spans_per_trace": 50_000_000, "span_hard_cap": 50_000_000}


def test_module_calls_leave_while_the_request_runs(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a long request are handed over every few thousand calls, all but the newest, and every span has its parent."""
    monkeypatch.setattr(step_log, "LIVE_CALLS", 30)
    handed: list[int] = []
    detail = LiveRequestSpan.detail

    def counted(scope: LiveRequestSpan, records: Any) -> None:
        handed.append(sum(isinstance(record, ModuleBatch) for record in records))
        detail(scope, records)

    monkeypatch.setattr(LiveRequestSpan, "detail", counted)
    model = models.llama()
    telemetry.instrument(model, every_step=True, **LIFTED)
    with torch.no_grad():
        model.generate(models.prompt(), do_sample=False, max_new_tokens=20, min_new_tokens=20)
    telemetry.check()
    # Six modules a step: five steps each time, of which the newest waits for the next time.
    assert handed == [4, 5, 5, 5, 1]
    spans = telemetry.spans()
    names = {span.context.span_id: span.name for span in spans if span.context}
    assert len(spans) == 1 + 2 + 20 * 7
    assert {names[span.parent.span_id] for span in telemetry.modules() if span.parent} == {
        "prefill_step",
        "decode_step",
        "layer 0",
        "layer 1",
    }
    steps = {span.context.span_id: (span.attributes or {})[semconv.STEP_INDEX] for span in telemetry.steps() if span.context}
    outer = [span for span in telemetry.modules() if span.parent and span.parent.span_id in steps]
    assert len(outer) == 40 and all(
        (span.attributes or {})[semconv.STEP_INDEX] == steps[span.parent.span_id] for span in outer if span.parent
    )


class _Discard(SpanProcessor):
    seen = 0

    def on_end(self, span: Any) -> None:
        self.seen += 1


def _lost(reader: InMemoryMetricReader) -> int:
    """Spans that the queue had no room for, as the metrics count them."""
    data = reader.get_metrics_data()
    metrics = [one for block in data.resource_metrics for scope in block.scope_metrics for one in scope.metrics] if data else []
    points: list[Any] = [point for one in metrics if one.name == semconv.M_SPANS_DROPPED for point in one.data.data_points]
    return sum(point.value for point in points if point.attributes[semconv.DROP_REASON] == "queue_full")


def _held() -> int:
    """Bytes that code of ours has allocated and not let go of."""
    ours = tracemalloc.Filter(True, f"{Path(inferspan.__file__).parent}/*")
    return sum(one.size for one in tracemalloc.take_snapshot().filter_traces([ours]).statistics("filename"))


@pytest.mark.parametrize(
    ("steps", "mebibytes", "settings"),
    [(25_000, 16, {}), (1_500, 4, {"every_step": True, "modules": "all", **LIFTED})],
    ids=["default", "lifted"],
)
def test_memory_of_a_long_request(steps: int, mebibytes: int, settings: dict[str, Any]) -> None:
    """A quarter of 100,000 tokens holds less than a quarter of 64 MiB; with all modules of every step only what is on its way is held."""
    infos = [ModuleInfo(f"layers.{number}", "Linear", number, f"layer {number}") for number in range(24)]
    held: list[int] = []
    zero = torch.zeros(1, 1, dtype=torch.int64)

    def loop(self: Any, inputs: Any, **options: Any) -> Any:
        """A decoding loop that calls what the wrappers of a real one call, without a model in it."""
        request: Any = current.call
        assert request is not None
        call = request.adapter
        criteria = call.begin_loop(None, [])
        call.passes.helped = True
        assert criteria is not None
        for step in range(steps):
            call.steps.prepare()
            call.steps.begin(zero)
            for info in infos:
                if request.calls_left > 0:
                    now = perf_counter_ns()
                    request.enter(info, (), now)
                    request.leave(now)
            if call.ordinary:
                call.steps.end(None)
            else:
                call.end_pass(None, None, PassEnd(True, None, None))
            call.choose(call.run.loops[-1], zero.expand(1, step + 2), None)
            if step % (steps // 4) == steps // 4 - 1:
                held.append(_held())
        return zero.expand(1, steps + 1)

    discard, reader = _Discard(), InMemoryMetricReader()
    tracers, meters = TracerProvider(shutdown_on_exit=False), MeterProvider([reader], shutdown_on_exit=False)
    tracers.add_span_processor(discard)
    model = models.llama()
    # A class of its own: the loop must not stay on one that other tests share.
    model.__class__ = type("Looping", (type(model),), {"generate": loop})
    try:
        handle = inferspan.instrument(
            model, tracer_provider=tracers, meter_provider=meters, logits=False, nvml=False, host=False, allocator=False, **settings
        )
        tracemalloc.start()
        try:
            before = _held()
            model.generate(zero)
        finally:
            tracemalloc.stop()
            handle.uninstrument()
    finally:
        meters.shutdown()
    assert max(held) - before < mebibytes * 2**20
    assert discard.seen > (steps * len(infos) if settings else 1800)
