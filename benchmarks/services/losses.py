"""What a service loses when its workers are restarted or killed, or the collector is away: answers to clients against spans that arrived.

In: the gunicorn example with four workers, under load, and a collector that keeps the trace ids of requests and the counts of the metric
``gen_ai.server.request.duration``. Out: a ``Losses`` for each case. What can fail: the service does not start, or the workers are not
replaced in time (``RuntimeError``). Everything stays on the loopback.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["CASES", "Answered", "Losses", "Receiver", "losses", "main"]

FOLDER = Path(__file__).parents[2] / "examples" / "services" / "gunicorn_prefork"
ROOT = FOLDER.parents[2]
OPERATION, DURATION, INSTANCE = "gen_ai.operation.name", "gen_ai.server.request.duration", "service.instance.id"
WORKERS = 4
PATIENCE = 240.0
"""Seconds for a start, a restart of all workers and a stop, on a busy machine."""
AWAY = 3.0
"""Seconds without a collector: less than exporters try again, which is ten."""


class Answered(NamedTuple):
    """A request that a client has got an answer to."""

    trace: str
    worker: int
    at: float


class Losses(NamedTuple):
    """What one case has cost.

    Attributes:
        answered: requests, in the order of their answers.
        refused: connections that got no answer.
        lost: answered requests whose span did not arrive.
        counted: requests that the metrics of all processes say.
        victim: the worker that was killed, 0 if none was.
        known: requests of the victim that had arrived before.
    """

    answered: list[Answered]
    refused: int
    lost: list[Answered]
    counted: int
    victim: int = 0
    known: frozenset[str] = frozenset()


class Receiver:
    """A collector that can go away and come back."""

    def __init__(self) -> None:
        self.traces: set[str] = set()
        self.counts: dict[str, int] = {}
        self._server: http.server.ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    def start(self) -> None:
        """Listen, at the same port as before."""
        take = self._take

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                take(self.path, gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _take(self, path: str, body: bytes) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        if path.endswith("/traces"):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    self.traces |= {span.trace_id.hex() for span in scope.spans if any(one.key == OPERATION for one in span.attributes)}
        elif path.endswith("/metrics"):
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                instance = next((one.value.string_value for one in resource.resource.attributes if one.key == INSTANCE), "")
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        if metric.name == DURATION:
                            self.counts[instance] = sum(point.count for point in metric.histogram.data_points)


class Load:
    """Clients that ask one after the other until they are stopped."""

    def __init__(self, port: int, clients: int) -> None:
        self.answered: list[Answered] = []
        self.refused = 0
        self._port, self._stopped = port, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(clients)]
        for thread in self._threads:
            thread.start()

    def _run(self, client: int) -> None:
        number = 0
        while not self._stopped.is_set():
            number += 1
            trace = f"{client + 1:016x}{number:016x}"
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            try:
                connection.request("GET", "/?prompt=hello", headers={"traceparent": f"00-{trace}-{'ab' * 8}-01"})
                answer = connection.getresponse()
                answer.read()
                self.answered.append(Answered(trace, int(answer.headers["X-Worker"]), time.monotonic()))
            except (OSError, http.client.HTTPException):
                self.refused += 1
                time.sleep(0.05)
            finally:
                connection.close()

    def stop(self) -> None:
        """Wait for the answers that are under way."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)

    def workers(self, since: int = 0) -> set[int]:
        """Those that have answered, from one answer on."""
        return {one.worker for one in self.answered[since:]}


def _until(reached: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} takes too long")
        time.sleep(0.05)


@contextmanager
def _gunicorn(port: int, collector: int, variables: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "INFERSPAN_"))}
    environment = {
        **kept,
        # Programs find torch and the rest where this one did.
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *filter(None, sys.path)]),
        "OMP_NUM_THREADS": "1", "OTEL_SERVICE_NAME": "losses", "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "INFERSPAN_PRESET": "production", **variables,
    }  # fmt: skip
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", str(WORKERS), "--bind", f"127.0.0.1:{port}", "app:app"]
    with subprocess.Popen(command, cwd=FOLDER, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as master:
        try:
            yield master
        finally:
            if master.poll() is None:
                master.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    master.wait(PATIENCE)
            master.kill()


def _rolling(master: int, load: Load, receiver: Receiver) -> tuple[int, frozenset[str]]:
    before = load.workers()
    os.kill(master, signal.SIGHUP)
    asked = len(load.answered)
    _until(lambda: len(load.workers(asked) - before) >= WORKERS, "the restart of all workers")
    return 0, frozenset()


def _away(master: int, load: Load, receiver: Receiver) -> tuple[int, frozenset[str]]:
    receiver.stop()
    time.sleep(AWAY)
    receiver.start()
    return 0, frozenset()


def _killed(master: int, load: Load, receiver: Receiver) -> tuple[int, frozenset[str]]:
    def arrived(worker: int) -> frozenset[str]:
        return frozenset(one.trace for one in [*load.answered] if one.worker == worker) & receiver.traces

    victim = load.answered[-1].worker
    _until(lambda: arrived(victim), "the first export of a worker")
    known = arrived(victim)
    os.kill(victim, signal.SIGKILL)
    before, asked = load.workers(), len(load.answered)
    _until(lambda: load.workers(asked) - before, "the replacement of a worker")
    return victim, known


CASES: dict[str, Callable[[int, Load, Receiver], tuple[int, frozenset[str]]]] = {
    "rolling restart": _rolling,
    "collector away": _away,
    "worker killed": _killed,
}
"""What happens under load, by name."""


def losses(case: str, *, seconds: float = 6.0, clients: int = 8, **variables: str) -> Losses:
    """Run a case.

    Args:
        case: one of ``CASES``.
        seconds: of load before and after what happens.
        clients: that ask side by side.
        variables: further ones for the service.
    """
    from benchmarks.service import free_port

    receiver, port = Receiver(), free_port()
    try:
        with _gunicorn(port, receiver.port, variables) as master:
            load = Load(port, clients)
            _until(lambda: len(load.workers()) >= WORKERS or master.poll() is not None, "the start of all workers")
            load.refused = 0  # those before it listened
            time.sleep(seconds)
            victim, known = CASES[case](master.pid, load, receiver)
            time.sleep(seconds)
            load.stop()
        lost = [one for one in load.answered if one.trace not in receiver.traces]
        return Losses(load.answered, load.refused, lost, sum(receiver.counts.values()), victim, known)
    finally:
        receiver.stop()


def main(options: argparse.Namespace) -> int:
    """Run all cases and print a table."""
    print(f"{'case':<16} {'answered':>9} {'no answer':>9} {'lost':>6} {'last of them, s':>16} {'in metrics':>11}", flush=True)
    for case in CASES:
        found: Any = losses(case, seconds=options.seconds, clients=options.connections if options.connections != 64 else 8)
        last = max((one.at for one in found.answered if one.worker == found.victim), default=0.0)
        span = f"{max(last - one.at for one in found.lost):.1f}" if found.lost and found.victim else "-"
        print(f"{case:<16} {len(found.answered):9d} {found.refused:9d} {len(found.lost):6d} {span:>16} {found.counted:11d}", flush=True)
    return 0
