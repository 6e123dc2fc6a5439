"""Whose conventions each scope follows: the schema of the core conventions stands on the device metrics and nowhere else."""

from __future__ import annotations

import time
from typing import Any

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import inferspan
from inferspan import semconv
from tests.cases.models import llama, prompt

CORE = "https://opentelemetry.io/schemas/1.44.0"
DEVICE = set(semconv.DEVICE_METRICS)


class _Tokenizer:
    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return "text"


def _schemas(reader: InMemoryMetricReader) -> dict[str, str]:
    """Schema of each metric that has been reported by now."""
    data = reader.get_metrics_data()
    return {
        metric.name: scope.schema_url
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.data.data_points
    }


def test_only_device_metrics_name_a_schema() -> None:
    """The published schema describes hw, system and process; the GenAI conventions have none that is verified, so requests name none."""
    reader, spans, logs = InMemoryMetricReader(), InMemorySpanExporter(), InMemoryLogRecordExporter()
    tracer_provider, meter_provider = TracerProvider(shutdown_on_exit=False), MeterProvider([reader], shutdown_on_exit=False)
    tracer_provider.add_span_processor(SimpleSpanProcessor(spans))
    logger_provider = LoggerProvider(shutdown_on_exit=False)
    logger_provider.add_log_record_processor(SimpleLogRecordProcessor(logs))
    model = llama()
    providers: Any = {"tracer_provider": tracer_provider, "meter_provider": meter_provider, "logger_provider": logger_provider}
    with inferspan.instrument(model, _Tokenizer(), nvml=False, allocator=False, capture_content="EVENT_ONLY", **providers):
        model.generate(prompt(1, 7), max_new_tokens=2, do_sample=False)
        inferspan.flush()
        schemas = _schemas(reader)
        until = time.monotonic() + 60
        while not schemas.keys() & DEVICE and time.monotonic() < until:
            time.sleep(0.1)
            schemas = _schemas(reader)
    meter_provider.shutdown()
    assert schemas.keys() & DEVICE
    assert {name: url for name, url in schemas.items() if name in DEVICE and url != CORE} == {}
    assert "gen_ai.server.request.duration" in schemas
    assert {name: url for name, url in schemas.items() if name not in DEVICE and url} == {}
    assert {span.instrumentation_scope.schema_url or "" for span in spans.get_finished_spans() if span.instrumentation_scope} == {""}
    assert {log.instrumentation_scope.schema_url or "" for log in logs.get_finished_logs() if log.instrumentation_scope} == {""}
