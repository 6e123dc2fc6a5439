"""What a receiver says of a request that it has taken: how many items it rejected, and its own words about them.

In come the body of an answer over HTTP or the message of one over gRPC, out comes a :class:`Taken`. Whatever the receiver sends, nothing
raises, and its words are one short line of printable characters.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from typing import Any

__all__ = ["LONGEST_BODY", "SERVICES", "Taken", "cleaned", "response_type", "taken_by", "taken_over_http"]

SERVICES = {"traces": ("trace", "Trace"), "metrics": ("metrics", "Metrics"), "logs": ("logs", "Logs")}
LONGEST_BODY = 65536
"""Bytes of an answer that are read."""
_LONGEST_TEXT = 300


@dataclass(frozen=True)
class Taken:
    """What a receiver says of a request that it answered with success."""

    rejected: int = 0
    """Items that it will not keep: spans, data points or log records."""
    message: str = ""
    """Its own words, about these or a warning."""
    failure: str = ""
    """Why it has taken nothing, although it says success."""


def cleaned(text: str) -> str:
    """A message of a receiver in one line of printable characters."""
    text = " ".join(text.split())
    return "".join(each if each.isprintable() else "?" for each in text)[:_LONGEST_TEXT]


def response_type(signal: str) -> Any:
    """The class of the message that answers a request of a signal."""
    module, name = SERVICES[signal]
    service = importlib.import_module(f"opentelemetry.proto.collector.{module}.v1.{module}_service_pb2")
    return getattr(service, f"Export{name}ServiceResponse")


def taken_by(response: Any) -> Taken:
    """What a response message says, whichever signal it is of."""
    try:
        part = response.partial_success
        count = next((value for field, value in part.ListFields() if field.name.startswith("rejected_")), 0)
        return Taken(max(0, int(count)), cleaned(part.error_message))
    except Exception:  # of a stand-in for a receiver
        return Taken()


def taken_over_http(signal: str, kind: str, body: bytes) -> Taken:
    """What the body of a success says.

    Args:
        signal: ``traces``, ``metrics`` or ``logs``.
        kind: its ``Content-Type``.
        body: at most ``LONGEST_BODY`` bytes of it.
    """
    if not body:
        return Taken()
    try:
        if "json" in kind:
            part = json.loads(body).get("partialSuccess") or {}
            count = next((int(value) for key, value in part.items() if key.startswith("rejected")), 0)
            return Taken(max(0, count), cleaned(str(part.get("errorMessage", ""))))
        return taken_by(response_type(signal).FromString(body))
    except Exception:  # whatever answers 200 with a page of its own, such as a web server
        if b"<html" in body.lower() or "html" in kind:
            return Taken(failure="it answers with a web page: that is no receiver for OTLP")
        return Taken()
