"""A recording of every signal, and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

START = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
TRACE, OTHER = "1f" * 16, "2e" * 16

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def attribute(key: str, **value: Any) -> dict[str, Any]:
    """An attribute in OTLP JSON."""
    return {"key": key, "value": value}


RESOURCE = {"attributes": [attribute("service.name", stringValue="recorded"), attribute("process.pid", intValue="7")]}
SCOPE = {"name": "inferspan", "version": "0.1.0"}


def span(number: int, **fields: Any) -> dict[str, Any]:
    """A span that takes a second."""
    begin = START + number * SECOND
    return {
        "traceId": TRACE, "spanId": f"{number + 1:016x}", "name": f"step {number}", "kind": 1,
        "startTimeUnixNano": str(begin), "endTimeUnixNano": str(begin + SECOND), "status": {}, **fields,
    }  # fmt: skip


def spans_line(*spans: dict[str, Any]) -> dict[str, Any]:
    """A line of spans."""
    return {"resourceSpans": [{"resource": RESOURCE, "scopeSpans": [{"scope": SCOPE, "spans": list(spans)}], "schemaUrl": "https://schema"}]}


RICH_SPAN = span(
    1,
    parentSpanId=f"{1:016x}",
    flags=0x101,
    traceState="a=b",
    attributes=[
        attribute("text", stringValue="caf\u00e9 \ud83d\ude00"),
        attribute("whole", intValue=str(-(2**63))),
        attribute("share", doubleValue=0.25),
        attribute("none", doubleValue="NaN"),
        attribute("yes", boolValue=True),
        attribute("bytes", bytesValue="AAEC"),
        attribute("list", arrayValue={"values": [{"intValue": 1}, {"stringValue": "x"}, {}]}),
        attribute("map", kvlistValue={"values": [attribute("inner", kvlistValue={"values": []})]}),
    ],
    events=[{"timeUnixNano": str(START + SECOND), "name": "chosen", "attributes": [attribute("n", intValue="3")]}],
    links=[{"traceId": OTHER, "spanId": "ab" * 8, "attributes": [attribute("kind", stringValue="batch")]}],
    status={"code": 2, "message": "failed"},
)
EXEMPLAR = {"timeUnixNano": str(START + 2 * SECOND), "asDouble": 0.5, "traceId": TRACE, "spanId": f"{1:016x}"}
TIMES = {"startTimeUnixNano": str(START), "timeUnixNano": str(START + 3 * SECOND)}
METRICS = {
    "resourceMetrics": [
        {
            "resource": RESOURCE,
            "scopeMetrics": [
                {
                    "scope": SCOPE,
                    "metrics": [
                        {"name": "requests", "unit": "{request}", "sum": {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": [{**TIMES, "asInt": "5"}]}},
                        {"name": "level", "gauge": {"dataPoints": [{"timeUnixNano": TIMES["timeUnixNano"], "asDouble": 1.5}, {**TIMES, "asDouble": 2}]}},
                        {
                            "name": "duration",
                            "unit": "s",
                            "histogram": {
                                "aggregationTemporality": 2,
                                "dataPoints": [{**TIMES, "count": "2", "sum": 1.5, "bucketCounts": ["1", "1"], "explicitBounds": [1.0], "exemplars": [EXEMPLAR]}],
                            },
                        },
                        {
                            "name": "exponential",
                            "exponentialHistogram": {
                                "aggregationTemporality": 2,
                                "dataPoints": [{**TIMES, "count": "1", "sum": 4.0, "scale": 3, "positive": {"offset": 2, "bucketCounts": ["1"]}}],
                            },
                        },
                    ],
                }
            ],
        }
    ]
}
LOGS = {
    "resourceLogs": [
        {
            "resource": RESOURCE,
            "scopeLogs": [
                {
                    "scope": SCOPE,
                    "logRecords": [
                        {
                            "timeUnixNano": str(START + SECOND), "observedTimeUnixNano": str(START + 2 * SECOND), "severityNumber": 5,
                            "body": {"stringValue": "hello"}, "traceId": TRACE, "spanId": f"{1:016x}", "eventName": "gen_ai.client",
                        }
                    ],
                }
            ],
        }
    ]
}  # fmt: skip


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A file with spans, metrics of every kind and a log record; it ends 3 s after START."""
    path = tmp_path / "session.jsonl"
    lines = [spans_line(span(0), RICH_SPAN), METRICS, LOGS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def replay(tmp_path: Path) -> Command:
    """``inferspan replay`` in a process of its own."""

    def run(*arguments: object, stdin: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "INFERSPAN_"))}
        command = [sys.executable, "-m", "inferspan", "replay", *map(str, arguments)]
        return subprocess.run(command, env={**kept, **environ}, input=stdin, capture_output=True, text=True, timeout=300, check=False)

    return run
