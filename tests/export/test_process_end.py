"""How programs end: what has ended by then is delivered, the exit status is what it was, and nobody's handler is replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest

import inferspan
from tests.support.otlp_receivers import RECEIVERS, dead_endpoint

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="signals and processes of POSIX")
PRELUDE = """
import os, signal, sys, threading, time
import torch, inferspan
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
def instrument(**options):
    return inferspan.instrument(model, nvml=False, host=False, **options)
def call():
    model(torch.ones(2, 3))
"""
TERM = "\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(20)\n"


class Program:
    """Programs with a session file, in a directory of their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.out = self.errors = ""

    def start(self, body: str, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        """Start one."""
        (self.path / "program.py").write_text(PRELUDE + textwrap.dedent(body))
        source = os.pathsep.join([str(Path(inferspan.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [sys.executable, *(arguments or ("program.py",))],
            env={**os.environ, "PYTHONPATH": source, "INFERSPAN_SESSION_FILE": "s.jsonl", **environ},
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, body: str, **environ: str) -> int:
        """Run one to its end and return its exit status."""
        process = self.start(body, **environ)
        self.out, self.errors = process.communicate(timeout=120)
        assert "Traceback" not in self.errors, self.errors
        return process.returncode

    def requests(self) -> int:
        """Requests in the session file."""
        lines = [json.loads(line) for line in (self.path / "s.jsonl").read_text().splitlines()]
        spans = [s for line in lines for r in line.get("resourceSpans", ()) for scope in r["scopeSpans"] for s in scope["spans"]]
        return sum(any(a["key"] == "inferspan.model.architecture" for a in span["attributes"]) for span in spans)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """A program to be run."""
    return Program(tmp_path)


def test_sigterm_delivers_what_has_ended(program: Program) -> None:
    """Where the program has no handler, the requests that have ended are written and sent, and the signal ends the process."""
    with RECEIVERS["http/protobuf"]() as received:
        status = program("instrument()\nfor _ in range(4):\n    call()" + TERM, OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint)
        assert status == -signal.SIGTERM
        assert program.requests() == 4
        assert len([span for span in received.spans() if span.name == "forward Sequential"]) == 4


@pytest.mark.parametrize(
    "reset",
    [
        "signal.signal(signal.SIGTERM, lambda *a: None)\nsignal.signal(signal.SIGTERM, signal.SIG_DFL)",
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)\ncall()\nsignal.signal(signal.SIGTERM, signal.SIG_DFL)",
    ],
)
@pytest.mark.parametrize("before", ["", "signal.signal(signal.SIGTERM, lambda *a: sys.exit(3))"])
def test_default_disposition_set_later_is_seen_at_the_next_request(program: Program, before: str, reset: str) -> None:
    """A program that sets the default disposition after instrument() has its requests delivered."""
    assert program(f"{before}\ninstrument()\ncall()\n{reset}\nfor _ in range(3):\n    call()" + TERM) == -signal.SIGTERM
    assert program.requests() >= 4


def test_handler_of_c_set_later_is_left_in_charge(program: Program) -> None:
    """The default disposition of Python, behind which a library in C has a handler, is not taken for one."""
    body = """
    import ctypes
    libc = ctypes.CDLL(None)
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: os.write(1, b"C"))
    instrument()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    libc.signal(signal.SIGTERM, handler)
    call()
    call()
    libc["raise"](signal.SIGTERM)
    """
    if not Path("/proc/self/status").exists():
        pytest.skip("only Linux tells")
    assert program(body) == 0
    assert program.out == "C"


@pytest.mark.parametrize("protocol", list(RECEIVERS))
@pytest.mark.parametrize(("end", "status"), [("", 0), (TERM, -signal.SIGTERM), ("\nsys.exit(3)", 3)])
@pytest.mark.parametrize(("kind", "words"), [("silent", "no answer came in time"), ("closed", "nothing listens there")])
def test_what_is_lost_at_the_end_is_told_once(program: Program, protocol: str, end: str, status: int, kind: str, words: str) -> None:
    """An exit that is shorter than the exporter's patience loses the rest: one line has numbers, address, time and reason."""
    with dead_endpoint(kind) as endpoint:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "INFERSPAN_EXIT_TIMEOUT": "2"}
        assert program("import sys\ninstrument()\ncall()\ncall()" + end, **environ) == status
    (line,) = program.errors.splitlines()
    assert line.startswith("inferspan could not deliver 6 spans, ")
    assert line.endswith(f" metrics to {endpoint} before the program ended (exit_timeout 2 s): {words}")


def test_nothing_is_told_at_the_end_if_all_is_delivered(program: Program) -> None:
    """The exit and SIGTERM of a program whose receiver answers are silent."""
    with RECEIVERS["http/protobuf"]() as received:
        for end in ("", TERM):
            program("instrument()\ncall()" + end, OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint)
            assert program.errors == ""


def test_a_line_before_the_end_is_not_repeated(program: Program) -> None:
    """Where the log has said that the address cannot be reached, the end says nothing."""
    body = "instrument()\ncall()\ninferspan.flush()\ncall()"
    with dead_endpoint("silent") as endpoint:
        program(body, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_TIMEOUT="1", INFERSPAN_EXIT_TIMEOUT="1")
    (line,) = program.errors.splitlines()
    assert line.startswith("inferspan cannot send ")


def test_queue_that_no_request_was_made_for_is_told(program: Program) -> None:
    """Packed spans and spans of the SDK's queue count, also with no time at all."""
    with dead_endpoint("silent") as endpoint:
        body = "instrument(modules='all')\ncall()"
        program(body, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_METRICS_EXPORTER="none", INFERSPAN_EXIT_TIMEOUT="0.5")
    (line,) = program.errors.splitlines()
    assert line.startswith(f"inferspan could not deliver 3 spans to {endpoint} before the program ended (exit_timeout 0.5 s): ")


def test_nothing_is_told_of_a_provider_of_the_program(program: Program) -> None:
    """What the program's own exporter loses is its own affair."""
    body = """
    from opentelemetry import trace, metrics
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    host = TracerProvider(shutdown_on_exit=False)
    host.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(host)
    instrument()
    call()
    """
    with dead_endpoint("silent") as endpoint:
        program(body, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_METRICS_EXPORTER="none", INFERSPAN_EXIT_TIMEOUT="1")
    assert "could not deliver" not in program.errors


def test_sigterm_is_held_up_no_longer_than_promised(program: Program) -> None:
    """A collector that never answers delays the end by the promised time, and a second signal ends it at once."""
    body = """
    instrument()
    call()
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGTERM]).start()
    print(time.time(), flush=True)
    """
    with dead_endpoint("silent") as endpoint:
        assert program(body + TERM.replace("\n", "\n    "), OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, INFERSPAN_EXIT_TIMEOUT="60") == -signal.SIGTERM
        assert time.time() - float(program.out) < 40
        one = "instrument()\ncall()\nprint(time.time(), flush=True)" + TERM
        assert program(one, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, INFERSPAN_EXIT_TIMEOUT="1") == -signal.SIGTERM
        assert time.time() - float(program.out) < 15


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        ("signal.signal(signal.SIGTERM, lambda *a: sys.exit(3))", "", 3),
        ("", "signal.signal(signal.SIGTERM, lambda *a: sys.exit(3))", 3),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "", 5),
    ],
)
def test_handler_of_the_program_is_left_in_charge(program: Program, before: str, after: str, status: int) -> None:
    """A handler that the program has set, before or after us, is not replaced; a way out by sys.exit() delivers."""
    body = f"{before}\ninstrument()\n{after}\ncall()\nmine = signal.getsignal(signal.SIGTERM)\n"
    body += "print(getattr(mine, '__module__', '') or repr(mine))\nos.kill(os.getpid(), signal.SIGTERM)\nsys.exit(5)"
    assert program(body) == status
    assert program.out.strip() in ("__main__", "1", "<Handlers.SIG_IGN: 1>", "signal")
    assert program.requests() == 1


