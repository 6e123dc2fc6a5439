"""Metrics of forked processes: each counts what ran in it, from a time of its own, and all together what ran."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import ResourceDetector

from tests.export.program import Program

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
COUNTED = """
counter = metrics.get_meter("t").create_counter("requests")
histogram = metrics.get_meter("t").create_histogram("seconds")
def work(times):
    for _ in range(times):
        counter.add(1, {"kind": "x"})
        histogram.record(0.5)
"""


def sums_by_start(path: Path) -> dict[str, list[int]]:
    """The last sum of each series of a metric, told apart by their start times, the smallest first."""
    found: dict[str, dict[int, int]] = {}
    for line in path.read_text().splitlines():
        for block in json.loads(line).get("resourceMetrics", ()):
            for metric in [m for scope in block["scopeMetrics"] for m in scope["metrics"]]:
                (point,) = metric.get("sum", metric.get("histogram"))["dataPoints"]
                series = found.setdefault(metric["name"], {})
                series[int(point["startTimeUnixNano"])] = int(point.get("asInt", point.get("count", 0)))
    return {name: sorted(series.values()) for name, series in found.items()}


def sums(path: Path) -> dict[str, list[tuple[int, int]]]:
    """The last (requests, seconds) of each instance, with their start times."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for line in path.read_text().splitlines():
        for block in json.loads(line).get("resourceMetrics", ()):
            (instance,) = [a["value"]["stringValue"] for a in block["resource"]["attributes"] if a["key"] == "service.instance.id"]
            for metric in [m for scope in block["scopeMetrics"] for m in scope["metrics"]]:
                (point,) = metric.get("sum", metric.get("histogram"))["dataPoints"]
                value = int(point.get("asInt", point.get("count", 0)))
                found.setdefault(instance, {})[metric["name"]] = (value, int(point["startTimeUnixNano"]))
    return {instance: [values["requests"], values["seconds"]] for instance, values in found.items()}


def checked(found: dict[str, list[tuple[int, int]]], expected: list[int]) -> list[int]:
    """Start times in the order of ``expected`` sums, which both metrics of each process have."""
    ordered = sorted(found.values())
    assert [[value for value, _ in both] for both in ordered] == [[value] * 2 for value in sorted(expected)]
    return [start for both in ordered for _, start in both]


def run(program: Program, body: str, **environ: str) -> Any:
    """Run a program that counts."""
    return program(COUNTED + textwrap.dedent(body), **environ)


def test_child_counts_from_zero(program: Program) -> None:
    """Parent and children add up to what ran, the sums of children start after the fork, also in a child of a child."""
    body = """
    otlp.configure(session_file="s.jsonl")
    work(10)
    otlp.force_flush(10)
    print(time.time_ns(), flush=True)
    if os.fork() == 0:
        work(2)
        if os.fork() == 0:
            work(1)
            otlp.force_flush(10)
            os._exit(0)
        os.wait()
        otlp.force_flush(10)
        os._exit(0)
    os.wait()
    work(5)
    """
    (forked,) = run(program, body)
    starts = checked(sums(program.path / "s.jsonl"), [1, 2, 15])
    assert min(starts[:4]) > forked
    assert max(starts[4:]) < forked


def test_child_counts_while_the_parent_collects(program: Program) -> None:
    """A fork in the midst of collections and measurements of other threads leaves no lock behind that a child waits for."""
    body = """
    import threading
    otlp.configure(session_file="s.jsonl")
    work(1)
    stop = threading.Event()
    def busy(call):
        while not stop.is_set():
            call()
    provider = metrics.get_meter_provider()
    reader = list(provider._measurement_consumer._reader_storages)[0]
    threads = [threading.Thread(target=busy, args=(call,), daemon=True) for call in (reader.collect, lambda: work(1))]
    [thread.start() for thread in threads]
    statuses = []
    for _ in range(15):
        if os.fork() == 0:
            work(3)
            os._exit(0 if otlp.force_flush(20) else 1)
        statuses.append(os.wait()[1])
    stop.set()
    [thread.join() for thread in threads]
    print(json.dumps(statuses))
    """
    assert run(program, body, OTEL_TRACES_EXPORTER="none") == [[0] * 15]
    children = [both for both in sums(program.path / "s.jsonl").values() if both[0][0] == 3]
    assert len(children) == 15


