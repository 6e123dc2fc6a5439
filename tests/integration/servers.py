"""The collector, Jaeger and Prometheus as real processes on free ports of the loopback, and questions to their HTTP APIs.

They run from PATH with the project's own ``collector-config``. What can fail: a program is not installed (``Missing``), or does not
become ready (``RuntimeError`` with the end of its log).
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from inferspan.bundles import collector_config

__all__ = ["PROGRAMS", "Missing", "Stack", "eventually", "missing_programs", "post_json", "running_stack"]

T = TypeVar("T")

PROGRAMS = ("otelcol", "jaeger", "prometheus")
READY_TIMEOUT = 60.0

# Everything that the collector receives is also written to a file, so that tests can look at exact types and scan every byte.
RAW_OVERLAY = """
exporters:
  file/raw:
    path: "{raw}"
    flush_interval: 100ms
service:
  pipelines:
    traces/raw: {{receivers: [otlp], exporters: [file/raw]}}
    metrics/raw: {{receivers: [otlp], exporters: [file/raw]}}
    logs/raw: {{receivers: [otlp], exporters: [file/raw]}}
"""


class Missing(Exception):
    """A server program is not on PATH."""


def missing_programs() -> list[str]:
    """The programs that are not on PATH."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def _free_ports(count: int) -> list[int]:
    # All are held at once, so that no port is given twice.
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def eventually(look: Callable[[], T], *, timeout: float = 30.0, pause: float = 0.2) -> T:
    """Repeat ``look`` until it raises no ``AssertionError`` or ``LookupError``; the last one is raised when time is up."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return look()
        except (AssertionError, LookupError):
            if time.monotonic() > deadline:
                raise
            time.sleep(pause)


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def post_json(url: str, body: str) -> Any:
    """POST a JSON text and return the JSON of the answer; an HTTP error is raised."""
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@dataclass(frozen=True)
class Stack:
    """Where the three servers are, and what they can be asked."""

    grpc: str
    http: str
    jaeger: str
    prometheus: str
    raw: Path

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of a trace as Jaeger gives them; ``LookupError`` while it has none."""
        try:
            return list(_get(f"{self.jaeger}/api/traces/{trace_id}")["data"][0]["spans"])
        except urllib.error.HTTPError as error:
            raise LookupError(f"Jaeger: {error}") from None

    def traces(self, service: str, **tags: str) -> list[dict[str, Any]]:
        """The traces of a service that have a span with all these tags."""
        query = urllib.parse.urlencode({"service": service, "tags": json.dumps(tags), "limit": 200, "lookback": "1h"})
        return list(_get(f"{self.jaeger}/api/traces?{query}")["data"])

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query."""
        answer = _get(f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        return [(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]

    def exemplars(self, expression: str) -> list[dict[str, Any]]:
        """All exemplars of the last hour of the series that an expression selects."""
        now = time.time()
        query = urllib.parse.urlencode({"query": expression, "start": now - 3600, "end": now + 60})
        answer = _get(f"{self.prometheus}/api/v1/query_exemplars?{query}")
        return [exemplar for series in answer["data"] for exemplar in series["exemplars"]]

    def raw_lines(self, service: str) -> list[dict[str, Any]]:
        """The OTLP JSON objects that the collector received from a service, whole resources each."""
        found = []
        for line in self.raw.read_text(encoding="utf-8").splitlines():
            for kind, resources in json.loads(line).items():
                for resource in resources:
                    attributes = {item["key"]: item["value"] for item in resource["resource"]["attributes"]}
                    if attributes.get("service.name") == {"stringValue": service}:
                        found.append({kind: [resource]})
        return found


@contextmanager
def _process(name: str, arguments: list[str], ready: str, *, environment: dict[str, str], folder: Path) -> Iterator[None]:
    program = shutil.which(name)
    if program is None:
        raise Missing(name)
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen([program, *arguments], env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + READY_TIMEOUT
            while True:
                try:
                    with urllib.request.urlopen(ready, timeout=2):
                        break
                except OSError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"{name} is not ready ({ready}):\n{log.read_text(errors='replace')[-4000:]}") from None
                    time.sleep(0.1)
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


@contextmanager
def running_stack(folder: Path, base_environment: dict[str, str]) -> Iterator[Stack]:
    """Start all three in ``folder`` and stop them at the end.

    Args:
        folder: empty folder for configurations, data and logs.
        base_environment: environment of the servers, to which the ports are added.
    """
    grpc, http, health, own, j_grpc, j_http, j_health, j_query, j_query_grpc, prom = map(str, _free_ports(10))
    raw = folder / "raw.jsonl"
    raw.touch()
    overlay = folder / "raw.yaml"
    overlay.write_text(RAW_OVERLAY.format(raw=raw))
    # Prometheus reads no environment, so the collector's port is put into a copy.
    prometheus_yml = folder / "prometheus.yml"
    prometheus_yml.write_text(collector_config("prometheus.yml").read_text().replace("127.0.0.1:8888", f"127.0.0.1:{own}"))
    stack = Stack(f"http://127.0.0.1:{grpc}", f"http://127.0.0.1:{http}", f"http://127.0.0.1:{j_query}", f"http://127.0.0.1:{prom}", raw)
    environment = {
        **base_environment,
        "OTELCOL_GRPC_PORT": grpc,
        "OTELCOL_HTTP_PORT": http,
        "OTELCOL_HEALTH_PORT": health,
        "OTELCOL_METRICS_PORT": own,
        "OTELCOL_RED_INTERVAL": "1s",
        "JAEGER_OTLP": f"127.0.0.1:{j_grpc}",
        "JAEGER_GRPC_PORT": j_grpc,
        "JAEGER_HTTP_PORT": j_http,
        "JAEGER_HEALTH_PORT": j_health,
        "JAEGER_QUERY_PORT": j_query,
        "JAEGER_QUERY_GRPC_PORT": j_query_grpc,
        "PROMETHEUS_OTLP": f"{stack.prometheus}/api/v1/otlp",
        "PROMETHEUS_URL": stack.prometheus,
    }
    prometheus_arguments = [
        f"--config.file={prometheus_yml}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{prom}",
        "--web.enable-otlp-receiver",
        "--enable-feature=exemplar-storage",
    ]
    collector_arguments = ["--config", str(collector_config("dev.yaml")), "--config", str(overlay)]
    with ExitStack() as servers:

        def start(name: str, arguments: list[str], ready: str) -> None:
            servers.enter_context(_process(name, arguments, ready, environment=environment, folder=folder))

        start("prometheus", prometheus_arguments, f"{stack.prometheus}/-/ready")
        start("jaeger", ["--config", str(collector_config("jaeger.yaml"))], f"http://127.0.0.1:{j_health}/status")
        start("otelcol", collector_arguments, f"http://127.0.0.1:{health}/")
        yield stack
