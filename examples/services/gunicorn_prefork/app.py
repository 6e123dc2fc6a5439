"""A WSGI application, served by processes that gunicorn forks from one that has loaded the model.

    gunicorn --preload --workers 2 app:app

The server span is made by hand here: two lines read the client's ``traceparent``. opentelemetry-instrumentation-wsgi does the same.
"""

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

sys.path.insert(0, str(Path(__file__).parents[1]))

from opentelemetry import propagate, trace
from service_model import load

import inferspan

model, tokenizer = load()
inferspan.instrument(model, tokenizer)


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer ``/?prompt=...``."""
    carrier = {key[5:].replace("_", "-").lower(): value for key, value in environ.items() if key.startswith("HTTP_")}
    prompt = parse_qs(environ.get("QUERY_STRING", "")).get("prompt", ["hello"])[0]
    tracer = trace.get_tracer("gunicorn")
    with tracer.start_as_current_span(f"GET {environ['PATH_INFO']}", propagate.extract(carrier), kind=trace.SpanKind.SERVER):
        output = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=8, do_sample=False)
    start_response("200 OK", [("Content-Type", "text/plain"), ("X-Worker", str(os.getpid()))])
    return [tokenizer.decode(output[0]).encode()]
