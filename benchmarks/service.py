"""A service under load: the FastAPI example with and without inferspan, and with a collector that is fine, slow or dead.

    python -m benchmarks.service                      the tiny model, 64 connections, 8 s each
    python -m benchmarks.service --smollm2 --burst    SmolLM2-135M, 16 tokens, one request from each connection
    ... --pairs 6                                     with and without at the same time, a core each (``services/pairs.py``)
    ... --mixed 8                                     requests with and without in one service (``services/mixed.py``)
    python -m benchmarks.service --losses             what restarts and kills lose (``services/losses.py``)
    python -m benchmarks.service --soak 1000000       many steps in one process: what grows (``services/soak.py``)

The load: in: nothing but the loopback. Out: a line for each case: requests a second and 99th percentile as ratios to the plain runs on both sides of
it, growth of memory, threads. ``again`` is plain against plain, the noise of the machine. Bounded by seconds and by requests.
"""

from __future__ import annotations

import argparse
import http.client
import http.server
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

__all__ = ["LONGEST", "Load", "main", "ratios", "run", "serving"]

FOLDER = Path(__file__).parents[1] / "examples" / "services" / "fastapi_uvicorn"
CASES = ("again", "fine", "slow", "dead", "production")
MOST_REQUESTS = 200_000
LONGEST = 600.0
"""Seconds that a client waits for an answer: 64 of them share two cores with SmolLM2."""
BURST, BEFORE_BURST = 0.5, 2
"""Seconds in which each connection of a burst begins a request, one if requests take longer; tokens of the answers before, to warm up."""
SLOW = 2.0
"""Seconds that the slow collector takes for an answer."""


class Load(NamedTuple):
    """One run.

    Attributes:
        rate: requests a second.
        p99: seconds.
        growth: bytes of resident memory from the middle to the end, or over a burst.
        threads: of the server, at the end.
        busy: seconds of CPU of the server, a request.
    """

    rate: float
    p99: float
    growth: int
    threads: int
    busy: float


def ratios(case: Load, before: Load, after: Load) -> tuple[float, float]:
    """Throughput and 99th percentile of a case, each divided by the mean of the plain runs on both sides."""
    return case.rate / statistics.mean((before.rate, after.rate)), case.p99 / statistics.mean((before.p99, after.p99))


class _Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    delay = 0.0

    def do_POST(self) -> None:
        """Take telemetry, and answer after a while."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(self.delay)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def receive(port: int, delay: float) -> None:
    """Be a collector that keeps nothing, until the process is ended."""
    _Receiver.delay = delay
    http.server.ThreadingHTTPServer(("127.0.0.1", port), _Receiver).serve_forever()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def _running(command: Sequence[str], port: int, variables: Mapping[str, str] | None = None, folder: Path = FOLDER) -> Iterator[subprocess.Popen[bytes]]:
    """A program, once it listens, until the block ends."""
    # Programs find torch and the rest where this one did.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **(variables or {})}
    with subprocess.Popen([sys.executable, *command], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as one:
        try:
            end = time.monotonic() + 120
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if time.monotonic() > end or one.poll() is not None:
                        raise RuntimeError(f"{command[1]} does not listen") from None
                    time.sleep(0.1)
            yield one
        finally:
            one.kill()


def _client(port: int, tokens: int, end: float, took: list[float]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST)
    while time.monotonic() < end and len(took) < MOST_REQUESTS:
        begin = time.perf_counter()
        connection.request("GET", f"/chat?prompt=hello&tokens={tokens}")
        connection.getresponse().read()
        took.append(time.perf_counter() - begin)
    connection.close()


def _send(port: int, connections: int, tokens: int, seconds: float) -> list[float]:
    took: list[float] = []
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=_client, args=(port, tokens, end, took)) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def run(case: str, options: argparse.Namespace, ready: Callable[[], object] = lambda: None) -> Load:
    """Serve and send, once; ``ready`` is called before what is measured."""
    variables = {}
    if case in ("plain", "again"):
        variables["INFERSPAN_ENABLED"] = "false"
    if case == "production":
        variables["INFERSPAN_PRESET"] = "production"
    if options.burst:
        # As many connections as later, or what each thread of the server makes at its first request is measured: short answers do.
        warming, warm_up, measured = BEFORE_BURST, BURST, [BURST]
    else:
        warming, warm_up, measured = options.tokens, options.seconds / 4, [options.seconds / 2] * 2
    with serving(case, variables=variables) as (port, server):
        _send(port, options.connections, warming, warm_up)
        process = psutil.Process(server.pid)
        ready()
        begin, before = time.perf_counter(), process.cpu_times()
        took: list[float] = []
        for seconds in measured:
            middle = process.memory_info().rss
            took += _send(port, options.connections, options.tokens, seconds)
        rate = len(took) / (time.perf_counter() - begin)
        after = process.cpu_times()
        busy = (after.user - before.user + after.system - before.system) / len(took)
        p99 = statistics.quantiles(took, n=100)[98]
        return Load(rate, p99, process.memory_info().rss - middle, process.num_threads(), busy)


@contextmanager
def serving(
    case: str, app: str = "app:app", folder: Path = FOLDER, variables: Mapping[str, str] | None = None
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A service and the collector of a case, until the block ends; gives the service's port and process."""
    port, receiver = free_port(), free_port()
    destination = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver}", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    command = ("-m", "uvicorn", app, "--port", str(port), "--no-access-log")
    with (
        _collector(receiver, SLOW if case == "slow" else 0.0, alive=case != "dead"),
        _running(command, port, {**destination, **(variables or {})}, folder) as server,
    ):
        yield port, server


