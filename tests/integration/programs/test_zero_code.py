"""Zero code against a real collector: own providers, a host's SDK and ``opentelemetry-instrument``, over gRPC and HTTP."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferspan import semconv
from inferspan.stack.processes import Reference
from inferspan.stack.state import State
from inferspan.stack.terminal import addresses
from tests.integration.conftest import plain_environment
from tests.integration.servers import Stack, eventually
from tests.integration.spans_seen import Seen, from_otlp
from tests.zero_code.programs import GENERATE, PATH, metadata

pytestmark = pytest.mark.integration

HOST = """\
import sys
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
if sys.argv[1] == "grpc":
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
else:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))
with trace.get_tracer("host").start_as_current_span("host"):
    answer()
"""
INSTRUMENT = "import sys; from opentelemetry.instrumentation.auto_instrumentation import run; sys.exit(run())"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("way", ["own providers", "the host's SDK", "opentelemetry-instrument"])
def test_request_arrives(stack: Stack, tmp_path: Path, way: str, protocol: str) -> None:
    """A request of an unchanged program arrives at the collector whole, once, with its metrics."""
    service = f"zero-{way.split()[0].strip('the')}-{protocol[:4]}".replace("'", "")
    command, path, program = [sys.executable, "-m", "inferspan", "run", "app.py"], PATH, GENERATE + "answer()\n"
    if way == "the host's SDK":
        command, program = [*command, protocol], GENERATE + HOST
    elif way == "opentelemetry-instrument":
        if importlib.util.find_spec("opentelemetry.distro") is None:
            pytest.skip("opentelemetry-distro is not installed")
        command = [sys.executable, "-c", INSTRUMENT, sys.executable, "app.py"]
        path = os.pathsep.join((str(metadata(tmp_path / "metadata")), PATH))
    (tmp_path / "app.py").write_text(program)
    environment = plain_environment() | {
        "PYTHONPATH": path,
        "OTEL_SERVICE_NAME": service,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_ENDPOINT": stack.grpc if protocol == "grpc" else stack.http,
        "OTEL_LOGS_EXPORTER": "none",
    }
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr

    def arrived() -> list[Seen]:
        lines = stack.raw_lines(service)
        assert any("resourceMetrics" in line and semconv.M_SERVER_DURATION in str(line) for line in lines)
        found = from_otlp(lines)
        assert found
        return found

    spans = eventually(arrived)
    requests = [span for span in spans if semconv.OPERATION_NAME in span.attributes]
    assert [span.attributes[semconv.OUTPUT_TOKENS] for span in requests] == [4]
    assert len([span for span in spans if span.name in (semconv.SPAN_PREFILL_STEP, semconv.SPAN_DECODE_STEP)]) == 4
    assert len({span.trace for span in spans}) == 1


def test_variables_that_the_stack_prints_work_for_opentelemetry_instrument(stack: Stack, tmp_path: Path) -> None:
    """As they are printed, with nothing else set, a request arrives."""
    state = State("", "dev", "ready", Reference(0, ""), [("OTLP over HTTP", stack.http)], stack.http, [])
    printed = dict(line.removeprefix("export ").split("=", 1) for line in addresses(state, "") if line.startswith("export "))
    result = _instrumented(tmp_path, **printed | {"OTEL_SERVICE_NAME": "printed"})
    assert result.returncode == 0, result.stderr

    def arrived() -> None:
        assert [span for span in from_otlp(stack.raw_lines("printed")) if semconv.OPERATION_NAME in span.attributes]

    eventually(arrived)


@pytest.mark.parametrize(
    ("protocol", "fix"),
    [
        (None, "it does not speak gRPC: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"),
        ("http/protobuf", "it speaks gRPC: set OTEL_EXPORTER_OTLP_PROTOCOL=grpc"),
    ],
    ids=["the launcher's gRPC at a port for HTTP", "HTTP at a port for gRPC"],
)
def test_first_failing_export_names_the_protocol(stack: Stack, tmp_path: Path, protocol: str | None, fix: str) -> None:
    """One line with the fix, after the line of the SDK, which stays; the program is not affected."""
    chosen = {"OTEL_EXPORTER_OTLP_ENDPOINT": stack.http} if protocol is None else {
        "OTEL_EXPORTER_OTLP_ENDPOINT": stack.grpc, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
    }  # fmt: skip
    result = _instrumented(tmp_path, OTEL_SERVICE_NAME="lost", OTEL_EXPORTER_OTLP_TIMEOUT="2", **chosen)
    assert result.returncode == 0
    assert result.stderr.count(fix) == 1
    assert "encountered while exporting" in result.stderr


def _instrumented(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program that knows nothing of us under ``opentelemetry-instrument``."""
    if importlib.util.find_spec("opentelemetry.distro") is None:
        pytest.skip("opentelemetry-distro is not installed")
    (folder / "app.py").write_text(GENERATE + "answer()\n")
    path = os.pathsep.join((str(metadata(folder / "metadata")), PATH))
    command = [sys.executable, "-c", INSTRUMENT, sys.executable, "app.py"]
    environment = plain_environment() | {"PYTHONPATH": path, **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