def test_handler_outside_of_python_is_left_in_charge(program: Program) -> None:
    """What a library in C has set and Python does not know of stays."""
    body = """
    import ctypes
    libc = ctypes.CDLL(None)
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: os.write(1, b"C"))
    libc.signal(signal.SIGTERM, handler)
    instrument()
    libc.raise_((signal.SIGTERM)) if hasattr(libc, "raise_") else libc["raise"](signal.SIGTERM)
    """
    if not Path("/proc/self/status").exists():
        pytest.skip("only Linux tells")
    assert program(body) == 0
    assert program.out == "C"


def test_sigterm_can_be_left_alone(program: Program) -> None:
    """With flush_on_sigterm=False nothing is set."""
    assert program("instrument()\nprint(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)", INFERSPAN_FLUSH_ON_SIGTERM="false") == 0
    assert program.out == "True\n"


def test_sigterm_flushes_before_a_handler_if_asked_to(program: Program) -> None:
    """With flush_on_sigterm=True also a handler that leaves without further ado loses nothing."""
    body = "signal.signal(signal.SIGTERM, lambda *a: os._exit(3))\ninstrument(flush_on_sigterm=True)\ncall()" + TERM
    assert program(body) == 3
    assert program.requests() == 1


def test_sigterm_hands_over_to_the_hosts_providers(program: Program) -> None:
    """With providers of the program's, what we still hold is handed to them before the signal ends the process."""
    body = """
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
    class Printing(SpanExporter):
        def export(self, spans):
            os.write(1, b"".join(span.name.encode() + b"\\n" for span in spans))
            return SpanExportResult.SUCCESS
    host = TracerProvider(shutdown_on_exit=False)
    host.add_span_processor(SimpleSpanProcessor(Printing()))
    instrument(tracer_provider=host, every_step=True, modules="all")
    model.append(torch.nn.Sequential(*[torch.nn.Tanh() for _ in range(300)]))
    model.eval()
    call()
    call()
    """
    assert program(body + TERM.replace("\n", "\n    "), INFERSPAN_SESSION_FILE="") == -signal.SIGTERM
    assert program.out.splitlines().count("forward Sequential") == 2