def test_processes_of_multiprocessing_count_from_zero(program: Program) -> None:
    """Forked processes of multiprocessing add up with their parent."""
    body = """
    import multiprocessing
    otlp.configure(session_file="s.jsonl")
    work(10)
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=work, args=(times,)) for times in (1, 2)]
    [child.start() for child in children]
    [child.join() for child in children]
    """
    run(program, body)
    checked(sums(program.path / "s.jsonl"), [1, 2, 10])


def test_hosts_provider_is_left_alone(program: Program) -> None:
    """A reader of the host's keeps its sums in a child, as the SDK leaves them; the session file that was asked for counts from zero."""
    body = """
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    theirs = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([theirs], shutdown_on_exit=False))
    otlp.configure(session_file="s.jsonl")
    work(10)
    if os.fork() == 0:
        work(2)
        data = theirs.get_metrics_data()
        points = [p for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics for p in m.data.data_points]
        print(json.dumps([getattr(p, "value", None) or p.count for p in points]), flush=True)
        otlp.force_flush(10)
        os._exit(0)
    os.wait()
    """
    assert run(program, body) == [[12, 12]]
    # Whether parent and child are different instances is for the host's SDK to say.
    assert sums_by_start(program.path / "s.jsonl") == {"requests": [2, 10], "seconds": [2, 10]}


def test_errors_of_a_child_are_its_own(program: Program) -> None:
    """What we have contained before the fork is counted by the parent alone."""
    body = """
    from inferspan import guard
    guard.count("x")
    if os.fork() == 0:
        print(json.dumps(guard.error_counts()), flush=True)
        os._exit(0)
    os.wait()
    print(json.dumps(guard.error_counts()))
    """
    assert run(program, body) == [{}, {"x": 1}]


RESOURCES = """
import torch
import inferspan
def say():
    with inferspan.stage("part"):
        model(torch.ones(1, 2))
    work(1)
    _logs.get_logger("t").emit(_logs.LogRecord(body="text", timestamp=1))
    inferspan.flush()
model = torch.nn.Linear(2, 2)
handle = inferspan.instrument(model, session_file="s.jsonl")
"""
FORKS = """
say()
if os.fork() == 0:
    say()
    if os.fork() == 0:
        say()
        print(os.getpid(), flush=True)
        os._exit(0)
    os.wait()
    print(os.getpid(), flush=True)
    os._exit(0)
os.wait()
say()
print(os.getpid(), flush=True)
"""


def process_ids(path: Path) -> dict[str, dict[str, set[str]]]:
    """The process ids on the resources of each signal, by instance."""
    found: dict[str, dict[str, set[str]]] = {}
    for line in path.read_text().splitlines():
        for signal, blocks in json.loads(line).items():
            for block in blocks:
                attributes = {item["key"]: item["value"] for item in block["resource"]["attributes"]}
                instance = attributes["service.instance.id"]["stringValue"]
                found.setdefault(signal, {}).setdefault(instance, set()).add(attributes["process.pid"].get("intValue", "theirs"))
    return found


@pytest.mark.parametrize("signal", ["resourceSpans", "resourceMetrics", "resourceLogs"])
def test_children_have_their_own_process_id(signal: str, program: Program) -> None:
    """One for each instance, of spans packed by us, metrics and log records, in children and their children."""
    processes = program(COUNTED + RESOURCES + FORKS)
    found = process_ids(program.path / "s.jsonl")[signal]
    assert sorted([*ids] for ids in found.values()) == sorted([str(process)] for process in processes)


def test_a_process_id_of_the_user_stays(program: Program) -> None:
    """What ``OTEL_RESOURCE_ATTRIBUTES`` says is said of children, too."""
    program(COUNTED + RESOURCES + FORKS, OTEL_RESOURCE_ATTRIBUTES="process.pid=mine")
    found = process_ids(program.path / "s.jsonl")
    assert {process for instances in found.values() for ids in instances.values() for process in ids} == {"theirs"}


@pytest.mark.skipif(not hasattr(ResourceDetector, "is_process_dependent"), reason="from 1.44 on the SDK asks again")
def test_the_detector_is_asked_again_in_a_child(program: Program) -> None:
    """A host's provider that names it in ``OTEL_EXPERIMENTAL_RESOURCE_DETECTORS`` gets the child's process id."""
    body = """
    from opentelemetry.sdk.trace import TracerProvider
    provider = TracerProvider()
    if os.fork() == 0:
        print(json.dumps([provider.resource.attributes["process.pid"], os.getpid()]), flush=True)
        os._exit(0)
    os.wait()
    """
    ((found, expected),) = run(program, body, OTEL_EXPERIMENTAL_RESOURCE_DETECTORS="inferspan")
    assert found == expected