@contextmanager
def _collector(port: int, delay: float, *, alive: bool) -> Iterator[None]:
    if not alive:
        yield
        return
    with _running(("-m", "benchmarks.service", "--receive", str(port), "--delay", str(delay)), port):
        yield


def main(arguments: list[str] | None = None) -> int:
    """Run the cases and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=8.0, help="of sending in each run")
    parser.add_argument("--burst", action="store_true", help="a request from each connection at once, in place of seconds: for models that take minutes")
    parser.add_argument("--pairs", type=int, metavar="N", help="N times each case and plain at the same time, each on a core of its own")
    parser.add_argument("--mixed", type=int, metavar="N", help="N bursts of requests with and without in one service: CPU time of a request")
    parser.add_argument("--tokens", type=int, default=16, help="of each answer")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--smollm2", action="store_true", help="SmolLM2-135M instead of the tiny model")
    parser.add_argument("--losses", action="store_true", help="restart and kill workers and the collector under load, and count")
    parser.add_argument("--soak", type=int, metavar="STEPS", help="decode so many steps in one process; the verdict is the exit status")
    parser.add_argument("--receive", type=int, metavar="PORT", help="only be the collector")
    parser.add_argument("--delay", type=float, default=0.0, help="of its answers, in seconds")
    options = parser.parse_args(arguments)
    if options.receive:
        receive(options.receive, options.delay)
    if options.losses or options.soak:
        from benchmarks.services import losses, soak

        return losses.main(options) if options.losses else soak.main(options.soak)
    if options.smollm2:
        os.environ["EXAMPLE_MODEL"] = "smollm2"
    if options.mixed:
        from benchmarks.services import mixed

        return mixed.main(options)
    if options.pairs:
        from benchmarks.services import pairs

        return pairs.main(options, parser)
    print(f"{'case':<12} {'req/s':>8} {'p99 ms':>8} {'rate x':>8} {'p99 x':>8} {'growth MiB':>11} {'threads':>8}", flush=True)
    before = run("plain", options)
    _print("plain", before, None)
    for case in options.cases:
        found, after = run(case, options), run("plain", options)
        _print(case, found, ratios(found, before, after))
        _print("plain", after, None)
        before = after
    return 0


def _print(case: str, load: Load, compared: tuple[float, float] | None) -> None:
    rate, p99 = ("", "") if compared is None else (f"{compared[0]:.3f}", f"{compared[1]:.3f}")
    growth = load.growth / 2**20
    print(f"{case:<12} {load.rate:8.3f} {load.p99 * 1000:8.1f} {rate:>8} {p99:>8} {growth:11.1f} {load.threads:8d}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
