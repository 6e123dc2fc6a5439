"""What the tests of hard situations listen with: providers of their own, everything emitted, and one check over all of it.

``Telemetry.check`` holds the rules that no situation may break: each span that began has ended, children lie in their trace and, but for
kernels of a profiler window, inside their parents, every value can be exported, nothing is left current, OpenTelemetry had nothing to
complain about, and the spans of a request that were made and those that were left out are what its budget allows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

import inferspan
from inferspan import semconv

__all__ = ["Telemetry"]


class _Complaints(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name}: {record.getMessage()}")


class _Ledger(SpanProcessor):
    """Spans that have begun and not ended."""

    def __init__(self) -> None:
        self.open: dict[int, Span] = {}

    def on_start(self, span: Span, parent_context: otel_context.Context | None = None) -> None:
        assert span.context is not None
        self.open[span.context.span_id] = span

    def on_end(self, span: ReadableSpan) -> None:
        assert span.context is not None
        self.open.pop(span.context.span_id, None)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here; the method of an old SDK's base class returns nothing, which the provider takes for a failure."""
        return True


class Telemetry:
    """Providers, and what has come out of them.

    Args:
        sampler: of the tracer provider.
        queued: whether processors only queue spans, as in a service; requests then end off the thread of the call.
    """

    def __init__(self, sampler: Sampler = ALWAYS_ON, *, queued: bool = False) -> None:
        self._exporter, self.reader, self._ledger = InMemorySpanExporter(), InMemoryMetricReader(), _Ledger()
        self.tracer_provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        if queued:
            self.tracer_provider.add_span_processor(BatchSpanProcessor(self._exporter))
        else:
            self.tracer_provider.add_span_processor(self._ledger)
            self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self._complaints = _Complaints()
        self._handles: list[inferspan.Handle] = []
        logging.getLogger("opentelemetry").addHandler(self._complaints)
        logging.getLogger("inferspan").addHandler(self._complaints)

    def instrument(self, model: Any, tokenizer: Any = None, **settings: Any) -> inferspan.Handle:
        """Instrument ``model`` with these providers and without the samplers."""
        settings = {"nvml": False, "host": False, "allocator": False, **settings}
        handle = inferspan.instrument(
            model, tokenizer, tracer_provider=self.tracer_provider, meter_provider=self.meter_provider, **settings
        )
        self._handles.append(handle)
        return handle

    def close(self) -> None:
        """Detach everything and let go of the logs."""
        for handle in self._handles:
            handle.uninstrument()
        for name in ("opentelemetry", "inferspan"):
            logging.getLogger(name).removeHandler(self._complaints)

    # ------------------------------------------------------------------------------------------------------------ spans
    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        """Everything that has ended so far, by start; at the same time, what contains comes first."""
        inferspan.flush()
        self.tracer_provider.force_flush()
        found = sorted(self._exporter.get_finished_spans(), key=lambda span: (span.start_time or 0, -(span.end_time or 0), span.parent is not None))
        return [span for span in found if name is None or span.name == name]

    def roots(self) -> list[ReadableSpan]:
        """Spans without a parent."""
        return [span for span in self.spans() if span.parent is None]

    def requests(self, *, nested: bool | None = False) -> list[ReadableSpan]:
        """Spans of ``generate()`` calls; those inside others only on demand (``None``: all)."""
        found = [span for span in self.spans() if semconv.OPERATION_NAME in (span.attributes or {})]
        return [span for span in found if nested is None or bool((span.attributes or {}).get(semconv.NESTED)) is nested]

    def forwards(self) -> list[ReadableSpan]:
        """Spans of plain forward passes."""
        return [span for span in self.spans() if span.name.split()[0] == semconv.SPAN_FORWARD]

    def modules(self) -> list[ReadableSpan]:
        """Spans of module calls."""
        return [span for span in self.spans() if semconv.MODULE_NAME in (span.attributes or {})]

    def steps(self) -> list[ReadableSpan]:
        """Spans of forward passes of generating models, by number."""
        found = [span for span in self.spans() if span.name in (semconv.SPAN_PREFILL_STEP, semconv.SPAN_DECODE_STEP)]
        return sorted(found, key=lambda span: int((span.attributes or {})[semconv.STEP_INDEX]))  # type: ignore[arg-type]

    def only(self, found: Iterable[ReadableSpan] | None = None) -> dict[str, Any]:
        """Attributes of the one span in ``found``, by default the one request."""
        (span,) = self.requests() if found is None else found
        return dict(span.attributes or {})

    def usage(self) -> list[tuple[Any, Any]]:
        """Input and output tokens of each request that is not nested."""
        attributes = [span.attributes or {} for span in self.requests()]
        return [(one.get(semconv.INPUT_TOKENS), one.get(semconv.OUTPUT_TOKENS)) for one in attributes]

    def metric_sum(self, name: str, **labels: Any) -> float:
        """Sum over the data points of a metric whose attributes hold ``labels`` (dots in names written as two underscores)."""
        wanted = {key.replace("__", "."): value for key, value in labels.items()}
        data = self.reader.get_metrics_data()
        total = 0.0
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points if metric.name == name else ():
                        attributes = point.attributes or {}
                        if all(attributes.get(key) == value for key, value in wanted.items()):
                            total += point.sum if isinstance(point, HistogramDataPoint) else point.value  # type: ignore[union-attr]
        return total

    def metrics(self) -> dict[str, list[tuple[str, Any]]]:
        """What each metric says, by its attributes: the number of values of a histogram, else the value, unless that is a time."""
        data = self.reader.get_metrics_data()
        found: dict[str, list[tuple[str, Any]]] = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    rows = found.setdefault(metric.name, [])
                    for point in metric.data.data_points:
                        value: Any = point.count if isinstance(point, HistogramDataPoint) else None
                        if value is None and metric.unit != "s":
                            value = point.value  # type: ignore[union-attr]
                        rows.append((str(sorted((point.attributes or {}).items())), value))
                    rows.sort()
        return found

    # ------------------------------------------------------------------------------------------------------------ rules
    def check(self, *, complaints: bool = False) -> None:
        """Fail if what came out breaks a rule.

        Args:
            complaints: whether warnings in the log are part of the situation.
        """
        spans = {span.context.span_id: span for span in self.spans() if span.context is not None}
        assert len(spans) == len(self.spans()), "two spans have one id"
        assert not self._ledger.open, f"never ended: {[span.name for span in self._ledger.open.values()]}"
        for span in spans.values():
            self._check_place(span, spans)
            for bag in (span.attributes or {}, *(event.attributes or {} for event in span.events)):
                for key, value in bag.items():
                    _check_value(f"{span.name}: {key}", value)
        if not complaints:
            assert not self._complaints.lines, self._complaints.lines[:3]
        assert trace.get_current_span() is trace.INVALID_SPAN, "a span was left current"

    @staticmethod
    def _check_place(span: ReadableSpan, spans: dict[int, ReadableSpan]) -> None:
        assert span.start_time is not None and span.end_time is not None and span.context is not None
        assert span.start_time <= span.end_time, span.name
        if span.parent is None:
            return
        parent = spans.get(span.parent.span_id)
        assert parent is not None, f"{span.name}: its parent was never exported"
        assert parent.context is not None and parent.start_time is not None and parent.end_time is not None
        assert parent.context.trace_id == span.context.trace_id, span.name
        if (span.attributes or {}).get(semconv.PROFILER_KIND, "op") != "op":
            return  # the device runs a kernel when it comes to it
        if span.name == semconv.SPAN_BACKWARD:
            assert parent.start_time <= span.start_time, "a backward pass begins before its forward pass"
            return  # it comes after that
        assert parent.start_time <= span.start_time and span.end_time <= parent.end_time, f"{span.name} sticks out of {parent.name}"


def _check_value(place: str, value: object) -> None:
    parts = value if isinstance(value, tuple | list) else (value,)
    assert len({type(part) for part in parts}) <= 1, f"{place} is mixed: {value!r}"
    for part in parts:
        assert type(part) in (bool, int, float, str), f"{place}={part!r} is a {type(part).__name__}"
        assert not isinstance(part, float) or math.isfinite(part), f"{place}={part}"
        assert not isinstance(part, int) or -(2**63) <= part < 2**63, f"{place}={part}"
