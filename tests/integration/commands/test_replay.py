"""A session file that is replayed: what the real servers have equals the file.

The recording is made without any server, aged by ten days, and sent by the command.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import RunProgram, plain_environment
from tests.integration.servers import Collector, Servers, Stack, eventually
from tests.replay.receivers import file_items, items_of, requests_of
from tests.support.programs import need

pytestmark = pytest.mark.integration

TEN_DAYS = 10 * 86400 * 10**9
_MOMENT = re.compile(r'("\w*[tT]imeUnixNano":")(\d+)')
FILES = """
exporters:
  file/json: {{path: "{json}", flush_interval: 100ms}}
  file/proto: {{path: "{proto}", format: proto, flush_interval: 100ms}}
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: "127.0.0.1:${{env:OTELCOL_GRPC_PORT}}"}}
      http: {{endpoint: "127.0.0.1:${{env:OTELCOL_HTTP_PORT}}"}}
extensions:
  health_check: {{endpoint: "127.0.0.1:${{env:OTELCOL_HEALTH_PORT}}"}}
service:
  extensions: [health_check]
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [file/json, file/proto]}}
    metrics: {{receivers: [otlp], exporters: [file/json, file/proto]}}
    logs: {{receivers: [otlp], exporters: [file/json, file/proto]}}
"""


def replay(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command."""
    command = [sys.executable, "-m", "inferspan", "replay", *map(str, arguments)]
    return subprocess.run(command, env=plain_environment(), capture_output=True, text=True, timeout=120, check=False)


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a session file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def spans(path: Path) -> list[dict[str, Any]]:
    """The spans of a session file."""
    found = [resource for line in lines(path) for resource in line.get("resourceSpans", ())]
    return [span for resource in found for scope in resource["scopeSpans"] for span in scope["spans"]]


@pytest.fixture(scope="module")
def recording(run_program: RunProgram) -> Callable[[str], Path]:
    """Makes a recording of a service, ten days old."""

    def record(service: str) -> Path:
        path = Path(run_program("commands/replay_job.py", OTEL_SERVICE_NAME=service)["session"])
        path.write_text(_MOMENT.sub(lambda found: f"{found[1]}{int(found[2]) - TEN_DAYS}", path.read_text()))
        return path

    return record


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_the_collector_receives_what_the_file_holds(stack: Stack, recording: Callable[[str], Path], protocol: str) -> None:
    """Every span, metric and log record, unchanged, over both protocols."""
    service = f"replayed-{protocol[:4]}"
    path = recording(service)
    address = stack.grpc if protocol == "grpc" else stack.http
    done = replay(path, "--endpoint", address, "--protocol", protocol)
    assert (done.returncode, done.stderr) == (0, "")
    expected = file_items(path)

    def received() -> None:
        assert items_of([request for line in stack.raw_lines(service) for request in requests_of(line)]) == expected

    eventually(received)


def test_jaeger_and_prometheus_have_the_recording(stack: Stack, recording: Callable[[str], Path]) -> None:
    """With ``--now`` the traces in Jaeger are those of the file, moved by one time, and Prometheus takes the metrics of ten days ago."""
    path = recording("replayed-now")
    assert replay(path, "--endpoint", stack.http, "--now").returncode == 0
    recorded = {span["spanId"]: span for span in spans(path)}
    trace_ids = {span["traceId"] for span in recorded.values()}

    def all_spans() -> dict[str, Any]:
        shown = {span["spanID"]: span for trace_id in trace_ids for span in stack.trace(trace_id)}
        assert shown.keys() == recorded.keys()
        return shown

    shown = eventually(all_spans)
    moved = {shown[number]["startTime"] - int(recorded[number]["startTimeUnixNano"]) // 1000 for number in recorded}
    assert max(moved) - min(moved) <= 1  # Jaeger counts microseconds
    assert min(moved) > 9 * 86400 * 10**6
    lengths = {number: (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) // 1000 for number, span in recorded.items()}
    assert all(abs(shown[number]["duration"] - length) <= 1 for number, length in lengths.items())
    names = {number: span["operationName"] for number, span in shown.items()}
    assert names == {number: span["name"] for number, span in recorded.items()}

    def counted() -> None:
        found = stack.query('sum(gen_ai_client_operation_duration_seconds_count{service_name="replayed-now"})')
        assert [value for _, value in found] == [2.0]

    eventually(counted)


def test_files_of_the_collector_are_replayed_alike(tmp_path: Path, stack: Stack, recording: Callable[[str], Path]) -> None:
    """What the file exporter of a real collector has written, as JSON and as protobuf, gives the same once more."""
    need("otelcol")
    path = recording("replayed-twice")
    collector = Collector()
    written = {"json": tmp_path / "out.json", "proto": tmp_path / "out.pb"}
    with Servers(tmp_path, plain_environment()) as servers:
        overlay = servers.written("files.yaml", FILES.format(**written))
        servers.collector("files", collector, (overlay,))
        assert replay(path, "--endpoint", collector.http).returncode == 0
    expected = file_items(path)
    assert file_items(written["json"]) == expected
    for kind, file in written.items():
        target = tmp_path / f"{kind}-again"
        target.mkdir()
        again = {"json": target / "out.json", "proto": target / "out.pb"}
        other = Collector()
        with Servers(target, plain_environment()) as servers:
            servers.collector("again", other, (servers.written("files.yaml", FILES.format(**again)),))
            done = replay(file, "--endpoint", f"http://{other.grpc}", "--protocol", "grpc")
        assert (done.returncode, done.stderr) == (0, "")
        assert file_items(again["json"]) == expected
