"""Session files of ranks and runs, written by hand, with figures that a person can check."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferspan import semconv

__all__ = ["BEGIN", "recording"]

BEGIN = 1_800_000_000
"""Seconds since the epoch."""


def _attributes(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    kinds = {int: "intValue", float: "doubleValue", str: "stringValue"}
    return [{"key": key, "value": {kinds[type(value)]: str(value) if type(value) is int else value}} for key, value in found.items()]


def recording(
    path: Path,
    *,
    rank: int | None = None,
    size: int | None = None,
    host: str = "node",
    seconds: float = 1.0,
    ahead: float = 0.0,
    requests: int = 3,
    power: float | None = None,
    more: Mapping[str, Any] | None = None,
    resource: Mapping[str, Any] | None = None,
    begin: float = BEGIN,
) -> Path:
    """Requests that begin every 10 s, with 10 tokens each; ``ahead`` is how far the clock is ahead."""
    process: dict[str, Any] = {"service.name": "svc", "host.name": host, "service.instance.id": f"{path.name}", **(resource or {})}
    process |= {} if rank is None else {semconv.RANK: rank}
    process |= {} if size is None else {semconv.WORLD_SIZE: size}
    spans = []
    for number in range(requests):
        start = begin + ahead + 10 * number
        attributes = {semconv.REQUEST_MODEL: "tiny", semconv.OUTPUT_TOKENS: 10, semconv.TTFT: seconds / 2, semconv.TPOT: seconds / 20, **(more or {})}
        trace, request = f"{hash((path.name, number)) & (2**128 - 1):032x}", f"{number + 1:016x}"
        phase = {semconv.PHASE: "decode"}
        for name, span, parent, begun, ended, own in (
            ("text_completion tiny", request, "", start, start + seconds, attributes),
            ("decode", f"{number + 100:016x}", request, start + seconds / 2, start + seconds, phase),
            ("decode_step", f"{number + 200:016x}", f"{number + 100:016x}", start + seconds / 2, start + seconds, {semconv.STEP_INDEX: 1}),
        ):
            spans.append({
                "traceId": trace, "spanId": span, "parentSpanId": parent, "name": name, "startTimeUnixNano": str(int(begun * 1e9)),
                "endTimeUnixNano": str(int(ended * 1e9)), "attributes": _attributes(own),
            })  # fmt: skip
    holder = {"attributes": _attributes(process)}
    lines: list[dict[str, Any]] = [{"resourceSpans": [{"resource": holder, "scopeSpans": [{"scope": {"name": semconv.SCOPE}, "spans": spans}]}]}]
    if power is not None:
        points = [
            {"timeUnixNano": str(int((begin + ahead + at) * 1e9)), "asDouble": power + at, "attributes": _attributes({semconv.HW_ID: "GPU-1"})}
            for at in (0, 10)
        ]
        metric = {"name": semconv.M_POWER, "unit": "W", "gauge": {"dataPoints": points}}
        lines.append({"resourceMetrics": [{"resource": holder, "scopeMetrics": [{"metrics": [metric]}]}]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
