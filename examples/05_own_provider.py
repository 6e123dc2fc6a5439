"""An application that has its own OpenTelemetry set-up: inferspan uses its providers, and the model's spans join its traces."""

from models import load
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import inferspan

exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
tracer_provider = TracerProvider()
tracer_provider.add_span_processor(SimpleSpanProcessor(exporter))
meter_provider = MeterProvider(metric_readers=[reader])

model, tokenizer = load()
inputs = tokenizer("Hello", return_tensors="pt")
with (
    inferspan.instrument(model, modules="none", tracer_provider=tracer_provider, meter_provider=meter_provider),
    tracer_provider.get_tracer("my.application").start_as_current_span("answer a question"),
):
    model.generate(**inputs, max_new_tokens=4, do_sample=False)

inferspan.flush()
spans = exporter.get_finished_spans()
children: dict[int, list] = {}
for span in sorted(spans, key=lambda span: span.start_time or 0):
    children.setdefault(span.parent.span_id if span.parent else 0, []).append(span)


def show(parent: int, depth: int) -> None:
    """Print the spans below a parent."""
    for span in children.get(parent, ()):
        print("  " * depth + span.name)
        show(span.context.span_id, depth + 1)


show(0, 0)
data = reader.get_metrics_data()
names = {metric.name for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics}
print(len(names), "metrics, among them", *sorted(name for name in names if name.startswith("gen_ai.server")))
meter_provider.shutdown()
