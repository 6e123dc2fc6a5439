"""The services of ``examples/services`` as real processes, and what their telemetry looks like.

In: a command and the address of a collector. Out: ``Service``, which is asked over HTTP, and spans by trace. What can fail: the service does
not answer in time (``RuntimeError`` with the end of its log).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from inferspan import semconv
from tests.integration.conftest import plain_environment
from tests.integration.servers import Stack
from tests.integration.spans_seen import Seen, from_otlp
from tests.support.ports import free_ports

__all__ = [
    "EXAMPLES",
    "Service",
    "environment",
    "get",
    "instances",
    "named",
    "needs",
    "processes",
    "requests_of",
    "serving",
    "spans_of",
    "trace_parent",
    "wait_until",
]

EXAMPLES = Path(__file__).parents[3] / "examples" / "services"
ROOT = EXAMPLES.parents[1]
READY = 120.0
_named: set[tuple[str, str]] = set()
"""Services that have been started, by their stack."""


def needs(*packages: str) -> None:
    """Skip where a package is not installed."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")


def environment(stack: Stack, service: str, **more: str) -> dict[str, str]:
    """What a service is started with: the variables that the guide names, and short intervals. A name is used once for each stack."""
    assert (stack.http, service) not in _named, f"another test has sent to this stack as {service!r}: use another name"
    _named.add((stack.http, service))
    path = os.pathsep.join([str(ROOT / "src"), *(place for place in sys.path if place.endswith(("site-packages", "pkgs", "ray")))])
    return {
        **plain_environment(),
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "OTEL_SERVICE_NAME": service,
        "OTEL_EXPORTER_OTLP_ENDPOINT": stack.http,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_BSP_SCHEDULE_DELAY": "500",
        "INFERSPAN_SAMPLER_INTERVAL": "1",
        **more,
    }


class Service:
    """A running service.

    Args:
        process: its main process.
        address: where it answers.
    """

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self.process = process
        self.address = address

    def stop(self) -> int:
        """End it by SIGTERM, and wait; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def get(url: str, *, data: Any = None, **headers: str) -> tuple[str, dict[str, str]]:
    """Text and headers of an answer; with ``data`` it is a POST of JSON."""
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode(), dict(answer.headers)


@contextmanager
def serving(command: Sequence[str], folder: Path, variables: dict[str, str], log: Path) -> Iterator[Service]:
    """Run a service until the block ends; ``{port}`` in the command is filled in with a free one."""
    port = free_ports(1)[0]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *(part.format(port=port) for part in command)], cwd=folder, env=variables, stdout=output, stderr=output
        )
    started = Service(process, f"http://127.0.0.1:{port}")
    try:
        wait_until(lambda: _answers(started.address), process, lambda: log.read_text(errors="replace"))
        yield started
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        for child in children:
            _end(child)
        process.wait(30)


def _end(child: psutil.Process) -> None:
    """End a process of the service, if it still runs."""
    with suppress(psutil.NoSuchProcess):
        child.kill()


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], output: Callable[[], str]) -> None:
    """Wait for what a process does; ``RuntimeError`` with the end of its output if it has ended, or when time is up."""
    deadline = time.monotonic() + READY
    while not ready():
        if time.monotonic() > deadline or process.poll() is not None:
            raise RuntimeError(output()[-4000:])
        time.sleep(0.2)


def _answers(address: str) -> bool:
    try:
        get(f"{address}/nothing-is-here")
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def trace_parent(number: int) -> tuple[str, str]:
    """A trace id, and the header of a client that begins it."""
    trace = f"{number:032x}"
    return trace, f"00-{trace}-{'ab' * 8}-01"


def spans_of(stack: Stack, service: str, trace: str | None = None) -> list[Seen]:
    """The spans that the collector has got from a service, of one trace or of all."""
    found = from_otlp(line for line in stack.raw_lines(service) if "resourceSpans" in line)
    return [span for span in found if trace is None or span.trace == trace]


def requests_of(spans: Sequence[Seen]) -> list[Seen]:
    """The requests of models among them."""
    return [span for span in spans if semconv.OPERATION_NAME in span.attributes]


def named(spans: Sequence[Seen], name: str) -> Seen:
    """The one span with this name; ``LookupError`` while there is none."""
    found = [span for span in spans if span.name == name]
    if len(found) != 1:
        raise LookupError(f"{len(found)} spans {name}: {[span.name for span in spans]}")
    return found[0]


def instances(stack: Stack, service: str, metric: str) -> set[str]:
    """``service.instance.id`` of everyone who has sent a metric."""
    found = set()
    for line in stack.raw_lines(service):
        for resource in line.get("resourceMetrics", ()):
            names = [one["name"] for scope in resource["scopeMetrics"] for one in scope["metrics"]]
            if metric in names:
                found |= {
                    item["value"]["stringValue"] for item in resource["resource"]["attributes"] if item["key"] == "service.instance.id"
                }
    return found


def processes(stack: Stack, service: str) -> dict[str, int]:
    """``process.pid`` of everyone who has sent spans, by ``service.instance.id``."""
    found = {}
    for line in stack.raw_lines(service):
        for resource in line.get("resourceSpans", ()):
            attributes = {item["key"]: item["value"] for item in resource["resource"]["attributes"]}
            found[attributes["service.instance.id"]["stringValue"]] = int(attributes["process.pid"]["intValue"])
    return found
