"""What costs are compared with: a span of the SDK, and ``torch.logsumexp`` of a row of logits."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["logit_lines", "sdk_span_ms"]

SPANS = 60
ROWS = 400


def sdk_span_ms() -> float:
    """CPU time of the thread, in milliseconds, to start and end a span of the SDK with ten attributes, behind 10 ms of other work each time."""
    import torch
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

        def shutdown(self) -> None:
            """Nothing is open."""

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    tracer, weights, took = provider.get_tracer("benchmark"), torch.randn(256, 256), []
    try:
        for _ in range(SPANS):
            until = time.perf_counter() + 0.01
            while time.perf_counter() < until:
                weights @ weights
            begun = time.thread_time()
            span = tracer.start_span("request", attributes={"model": "m"})
            span.set_attributes({f"attribute {number}": number for number in range(10)})
            span.end()
            took.append(time.thread_time() - begun)
    finally:
        provider.shutdown()
    return 1000 * statistics.median(took)


def logit_lines(lines: Sequence[Mapping[str, Any]], *, cuda: bool) -> list[dict[str, Any]]:
    """What statistics of logits cost a step, beside a ``torch.logsumexp`` of the same row: default settings against those without logits."""
    import torch

    found = []
    by_model: dict[str, dict[str, Mapping[str, Any]]] = {}
    for line in lines:
        if line["model"].startswith("vocabulary ") and "problem" not in line:
            by_model.setdefault(line["model"], {})[line["setting"]] = line
    for model, settings in by_model.items():
        if not {"default", "no logits"} <= settings.keys():
            continue
        default, without = settings["default"], settings["no logits"]
        size = int(model.removeprefix("vocabulary "))
        row, took = torch.randn(1, size, device="cuda" if cuda else "cpu"), []
        for _ in range(ROWS):
            begun = time.thread_time()
            torch.logsumexp(row, -1)
            took.append(time.thread_time() - begun)
        floor = 1e6 * statistics.median(took)
        step = 1000 * (default["thread"]["added"] - without["thread"]["added"]) / default["steps"]
        found.append({"model": f"{size:,}", "step": step, "logsumexp": floor, "times": step / floor})
    return found
