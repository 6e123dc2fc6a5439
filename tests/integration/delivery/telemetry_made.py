"""Requests, metrics and log records as inferspan would send them, made by hand so that every one of them can be looked for at the end.

``request_spans`` gives the tree of one generate() in the order in which its spans end: modules, step, phases, request. Ids are drawn
anew each time; names and attributes are those of ``inferspan.semconv``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from inferspan import semconv

__all__ = ["attributes", "log_message", "metric_message", "new_trace", "request_spans", "span", "trace_message"]

SECOND = 1_000_000_000
SERVICE = {"service.name": "delivery", "service.instance.id": "delivery-1"}


def any_value(value: Any) -> AnyValue:
    """A plain value as OTLP has it."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, Mapping):
        return AnyValue(kvlist_value=KeyValueList(values=attributes(value)))
    if isinstance(value, list | tuple):
        return AnyValue(array_value=ArrayValue(values=[any_value(item) for item in value]))
    return AnyValue(string_value=value)


def attributes(plain: Mapping[str, Any]) -> list[KeyValue]:
    """A mapping as OTLP attributes."""
    return [KeyValue(key=key, value=any_value(value)) for key, value in plain.items()]


def new_trace() -> bytes:
    """A trace id."""
    return os.urandom(16)


def span(trace: bytes, name: str, parent: bytes, start: int, seconds: float, *, error: bool = False, **plain: Any) -> Span:
    """A span of kind internal; ``plain`` are attributes, by the names of the constants of ``semconv``."""
    return Span(
        trace_id=trace,
        span_id=os.urandom(8),
        parent_span_id=parent,
        name=name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start,
        end_time_unix_nano=start + int(seconds * SECOND),
        status=Status(code=Status.STATUS_CODE_ERROR, message="it failed") if error else Status(),
        attributes=attributes({getattr(semconv, key): value for key, value in plain.items()}),
    )


def request_spans(
    trace: bytes | None = None,
    *,
    seconds: float = 0.2,
    steps: int = 2,
    layers: int = 2,
    parent: bytes = b"",
    error: bool = False,
    **plain: Any,
) -> list[Span]:
    """The spans of one generate(), the request last; ``plain`` are attributes of the request."""
    trace = trace or new_trace()
    start = time.time_ns() - int(seconds * SECOND)
    common: dict[str, Any] = {"OPERATION_NAME": "chat", "REQUEST_MODEL": "tiny", "MODEL_NAME": "tiny", "BATCH_SIZE": 1, "TTFT": 0.05}
    root = span(trace, "chat tiny", parent, start, seconds, error=error, **{**common, **plain})
    names = {0: (semconv.SPAN_PREFILL, semconv.SPAN_PREFILL_STEP), 1: (semconv.SPAN_DECODE, semconv.SPAN_DECODE_STEP)}
    phases = [span(trace, names[number][0], root.span_id, start, seconds / 2, PHASE=names[number][0]) for number in names]
    found = []
    for index in range(steps):
        phase, name = phases[min(index, 1)], names[min(index, 1)][1]
        step = span(trace, name, phase.span_id, start, seconds / 2 / steps, STEP_INDEX=index, PHASE=phase.name)
        for layer in range(layers):
            place: dict[str, Any] = {"MODULE_NAME": f"model.layers.{layer}", "MODULE_TYPE": "DecoderLayer", "MODULE_LAYER_INDEX": layer}
            found.append(span(trace, f"layer {layer}", step.span_id, start, 0.001, STEP_INDEX=index, **place))
        found.append(step)
    return [*found, *phases, root]


def trace_message(spans: Iterable[Span], resource: Mapping[str, Any] = SERVICE) -> ExportTraceServiceRequest:
    """A request that carries spans."""
    message = ExportTraceServiceRequest()
    holder = message.resource_spans.add(resource=Resource(attributes=attributes(resource)))
    scope = holder.scope_spans.add()
    scope.scope.name = semconv.SCOPE
    scope.spans.extend(spans)
    return message


def metric_message(numbers: Sequence[int], name: str = "delivery.probe", **labels: str) -> ExportMetricsServiceRequest:
    """A request that carries a gauge with one series for each number."""
    message = ExportMetricsServiceRequest()
    holder = message.resource_metrics.add(resource=Resource(attributes=attributes(SERVICE)))
    metric = holder.scope_metrics.add().metrics.add(name=name)
    for number in numbers:
        point = metric.gauge.data_points.add(as_int=number, time_unix_nano=time.time_ns())
        point.attributes.extend(attributes({"number": str(number), **labels}))
    return message


def log_message(bodies: Iterable[Any], event: str = "", **plain: Any) -> ExportLogsServiceRequest:
    """A request that carries log records with these bodies."""
    message = ExportLogsServiceRequest()
    holder = message.resource_logs.add(resource=Resource(attributes=attributes(SERVICE)))
    records = holder.scope_logs.add().log_records
    for body in bodies:
        record = records.add(time_unix_nano=time.time_ns(), event_name=event, body=any_value(body))
        record.attributes.extend(attributes({getattr(semconv, key, key): value for key, value in plain.items()}))
    return message
