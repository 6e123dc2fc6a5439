"""OTLP JSON objects as exporters write them, for a display that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferspan import semconv

__all__ = ["END", "attribute", "metric", "module", "of_two", "request", "spans", "step"]

END = 1_800_000_000
"""Seconds since the epoch."""


def attribute(key: str, value: Any) -> dict[str, Any]:
    """One attribute, of a text, a number or a list of texts."""
    if isinstance(value, bool):
        return {"key": key, "value": {"boolValue": value}}
    if isinstance(value, int):
        return {"key": key, "value": {"intValue": str(value)}}
    if isinstance(value, float):
        return {"key": key, "value": {"doubleValue": value}}
    if isinstance(value, list):
        return {"key": key, "value": {"arrayValue": {"values": [{"stringValue": part} for part in value]}}}
    return {"key": key, "value": {"stringValue": value}}


def _span(name: str, begin: float, end: float, attributes: dict[str, Any], trace: str = "1", failed: bool = False) -> dict[str, Any]:
    return {
        "traceId": trace * 32,
        "spanId": "2" * 16,
        "name": name,
        "startTimeUnixNano": str(int(begin * 1e9)),
        "endTimeUnixNano": str(int(end * 1e9)),
        "attributes": [attribute(key, value) for key, value in attributes.items()],
        **({"status": {"code": 2}} if failed else {}),
    }


def request(end: float = END, seconds: float = 2.0, *, trace: str = "1", failed: bool = False, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The span of a request with 5 tokens in and 10 out."""
    attributes = {semconv.INPUT_TOKENS: 5, semconv.OUTPUT_TOKENS: 10, semconv.TTFT: 0.5, semconv.TPOT: 0.1, semconv.FINISH_REASONS: ["stop"]}
    return _span("chat tiny", end - seconds, end, {**attributes, **(more or {})}, trace, failed)


def module(name: str, seconds: float, *, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The span of a call of a module."""
    return _span(name, END - seconds, END, {semconv.MODULE_NAME: name, semconv.MODULE_TYPE: "Linear", **(more or {})})


def step(index: int, text: str, logprob: float, *, trace: str = "1") -> dict[str, Any]:
    """The span of a decode step with its token."""
    attributes = {semconv.STEP_INDEX: index, semconv.STEP_TOKEN_TEXTS: [text], semconv.LOGITS_CHOSEN_LOGPROB: logprob}
    return _span(semconv.SPAN_DECODE_STEP, END - 1, END, attributes, trace)


def of_two(text: str, own: str) -> list[dict[str, Any]]:
    """Step, phase and request that stand in a trace with others; ``own`` is a hexadecimal digit that makes the ids."""
    phase = _span(semconv.SPAN_DECODE, END - 1, END, {semconv.PHASE: semconv.SPAN_DECODE})
    found = [step(0, text, 0.0), phase, request(more={semconv.OUTPUT_TOKENS: 1})]
    ids = [f"{own}3", f"{own}2", f"{own}1"]
    for span, identity, parent in zip(found, ids, [*ids[1:], ""], strict=True):
        span |= {"spanId": identity * 8, "parentSpanId": parent * 8}
    return found


def spans(*found: dict[str, Any], service: str = "svc", scope: str = semconv.SCOPE) -> dict[str, Any]:
    """A line of a session file with spans."""
    resource = {"attributes": [attribute("service.name", service)]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": scope}, "spans": list(found)}]}]}


def metric(name: str, value: float, *, at: float = END, host: str = "node", instance: str = "1", more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A line of a session file with one point of a gauge."""
    resource = {"attributes": [attribute("host.name", host), attribute("service.instance.id", instance)]}
    point = {
        "timeUnixNano": str(int(at * 1e9)),
        "asDouble": float(value),
        "attributes": [attribute(key, part) for key, part in (more or {}).items()],
    }
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [{"name": name, "gauge": {"dataPoints": [point]}}]}]}]}
