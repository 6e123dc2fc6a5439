"""The collector, Jaeger and Prometheus as real processes on free ports of the loopback, and questions to their HTTP APIs.

They run from PATH with the project's own ``collector-config``; ``Servers`` starts them one by one and stops all of them at its end.
What can fail: a program is not installed (``Missing``), or does not become ready (``RuntimeError`` with the end of its log).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import yaml

from inferspan.bundles import collector_config
from tests.support.ports import LOOPBACK, free_ports

__all__ = [
    "PROGRAMS",
    "Collector",
    "Missing",
    "Servers",
    "Stack",
    "eventually",
    "get_json",
    "post_json",
    "running_stack",
    "whole_lines",
]

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


def eventually(look: Callable[[], T], *, timeout: float = 180.0, pause: float = 0.2) -> T:
    """Repeat ``look`` until it raises no ``AssertionError`` or ``LookupError``; the last one is raised when time is up.

    The default is long enough for a busy machine; only a failure takes it.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return look()
        except (AssertionError, LookupError):
            if time.monotonic() > deadline:
                raise
            time.sleep(pause)


def get_json(url: str, **parameters: Any) -> Any:
    """GET and return the JSON of the answer; an HTTP error is raised."""
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(parameters)}" if parameters else url, timeout=10) as answer:
        return json.load(answer)


