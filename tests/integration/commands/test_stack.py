"""``inferspan stack`` with the real programs: telemetry arrives in every mode, and nothing is left when it is stopped."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.servers import PROGRAMS, Stack, eventually, post_json
from tests.stack.conftest import StackCommand
from tests.support.programs import need

pytestmark = pytest.mark.integration

TRACE, SPAN = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174"
# Short intervals, and every trace kept, where the gateway samples.
QUICK = {
    "OTELCOL_RED_INTERVAL": "1s",
    "OTELCOL_DECISION_WAIT": "1s",
    "OTELCOL_DECISION_WAIT_AFTER_ROOT": "1s",
    "OTELCOL_BASELINE_PERCENT": "100",
}


@pytest.fixture
def command(tmp_path: Path) -> Iterator[StackCommand]:
    """The command with the programs on PATH and without Grafana; skipped where a program is missing, unless it is required."""
    need(*PROGRAMS)
    stack = StackCommand(tmp_path, os.environ["PATH"])
    yield stack
    for process in stack.processes():
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """What ``inferspan bundle`` writes, with the one change that makes Prometheus fetch every second."""
    folder = tmp_path / "bundle"
    subprocess.run([sys.executable, "-m", "inferspan", "bundle", str(folder)], check=True, capture_output=True)
    file = folder / "collector-config" / "prometheus.yml"
    file.write_text(re.sub(r"scrape_interval: \d+s", "scrape_interval: 1s", file.read_text()))
    return folder


@pytest.mark.parametrize("mode", ["dev", "scrape", "fleet"])
def test_telemetry_arrives_and_nothing_is_left(command: StackCommand, bundle: Path, mode: str) -> None:
    """Up; a span and a metric sent by OTLP are in Jaeger and Prometheus; status is healthy; down ends all and frees every port."""
    code, out, err = command.up("--mode", mode, "--bundle", str(bundle), **QUICK)
    assert (code, err) == (0, ""), out
    assert ("a share of the others, OTELCOL_BASELINE_PERCENT" in out) == (mode == "fleet")
    code, status, _ = command("status", "--json")
    seen = json.loads(status)
    addresses = seen["addresses"]
    stack = Stack("", addresses["OTLP over HTTP"], addresses["Jaeger (traces)"], addresses["Prometheus (metrics)"], Path())
    assert (code, seen["healthy"], f"export OTEL_EXPORTER_OTLP_ENDPOINT={stack.http}" in out.splitlines()) == (0, True, True)

    _send(stack.http)
    assert [span["operationName"] for span in eventually(lambda: stack.trace(TRACE))] == ["chat tiny"]
    labels, value = eventually(lambda: stack.query('hw_gpu_utilization_ratio{service_name="stack-test"}')[0])
    assert (labels["hw_id"], value) == ("GPU-1", 0.5)
    eventually(lambda: stack.query('traces_span_metrics_calls_total{service_name="stack-test"} > 0')[0])
    # The collectors' own metrics are found at the ports of this stack.
    collectors = {"fleet": 2}.get(mode, 1)
    eventually(lambda: _equal([value for _, value in stack.query('up{job="otelcol"}')], [1.0] * collectors))

    assert command("down")[0] == 0
    assert command.left() == []
    ports = [int(port) for program in _programs(command) for port in program["ports"].values()]
    listening = {entry.laddr.port for entry in psutil.net_connections("tcp") if entry.status == psutil.CONN_LISTEN and entry.laddr}
    assert len(ports) >= 10 and not listening & set(ports)


@pytest.mark.parametrize(
    ("variable", "value", "words", "place"),
    [
        ("OTELCOL_GRPC_PORT", "abc", "lookup tcp/abc: unknown port", r"dev.yaml, line \d+ \(`endpoint`\): a port is a number"),
        ("OTELCOL_RED_INTERVAL", "soon", "'metrics_flush_interval' time: ", r"dev.yaml, line \d+ \(`metrics_flush_interval`\)"),
        ("JAEGER_OTLP", "nonsense", "address nonsense: missing port in address", r"dev.yaml, line \d+ \(`endpoint`\)"),
        ("JAEGER_QUERY_PORT", "77777", "address 77777: invalid port", r"jaeger.yaml, line \d+ \(`endpoint`\): a port is a number"),
    ],
)
def test_wrong_value_is_traced_to_its_variable(command: StackCommand, variable: str, value: str, words: str, place: str) -> None:
    """The program's own message, and ours: which variable, in which file and line; nothing is left running."""
    code, _, err = command.up(**{variable: value})
    assert code == 2 and words in err, err
    assert re.search(rf"^{variable}={value} \(default [^)]*\) is read by {place}", err, re.MULTILINE), err
    assert command.left() == []


def _send(endpoint: str) -> None:
    now = time.time_ns()
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "stack-test"}}]}
    span = {
        "traceId": TRACE, "spanId": SPAN, "name": "chat tiny", "kind": 1,
        "startTimeUnixNano": str(now - 1_000_000), "endTimeUnixNano": str(now),
        "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}],
    }  # fmt: skip
    point = {"timeUnixNano": str(now), "asDouble": 0.5, "attributes": [{"key": "hw.id", "value": {"stringValue": "GPU-1"}}]}
    metric = {"name": "hw.gpu.utilization", "unit": "1", "gauge": {"dataPoints": [point]}}
    post_json(f"{endpoint}/v1/traces", json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}))
    post_json(f"{endpoint}/v1/metrics", json.dumps({"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [metric]}]}]}))


def _programs(command: StackCommand) -> list[dict[str, Any]]:
    programs: list[dict[str, Any]] = json.loads((command.folder / "state.json").read_text())["programs"]
    return programs


def _equal(found: object, wanted: object) -> None:
    assert found == wanted