def test_server_that_raises_the_signal_again_delivers(program: Program) -> None:
    """A server that puts its handler over ours, serves to the end, puts ours back and raises the signal again."""
    body = """
    instrument()
    ended = []
    previous = signal.signal(signal.SIGTERM, lambda *a: ended.append(1))
    os.kill(os.getpid(), signal.SIGTERM)
    while not ended:
        time.sleep(0.01)
    call()
    signal.signal(signal.SIGTERM, previous)
    signal.raise_signal(signal.SIGTERM)
    """
    assert program(body) == -signal.SIGTERM
    assert program.requests() == 1


SERVED = """
import asyncio
class Slow(torch.nn.Module):
    def forward(self, x):
        time.sleep(1.0)
        return x
slow = Slow()
instrument()
inferspan.instrument(slow, nvml=False, host=False)
def wsgi(environ, start):
    (slow if environ["PATH_INFO"] == "/slow" else model)(torch.ones(2, 3))
    start("200 OK", [("Content-Length", "2")])
    return [b"ok"]
async def asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    chosen = slow if scope["path"] == "/slow" else model
    await asyncio.get_running_loop().run_in_executor(None, chosen, torch.ones(2, 3))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("server", "arguments"),
    [
        ("uvicorn", ["program:asgi", "--log-level", "warning", "--port"]),
        ("gunicorn", ["program:wsgi", "-b"]),
        ("gunicorn", ["program:wsgi", "--preload", "-b"]),
        ("gunicorn", ["program:wsgi", "--threads", "2", "-b"]),
    ],
)
def test_request_in_flight_at_sigterm_is_delivered(program: Program, server: str, arguments: list[str]) -> None:
    """A server that serves to the end delivers the request that was in flight and those that had ended."""
    pytest.importorskip(server)
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = [str(port)] if server == "uvicorn" else [f"127.0.0.1:{port}"]
    process = program.start(SERVED, "-m", server, *arguments, *address)

    def get(path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return bytes(answer.read())

    for _ in range(600):
        try:
            get("/")
            break
        except OSError:
            time.sleep(0.1)
    waiting = threading.Thread(target=get, args=("/slow",))
    waiting.start()
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    waiting.join()
    assert process.returncode == (-signal.SIGTERM if server == "uvicorn" else 0)
    assert program.requests() >= 2


def test_processes_that_end_without_atexit_deliver(program: Program) -> None:
    """Processes of multiprocessing deliver, whether they were instrumented before the fork or instrument themselves."""
    body = """
    import multiprocessing
    def work(own):
        instrument() if own else None
        call()
    if __name__ == "__main__":
        fork = multiprocessing.get_context("fork")
        for own in (True, False):
            None if own else instrument()
            child = fork.Process(target=work, args=(own,))
            child.start()
            child.join()
            assert child.exitcode == 0
        os._exit(0)
    """
    assert program(body) == 0
    assert program.requests() == 2


def test_workers_of_billiards_pools_deliver(program: Program) -> None:
    """Workers as Celery has them, which end by os._exit(), deliver what they have done."""
    pytest.importorskip("billiard")
    body = """
    def work(_):
        call()
    if __name__ == "__main__":
        instrument()
        call()
        from billiard.pool import Pool
        pool = Pool(2)
        pool.map(work, range(4))
        pool.close()
        pool.join()
    """
    assert program(body) == 0
    assert program.requests() == 5
