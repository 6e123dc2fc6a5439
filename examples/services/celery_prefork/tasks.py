"""Celery with its prefork pool: a task for a prompt, in the trace of its caller.

    celery -A tasks worker --concurrency 2

The message carries the trace context by hand; opentelemetry-instrumentation-celery does the same.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from celery import Celery
from opentelemetry import propagate, trace
from service_model import load

import inferspan

# The file system as broker, so that the example needs no server: a folder for the messages and one for the results.
FOLDER = Path(os.environ.get("CELERY_FOLDER", "celery-data"))
for name in ("queue", "processed", "control", "results"):
    (FOLDER / name).mkdir(parents=True, exist_ok=True)
app = Celery("tasks", broker="filesystem://", backend=f"file://{(FOLDER / 'results').absolute()}")
app.conf.broker_transport_options = {
    "data_folder_in": str(FOLDER / "queue"), "data_folder_out": str(FOLDER / "queue"), "processed_folder": str(FOLDER / "processed"),
    "control_folder": str(FOLDER / "control"),
}  # fmt: skip
model, tokenizer = load()
inferspan.instrument(model, tokenizer)


@app.task
def answer(prompt: str, carrier: dict[str, str]) -> list[object]:
    """Generate; the context of the caller is the parent."""
    with trace.get_tracer("celery").start_as_current_span("task answer", propagate.extract(carrier), kind=trace.SpanKind.CONSUMER):
        output = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=8, do_sample=False)
    return [os.getpid(), tokenizer.decode(output[0])]


if __name__ == "__main__":
    with trace.get_tracer("caller").start_as_current_span("caller", kind=trace.SpanKind.PRODUCER) as span:
        headers: dict[str, str] = {}
        propagate.inject(headers)
        found = [answer.delay(f"question {number}", headers) for number in range(4)]
        workers = {result.get(timeout=120)[0] for result in found}
        print(f"{span.get_span_context().trace_id:032x}", len(workers), flush=True)