def post_json(url: str, body: str) -> Any:
    """POST a JSON text and return the JSON of the answer; an HTTP error is raised."""
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@dataclass(frozen=True)
class Stack:
    """Where servers that belong together are, and what they can be asked."""

    grpc: str
    http: str
    jaeger: str
    prometheus: str
    raw: Path

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of a trace as Jaeger gives them; ``LookupError`` while it has none."""
        try:
            return list(get_json(f"{self.jaeger}/api/traces/{trace_id}")["data"][0]["spans"])
        except urllib.error.HTTPError as error:
            raise LookupError(f"Jaeger: {error}") from None

    def search(self, **parameters: Any) -> list[dict[str, Any]]:
        """The traces that Jaeger finds with these parameters of its own."""
        return list(get_json(f"{self.jaeger}/api/traces", **parameters)["data"])

    def traces(self, service: str, **tags: str) -> list[dict[str, Any]]:
        """The traces of a service that have a span with all these tags."""
        return self.search(service=service, tags=json.dumps(tags), limit=200, lookback="1h")

    def query(self, expression: str, *, at: float | None = None) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query."""
        moment = {} if at is None else {"time": at}
        answer = get_json(f"{self.prometheus}/api/v1/query", query=expression, **moment)
        return [(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]

    def exemplars(self, expression: str) -> list[dict[str, Any]]:
        """All exemplars of the last hour of the series that an expression selects."""
        now = time.time()
        answer = get_json(f"{self.prometheus}/api/v1/query_exemplars", query=expression, start=now - 3600, end=now + 60)
        return [exemplar for series in answer["data"] for exemplar in series["exemplars"]]

    def raw_lines(self, service: str) -> list[dict[str, Any]]:
        """The OTLP JSON objects that the collector received from a service, whole resources each."""
        found = []
        for line in whole_lines(self.raw):
            for kind, resources in line.items():
                for resource in resources:
                    attributes = {item["key"]: item["value"] for item in resource["resource"]["attributes"]}
                    if attributes.get("service.name") == {"stringValue": service}:
                        found.append({kind: [resource]})
        return found


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects in a file that the collector writes, one a line, without the line that it is writing now."""
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


@contextmanager
def _process(
    name: str, arguments: Sequence[str], ready: str, *, environment: Mapping[str, str], folder: Path, log_name: str = ""
) -> Iterator[None]:
    program = shutil.which(name)
    if program is None:
        raise Missing(name)
    log = folder / f"{log_name or name}.log"
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


@dataclass(frozen=True)
class Collector:
    """Ports of a collector; they are chosen before it starts, because others have to know them."""

    ports: Sequence[int] = field(default_factory=lambda: free_ports(5))

    @property
    def grpc(self) -> str:
        """Where OTLP over gRPC goes."""
        return f"{LOOPBACK}:{self.ports[0]}"

    @property
    def http(self) -> str:
        """Where OTLP over HTTP goes."""
        return f"http://{LOOPBACK}:{self.ports[1]}"

    @property
    def own(self) -> str:
        """Where its own metrics are scraped."""
        return f"{LOOPBACK}:{self.ports[3]}"

    @property
    def scraped(self) -> str:
        """Where the metrics that went through it are scraped, if it is set up so."""
        return f"{LOOPBACK}:{self.ports[4]}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which all configurations take these ports."""
        names = ("OTELCOL_GRPC_PORT", "OTELCOL_HTTP_PORT", "OTELCOL_HEALTH_PORT", "OTELCOL_METRICS_PORT", "OTELCOL_SCRAPE_PORT")
        return {name: str(port) for name, port in zip(names, self.ports, strict=True)}


class Servers:
    """Real servers in one folder; a context manager that stops whatever it has started, also when a start fails.

    Args:
        folder: empty folder for configurations, data and logs.
        environment: environment of the servers, to which each gets its ports.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._environment = environment
        self._running = ExitStack()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._running.close()

    def _start(self, name: str, program: str, arguments: Sequence[str], ready: str, **environment: str) -> None:
        whole = {**self._environment, **environment}
        self._running.enter_context(_process(program, arguments, ready, environment=whole, folder=self.folder, log_name=name))

    def prometheus(self, name: str, change: Callable[[dict[str, Any]], None], configuration: str = "prometheus.yml") -> str:
        """Start a Prometheus on a copy of a configuration that ``change`` has edited: it reads no environment. Returns its URL."""
        settings = yaml.safe_load(collector_config(configuration).read_text(encoding="utf-8"))
        change(settings)
        copy = self.folder / f"{name}.yml"
        copy.write_text(yaml.safe_dump(settings), encoding="utf-8")
        address = f"{LOOPBACK}:{free_ports(1)[0]}"
        arguments = [
            f"--config.file={copy}",
            f"--storage.tsdb.path={self.folder / name}",
            f"--web.listen-address={address}",
            "--web.enable-otlp-receiver",
            "--web.enable-remote-write-receiver",
            "--enable-feature=exemplar-storage,created-timestamp-zero-ingestion",
        ]
        self._start(name, "prometheus", arguments, f"http://{address}/-/ready")
        return f"http://{address}"

    def jaeger(self, name: str, prometheus: str, overlays: Sequence[str] = (), **environment: str) -> tuple[str, str]:
        """Start a Jaeger; returns the address for OTLP over gRPC and the URL of its query API."""
        grpc, http, health, query, query_grpc = map(str, free_ports(5))
        whole = {
            "JAEGER_GRPC_PORT": grpc,
            "JAEGER_HTTP_PORT": http,
            "JAEGER_HEALTH_PORT": health,
            "JAEGER_QUERY_PORT": query,
            "JAEGER_QUERY_GRPC_PORT": query_grpc,
            "PROMETHEUS_URL": prometheus,
            "JAEGER_UI_CONFIG": str(collector_config("jaeger-ui.json")),
            **environment,
        }
        arguments = [word for file in ("jaeger.yaml", *overlays) for word in ("--config", str(collector_config(file)))]
        self._start(name, "jaeger", arguments, f"http://{LOOPBACK}:{health}/status", **whole)
        return f"{LOOPBACK}:{grpc}", f"http://{LOOPBACK}:{query}"

    def collector(self, name: str, collector: Collector, configurations: Iterable[Path], **environment: str) -> None:
        """Start a collector with these configurations, laid over one another."""
        arguments = [word for path in configurations for word in ("--config", str(path))]
        ready = f"http://{LOOPBACK}:{collector.ports[2]}/"
        self._start(name, "otelcol", arguments, ready, **{"OTELCOL_RED_INTERVAL": "1s", **collector.environment, **environment})

    def written(self, name: str, text: str) -> Path:
        """Write a file into the folder."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path


@contextmanager
def running_stack(folder: Path, base_environment: Mapping[str, str]) -> Iterator[Stack]:
    """Collector, Jaeger and Prometheus of the development configuration, and a file of everything that the collector received.

    Args:
        folder: empty folder for configurations, data and logs.
        base_environment: environment of the servers, to which the ports are added.
    """
    raw = folder / "raw.jsonl"
    raw.touch()
    collector = Collector()

    def change(settings: dict[str, Any]) -> None:
        settings.pop("rule_files", None)
        settings["scrape_configs"] = [{"job_name": "otelcol", "static_configs": [{"targets": [collector.own]}]}]

    with Servers(folder, base_environment) as servers:
        prometheus = servers.prometheus("prometheus", change)
        otlp, query = servers.jaeger("jaeger", prometheus)
        overlay = servers.written("raw.yaml", RAW_OVERLAY.format(raw=raw))
        servers.collector(
            "otelcol",
            collector,
            (collector_config("dev.yaml"), overlay),
            JAEGER_OTLP=otlp,
            PROMETHEUS_OTLP=f"{prometheus}/api/v1/otlp",
        )
        yield Stack(f"http://{collector.grpc}", collector.http, query, prometheus, raw)
