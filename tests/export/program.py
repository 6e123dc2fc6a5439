"""Programs of their own that set OpenTelemetry up, and what they print and log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from inferspan.export import otlp

__all__ = ["HOST", "OURS", "PROXIES", "Program"]

SOURCE = {"PYTHONPATH": os.pathsep.join([str(Path(otlp.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])}
PRELUDE = """
import json, logging, os, sys, time
import inferspan.export.otlp as otlp
from inferspan.settings import Settings, SettingsError
from opentelemetry import _logs, metrics, trace
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s", stream=sys.stderr)

def record(name="work"):
    with trace.get_tracer("test", "1").start_as_current_span(name, attributes={"n": 1}) as span:
        metrics.get_meter("test").create_histogram("h").record(1.0)
        _logs.get_logger("test").emit(_logs.LogRecord(body="hello", severity_number=_logs.SeverityNumber.INFO))
        return span

def kinds():
    return [type(p).__name__ for p in (trace.get_tracer_provider(), metrics.get_meter_provider(), _logs.get_logger_provider())]
"""
PROXIES = ["ProxyTracerProvider", "_ProxyMeterProvider", "ProxyLoggerProvider"]
OURS = ["TracerProvider", "MeterProvider", "LoggerProvider"]
HOST = """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
memory = InMemorySpanExporter()
host = TracerProvider(shutdown_on_exit=False)
host.add_span_processor(SimpleSpanProcessor(memory))
trace.set_tracer_provider(host)
"""


class Program:
    """Runs programs in a directory of their own; their standard output is JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.errors = ""
        self.seconds = 0.0

    def __call__(self, body: str, **environ: str) -> list[Any]:
        """Run a program that must succeed."""
        return self.ending(0, body, **environ)

    def ending(self, returncode: int, body: str, **environ: str) -> list[Any]:
        """Run a program that must end in this way."""
        script = self.path / "program.py"
        script.write_text(PRELUDE + textwrap.dedent(body))
        before = time.monotonic()
        result = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, **SOURCE, **environ},
            cwd=self.path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.seconds = time.monotonic() - before
        self.errors = result.stderr
        assert result.returncode == returncode, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    def log(self, level: str) -> list[str]:
        """What inferspan logged at a level."""
        head = f"inferspan {level} "
        return [line.removeprefix(head) for line in self.errors.splitlines() if line.startswith(head)]
