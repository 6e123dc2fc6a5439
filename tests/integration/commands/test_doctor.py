"""The doctor at real servers: its test span arrives, and what a server does not take is told."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.conftest import plain_environment
from tests.integration.servers import Stack, eventually

pytestmark = pytest.mark.integration


def doctor(*arguments: str, **environ: str) -> dict[str, Any]:
    """What the command says."""
    command = [sys.executable, "-m", "inferspan", "doctor", "--json", *arguments]
    done = subprocess.run(command, env={**plain_environment(), **environ}, capture_output=True, text=True, timeout=300, check=False)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_the_span_is_in_jaeger(stack: Stack, protocol: str) -> None:
    """Through the collector, in both protocols, with nothing to fix; metrics and logs get an empty request only."""
    service = f"doctored-{protocol[:4]}"
    address = stack.grpc if protocol == "grpc" else stack.http
    told = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=address, OTEL_EXPORTER_OTLP_PROTOCOL=protocol, OTEL_SERVICE_NAME=service)
    assert told["problems"] == []
    states = {finding["name"]: finding["state"] for finding in told["topics"]["endpoints"]}
    assert (states["traces"], states["metrics"], states["logs"]) == ("ok", "ok", "ok")

    def shown() -> None:
        names = [span["operationName"] for trace in stack.search(service=service, lookback="1h") for span in trace["spans"]]
        assert names == ["inferspan doctor"]

    eventually(shown)
    assert [list(line) for line in stack.raw_lines(service)] == [["resourceSpans"]]


def test_ports_of_a_real_collector_are_told_apart(stack: Stack) -> None:
    """Each speaks one protocol, and the other one has its fix."""
    for address, protocol, fix in (
        (stack.grpc, "http/protobuf", "set OTEL_EXPORTER_OTLP_PROTOCOL=grpc,"),
        (stack.http, "grpc", "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf,"),
    ):
        told = doctor("--no-send", OTEL_EXPORTER_OTLP_ENDPOINT=address, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
        assert [finding["fix"].startswith(fix) for finding in told["problems"]] == [True]


def test_prometheus_takes_metrics_alone(stack: Stack) -> None:
    """An address of Prometheus as that of all signals: it has no receiver for spans."""
    told = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=f"{stack.prometheus}/api/v1/otlp")
    (finding,) = told["problems"]
    assert finding["name"] == "traces"
    assert "404: it has no receiver for OTLP at this path" in finding["value"]
