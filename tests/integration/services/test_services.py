"""The services of the examples: joined traces, metrics by worker, streams, graceful stops and crashes, at a real collector."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferspan import semconv
from tests.integration.servers import Stack, eventually
from tests.integration.services.running import (
    EXAMPLES,
    Service,
    environment,
    get,
    instances,
    named,
    needs,
    processes,
    requests_of,
    serving,
    spans_of,
    trace_parent,
)

pytestmark = pytest.mark.integration

UVICORN = ("uvicorn", "app:app", "--workers", "2", "--port", "{port}")
GUNICORN = ("gunicorn", "--preload", "--workers", "2", "--bind", "127.0.0.1:{port}", "app:app")
UVICORN_IN_GUNICORN = ("gunicorn", "--workers", "2", "-k", "uvicorn.workers.UvicornWorker", "--bind", "127.0.0.1:{port}", "app:app")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of the service: its own in each test, as all of them send to one collector."""
    return str(request.node.name)


@pytest.fixture
def service(stack: Stack, name: str, tmp_path: Path) -> Iterator[Service]:
    """FastAPI with two workers of uvicorn."""
    needs("fastapi", "uvicorn")
    with serving(UVICORN, EXAMPLES / "fastapi_uvicorn", environment(stack, name), tmp_path / "log") as running:
        yield running


def _workers(address: str, wanted: int, *, without: int = 0) -> tuple[set[int], int]:
    """Ask until so many workers have answered; returns them, and the number of questions."""
    found: set[int] = set()
    for number in range(1, 400):
        found.add(json.loads(get(f"{address}/chat?prompt=hello")[0])["worker"])
        if len(found - {without}) >= wanted:
            return found - {without}, number
    raise AssertionError(f"{found} answered")


def test_fastapi(service: Service, stack: Stack, name: str) -> None:
    """Chat, stream and batch join the client's trace; both workers send metrics; SIGTERM loses nothing."""
    address = service.address
    chat, parent = trace_parent(0xC1)
    get(f"{address}/chat?prompt=hello", traceparent=parent)
    stream, parent = trace_parent(0xC2)
    text, _ = get(f"{address}/stream?prompt=hello&tokens=12", traceparent=parent)
    assert text
    batch, parent = trace_parent(0xC3)
    assert len(json.loads(get(f"{address}/batch", data=["one", "two", "three"], traceparent=parent)[0])) == 3
    workers, asked = _workers(address, 2)
    eventually(lambda: _both(instances(stack, name, semconv.M_SERVER_DURATION)))
    assert service.stop() in (0, -signal.SIGTERM)

    def arrived() -> None:
        assert len(requests_of(spans_of(stack, name))) == 3 + asked

    eventually(arrived)
    assert {*processes(stack, name).values()} == workers
    for trace, route, tokens in ((chat, "GET /chat", 8), (stream, "GET /stream", 12), (batch, "POST /batch", 24)):
        spans = spans_of(stack, name, trace)
        server = named(spans, route)
        (request,) = requests_of(spans)
        by_id = {span.id: span for span in spans}
        above = request
        while above.parent in by_id:
            above = by_id[above.parent]
        assert above.id == server.id
        assert server.parent == "ab" * 8
        assert request.attributes[semconv.OUTPUT_TOKENS] == tokens
    streamed = requests_of(spans_of(stack, name, stream))[0]
    assert streamed.attributes[semconv.REQUEST_STREAM] is True
    assert streamed.end <= named(spans_of(stack, name, stream), "GET /stream").end + 10**9


def _both(found: set[str]) -> None:
    assert len(found) == 2


def test_another_server_gets_our_trace(service: Service) -> None:
    """The header that it sees is of the client's trace, and names a span of ours as parent."""
    seen: list[str] = []

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["traceparent"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"answer")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.handle_request, daemon=True).start()
        trace, parent = trace_parent(0xA5)
        get(f"{service.address}/ask?url=http://127.0.0.1:{other.server_port}/", traceparent=parent)
    version, given, span, _ = seen[0].split("-")
    assert (version, given) == ("00", trace)
    assert span != "ab" * 8


def test_killed_worker_is_replaced(stack: Stack, tmp_path: Path) -> None:
    """What a worker had sent before SIGKILL stays, and the new worker is an instance of its own."""
    needs("fastapi", "uvicorn")
    with serving(UVICORN, EXAMPLES / "fastapi_uvicorn", environment(stack, "killed"), tmp_path / "log") as service:
        trace, parent = trace_parent(0xD1)
        worker = json.loads(get(f"{service.address}/chat?prompt=hello", traceparent=parent)[0])["worker"]
        eventually(lambda: requests_of(spans_of(stack, "killed", trace))[0])
        os.kill(worker, signal.SIGKILL)
        _, after = eventually(lambda: _asked_after(service.address, worker))
        service.stop()
    eventually(lambda: _at_least(len(requests_of(spans_of(stack, "killed"))), after))
    assert len(requests_of(spans_of(stack, "killed", trace))) == 1
    assert len(instances(stack, "killed", semconv.M_SERVER_DURATION)) >= 2


def _asked_after(address: str, killed: int) -> tuple[set[int], int]:
    try:
        return _workers(address, 2, without=killed)
    except OSError as error:  # a connection that the killed worker had accepted
        raise LookupError(str(error)) from error


