"""Agents and gateways that can be stopped, killed and started again, each with its ports, its folder on disk and its log.

They run the project's own ``agent.yaml`` and ``gateway.yaml``, with shorter waits. The last hop is a receiver inside the test process
(``tests.support.otlp_receivers``), which sees what Jaeger or a log store would be sent. ``send`` says what a collector acknowledged.
"""

from __future__ import annotations

import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from inferspan.bundles import collector_config
from tests.integration.servers import READY_TIMEOUT, Collector
from tests.support.programs import need

__all__ = ["Answer", "Fleet", "Node", "running_fleet", "send"]

RESPONSES: Mapping[str, Any] = {
    "traces": trace_service_pb2.ExportTraceServiceResponse,
    "metrics": metrics_service_pb2.ExportMetricsServiceResponse,
    "logs": logs_service_pb2.ExportLogsServiceResponse,
}
# Retries after tenths of a second instead of seconds.
QUICK = {
    "agent": "exporters: {load_balancing: {retry_on_failure: &r {initial_interval: 100ms, max_interval: 300ms}}, otlp_grpc/gateway: {retry_on_failure: *r}}",
    "gateway": "exporters: {otlp_grpc/jaeger: {retry_on_failure: {initial_interval: 100ms, max_interval: 300ms}}}",
}
# Where metrics and logs end is the reader's choice; here they go where the traces go.
ALL_TO_ONE = """
service:
  pipelines:
    metrics: {exporters: [otlp_grpc/jaeger]}
    logs: {exporters: [otlp_grpc/jaeger]}
"""


@dataclass(frozen=True)
class Answer:
    """What a collector said to a request; status 0 is no answer at all."""

    status: int
    rejected: int = 0

    @property
    def acknowledged(self) -> bool:
        """Whether the collector answers for everything in the request from now on."""
        return self.status == 200 and not self.rejected


def send(url: str, kind: str, message: Any, *, token: str = "", tls: ssl.SSLContext | None = None) -> Answer:
    """Send an OTLP request over HTTP, once."""
    headers = {"Content-Type": "application/x-protobuf", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(f"{url}/v1/{kind}", message.SerializeToString(), headers)
    try:
        with urllib.request.urlopen(request, timeout=20, context=tls) as answer:
            partial = RESPONSES[kind].FromString(answer.read()).partial_success
            return Answer(answer.status, sum(number for _, number in partial.ListFields() if isinstance(number, int)))
    except urllib.error.HTTPError as error:
        return Answer(error.code)
    except OSError:
        return Answer(0)


class Node(Collector):
    """One collector; its queue is kept in its folder from one start to the next."""

    def __init__(self, name: str, folder: Path, configurations: Sequence[Path], environment: Mapping[str, str]) -> None:
        super().__init__()
        self.name = name
        self.folder = folder
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._arguments = [word for path in configurations for word in ("--config", str(path))]
        self._environment = {**environment, "OTELCOL_STORAGE": str(folder / name), **self.environment}

    def change(self, **environment: str) -> None:
        """Change its environment from the next start on."""
        self._environment |= environment

    def start(self, *, wait: bool = True) -> Node:
        """Start it, by default until its health check answers."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(["otelcol", *self._arguments], env=self._environment, stdout=output, stderr=subprocess.STDOUT)
        if wait:
            self.ready()
        return self

    def ready(self) -> None:
        """Wait for its health check."""
        assert self.process is not None
        deadline = time.monotonic() + READY_TIMEOUT
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[2]}/", timeout=2):
                    return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} is not ready:\n{self.log.read_text(errors='replace')[-4000:]}") from None
                time.sleep(0.05)

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal and wait for the end of the process."""
        if self.process is not None:
            self.process.send_signal(number)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(20)
            self.process = None

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is written any more."""
        self.end(signal.SIGKILL)

    def __repr__(self) -> str:
        return f"<{self.name}>"


class Fleet:
    """Makes agents and gateways.

    Args:
        folder: empty folder for configurations, queues and logs.
        environment: environment of the collectors, to which each gets its own.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._environment = environment
        self.nodes: list[Node] = []

    def node(self, kind: str, name: str, overlays: Sequence[str | Path], environment: Mapping[str, str]) -> Node:
        """A collector of a kind (``agent``, ``gateway``), not yet started. Overlays are YAML texts, or names of files of ours."""
        paths = [collector_config(f"{kind}.yaml")]
        for number, overlay in enumerate([QUICK[kind], *overlays]):
            if isinstance(overlay, str) and not overlay.endswith(".yaml"):
                path = self.folder / f"{name}-{number}.yaml"
                path.write_text(overlay, encoding="utf-8")
                paths.append(path)
            else:
                paths.append(collector_config(str(overlay)))
        node = Node(name, self.folder, paths, {**self._environment, **environment})
        self.nodes.append(node)
        return node

    def agent(self, *gateways: str, name: str = "agent", overlays: Sequence[str | Path] = (), **environment: str) -> Node:
        """An agent before these gateways; metrics and logs go to the first one."""
        ways = {"GATEWAYS": ",".join(gateways), "GATEWAY": gateways[0], "OTELCOL_HOST_INTERVAL": "1h"}
        return self.node("agent", name, ["agent-static.yaml", *overlays], {**ways, **environment})

    def gateway(self, last: str, name: str = "gateway", overlays: Sequence[str | Path] = (ALL_TO_ONE,), **environment: str) -> Node:
        """A gateway before the address of a last hop."""
        return self.node("gateway", name, overlays, {"JAEGER_OTLP": last.removeprefix("http://"), **environment})


@contextmanager
def running_fleet(folder: Path, environment: Mapping[str, str]) -> Iterator[Fleet]:
    """A fleet to which nodes can be added, all killed at the end; skipped where the collector is not installed, unless it is required."""
    need("otelcol")
    fleet = Fleet(folder, environment)
    try:
        yield fleet
    finally:
        for node in fleet.nodes:
            node.kill()
