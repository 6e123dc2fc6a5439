"""The example of Ray Serve at a real collector: joined traces, batches, streams, metrics by replica, a graceful stop, and a crash.

Ray is not in the extra ``test``: ``make ray`` runs this.
"""

from __future__ import annotations

import os
import signal
import urllib.error
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from inferspan import semconv
from tests.integration.servers import Stack, eventually
from tests.integration.services.ray_cluster import Cluster, alive, cluster
from tests.integration.services.running import (
    EXAMPLES,
    environment,
    get,
    instances,
    named,
    needs,
    processes,
    requests_of,
    spans_of,
    trace_parent,
)

pytestmark = pytest.mark.integration

FOLDER = EXAMPLES / "ray_serve"


def test_ray_serve(stack: Stack, tmp_path: Path) -> None:
    """A request and a stream join the client's trace, a batch is a trace of its own, and a graceful stop delivers all of them."""
    needs("ray")
    # Spans are sent when a replica stops, and hardly before.
    variables = environment(stack, "ray", OTEL_BSP_SCHEDULE_DELAY="60000")
    plain, from_plain = trace_parent(0xF1)
    stream, from_stream = trace_parent(0xF2)
    batch, from_batch = trace_parent(0xF3)
    asked = 0

    def both_replicas_have_sent_metrics() -> None:
        nonlocal asked
        get(f"{service.address}/?prompt=hello")
        asked += 1
        assert len(instances(stack, "ray", semconv.M_SERVER_DURATION)) == 2

    with cluster(variables, tmp_path / "log") as nodes, nodes.application("app:app", FOLDER) as service:
        get(f"{service.address}/?prompt=hello", traceparent=from_plain)
        get(f"{service.address}/?prompt=hello&stream=1", traceparent=from_stream)
        get(f"{service.address}/?prompt=hello&batch=1", traceparent=from_batch)
        eventually(both_replicas_have_sent_metrics)
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(60) == 0, nodes.output()[-4000:]

    def all_have_arrived() -> list[int]:
        found = [len(requests_of(spans_of(stack, "ray", trace))) for trace in (plain, stream, batch)]
        assert [*found, len(requests_of(spans_of(stack, "ray")))] == [1, 1, 0, 3 + asked]
        return found

    eventually(all_have_arrived)
    for trace in (plain, stream):
        spans = spans_of(stack, "ray", trace)
        replica = named(spans, "replica")
        assert replica.parent == "ab" * 8
        assert requests_of(spans)[0].parent == replica.id


def test_a_replica_that_is_killed(stack: Stack, tmp_path: Path) -> None:
    """What it has sent stays, and the replica that Ray starts in its place is an instance of its own."""
    needs("ray")
    trace, parent = trace_parent(0xF4)

    def requests_arrived() -> int:
        return len(requests_of(spans_of(stack, "ray-crash", trace)))

    with cluster(environment(stack, "ray-crash"), tmp_path / "log") as nodes, nodes.application("app:app", FOLDER) as service:

        def ask_until_there_are(replicas: int) -> dict[str, int]:
            # While a replica is missing, its requests fail.
            with suppress(urllib.error.HTTPError):
                get(f"{service.address}/?prompt=hello", traceparent=parent)
            found = processes(stack, "ray-crash")
            assert len(found) == replicas
            return found

        before = eventually(lambda: ask_until_there_are(2))
        answered = eventually(requests_arrived)
        os.kill(next(iter(before.values())), signal.SIGKILL)
        after = eventually(lambda: ask_until_there_are(3))
        (new,) = set(after) - set(before)
        assert after[new] not in before.values()
        assert requests_arrived() > answered


def test_nothing_of_the_cluster_is_left_after_a_failure(stack: Stack, tmp_path: Path) -> None:
    """A test that fails inside ends all processes of Ray, those of replicas included."""
    needs("ray")
    running: list[psutil.Process] = []

    def fail(nodes: Cluster) -> None:
        running.extend(nodes.processes())
        raise LookupError("what a test has missed")

    with pytest.raises(LookupError), cluster(environment(stack, "failed"), tmp_path / "log") as nodes:
        fail(nodes)
    assert len(running) > 3
    assert [process for process in running if alive(process)] == []