def _at_least(found: int, wanted: int) -> None:
    assert found >= wanted


def test_recording_is_switched_in_a_running_worker(service: Service) -> None:
    """By an endpoint, without a restart; what was recorded is told."""
    get(f"{service.address}/chat?prompt=hello")
    told = json.loads(get(f"{service.address}/recording/false", data={})[0])
    assert told["recording"] is False
    assert len(told["counts"]) == 3


@pytest.mark.parametrize("command", [GUNICORN, UVICORN_IN_GUNICORN], ids=["preload", "uvicorn worker"])
def test_gunicorn(stack: Stack, tmp_path: Path, command: tuple[str, ...]) -> None:
    """Forked workers join the client's trace, are instances of their own, and deliver at SIGTERM."""
    needs("gunicorn", "fastapi", "uvicorn")
    name = "gunicorn" if command is GUNICORN else "gunicorn-uvicorn"
    folder = EXAMPLES / ("gunicorn_prefork" if command is GUNICORN else "fastapi_uvicorn")
    path = "" if command is GUNICORN else "chat"
    with serving(command, folder, environment(stack, name), tmp_path / "log") as service:
        trace, parent = trace_parent(0xE1)
        get(f"{service.address}/{path}?prompt=hello", traceparent=parent)
        asked = 2 if command is GUNICORN else 1
        workers: set[str] = set()
        while len(workers) < 2 and asked < 400:
            text, headers = get(f"{service.address}/{path}?prompt=hello")
            workers.add(headers.get("X-Worker") or str(json.loads(text)["worker"]))
            asked += 1
        assert service.stop() == 0
    eventually(lambda: _equal(len(requests_of(spans_of(stack, name))), asked))
    assert {str(process) for process in processes(stack, name).values()} == workers
    (request,) = requests_of(spans_of(stack, name, trace))
    assert named(spans_of(stack, name, trace), f"GET /{path}").parent == "ab" * 8
    assert request.parent
    eventually(lambda: _both(instances(stack, name, semconv.M_SERVER_DURATION)))


def _equal(found: int, wanted: int) -> None:
    assert found == wanted


def test_thread_pool(stack: Stack, tmp_path: Path) -> None:
    """Each job is one trace: the span in which it was given, and the request."""
    subprocess.run(
        [sys.executable, "app.py"], cwd=EXAMPLES / "thread_pool", env=environment(stack, "pool"), check=True, timeout=300, capture_output=True
    )
    eventually(lambda: _equal(len(requests_of(spans_of(stack, "pool"))), 4))
    spans = spans_of(stack, "pool")
    jobs = {span.id: span for span in spans if span.name.startswith("job ")}
    assert len(jobs) == 4
    assert {request.parent for request in requests_of(spans)} == set(jobs)


def _run_ranks(stack: Stack, commands: list[list[str]], variables: list[dict[str, str]], service: str) -> None:
    own = environment(stack, service)
    running = [
        subprocess.Popen(command, cwd=EXAMPLES / "torchrun_slurm", env={**own, **more}, stderr=subprocess.PIPE)
        for command, more in zip(commands, variables, strict=True)
    ]
    for process in running:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said.decode(errors="replace")[-4000:]


@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
def test_two_ranks_are_one_trace(stack: Stack, tmp_path: Path, launcher: str) -> None:
    """Requests of both ranks are children of the job's span and carry their rank; each rank is an instance."""
    name = f"ranks-{launcher}"
    if launcher == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "app.py"]
        _run_ranks(stack, [command], [{}], name)
    else:
        common = {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "INIT_METHOD": f"file://{tmp_path / 'meet'}"}
        ranks = [{**common, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
        _run_ranks(stack, [[sys.executable, "app.py"]] * 2, ranks, name)
    eventually(lambda: _equal(len(requests_of(spans_of(stack, name))), 4))
    spans = spans_of(stack, name)
    job = named(spans, "job")
    assert {request.parent for request in requests_of(spans)} == {job.id}
    assert sorted(request.attributes[semconv.RANK] for request in requests_of(spans)) == [0, 0, 1, 1]
    eventually(lambda: _both(instances(stack, name, semconv.M_SERVER_DURATION)))


def test_celery(stack: Stack, tmp_path: Path) -> None:
    """Tasks of the pool's processes are in the trace of their caller, and a graceful stop delivers all of them."""
    needs("celery")
    folder = EXAMPLES / "celery_prefork"
    variables = environment(stack, "celery", CELERY_FOLDER=str(tmp_path / "data"))
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency", "2", "--loglevel", "WARNING"]
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=log)
    try:
        caller = subprocess.run([sys.executable, "tasks.py"], cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)
        assert caller.returncode == 0, caller.stderr + (tmp_path / "log").read_text()
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    finally:
        worker.kill()
        worker.wait(30)
    trace = caller.stdout.split()[0]
    eventually(lambda: _equal(len(requests_of(spans_of(stack, "celery", trace))), 4))
    spans = spans_of(stack, "celery", trace)
    tasks = {span.id: span for span in spans if span.name == "task answer"}
    assert {request.parent for request in requests_of(spans)} == set(tasks)
    assert {task.parent for task in tasks.values()} == {named(spans, "caller").id}
