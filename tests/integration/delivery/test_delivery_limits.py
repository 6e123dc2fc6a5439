"""Where the promise ends: a full queue and a full memory refuse instead of acknowledging, and what a killed gateway had not decided is gone.

Each of the statements of docs/delivery.md about limits is one test here. The figures are printed.
"""

from __future__ import annotations

import time
from collections import Counter

import pytest

from inferspan import semconv
from tests.integration.conftest import plain_environment
from tests.integration.delivery.fleet import Fleet, send
from tests.integration.delivery.telemetry_made import attributes, log_message, metric_message, request_spans, trace_message
from tests.integration.servers import Servers, eventually, get_json
from tests.support.otlp_receivers import attributes_of, grpc_receiver
from tests.support.ports import LOOPBACK, free_ports
from tests.support.programs import need

pytestmark = pytest.mark.integration

RETRYABLE = {429, 502, 503, 504}
"""Answers of OTLP over HTTP after which a sender tries again."""


def nowhere() -> str:
    """An address where nobody listens."""
    return f"{LOOPBACK}:{free_ports(1)[0]}"


def test_a_full_queue_refuses_and_loses_nothing(fleet: Fleet) -> None:
    """Once the disk that a queue may take is used up, senders are told to try again; what was acknowledged before arrives."""
    with grpc_receiver() as last:
        gateway = fleet.gateway(last.endpoint)
        agent = fleet.agent(gateway.grpc, OTELCOL_QUEUE_BYTES="200000").start()
        acknowledged, answer = set(), None
        for number in range(200):
            answer = send(agent.http, "logs", log_message([f"{number} {'x' * 4000}"]))
            if not answer.acknowledged:
                break
            acknowledged.add(number)
        assert answer is not None
        assert answer.status in RETRYABLE
        gateway.start()

        def look() -> None:
            assert {int(record.body.string_value.split()[0]) for record in last.logs()} == acknowledged

        eventually(look)
        print(
            f"full queue of 200 kB: {len(acknowledged)} requests of 4 kB acknowledged, all arrived; the next was answered {answer.status}"
        )


def test_large_requests_pass(fleet: Fleet) -> None:
    """A failed request of 5,000 spans, one with 6 MB of content, goes through both collectors whole; only the content is cut, to 64 KiB."""
    with grpc_receiver() as last:
        gateway = fleet.gateway(last.endpoint, OTELCOL_DECISION_WAIT_AFTER_ROOT="1s", OTELCOL_BASELINE_PERCENT="0").start()
        agent = fleet.agent(gateway.grpc).start()
        spans = request_spans(steps=1666, layers=2, error=True)
        spans[-1].attributes.extend(attributes({semconv.INPUT_MESSAGES: "x" * 6_000_000}))
        assert send(agent.http, "traces", trace_message(spans)).acknowledged

        def look() -> None:
            assert {span.span_id for span in last.spans()} == {span.span_id for span in spans}

        eventually(look)
        (content,) = [attributes_of(span).get(semconv.INPUT_MESSAGES) for span in last.spans() if span.span_id == spans[-1].span_id]
        assert content == "x" * 65536
        print(f"large: {len(spans)} spans with 6 MB of content in one request, all arrived")


def test_a_full_memory_refuses(fleet: Fleet) -> None:
    """An agent over its memory limit acknowledges nothing: the sender is told to try again."""
    agent = fleet.agent(nowhere(), OTELCOL_MEMORY_MIB="8", OTELCOL_MEMORY_SPIKE_MIB="4").start()

    def look() -> None:
        answers = {
            kind: send(agent.http, kind, message).status
            for kind, message in (
                ("traces", trace_message(request_spans())),
                ("metrics", metric_message([1])),
                ("logs", log_message(["1"])),
            )
        }
        assert set(answers.values()) <= RETRYABLE, answers

    eventually(look)


def test_killed_gateway_loses_only_what_it_had_not_decided(fleet: Fleet) -> None:
    """Traces that were decided are on disk and arrive after a SIGKILL; those younger than the decision were in memory and do not."""
    with grpc_receiver() as last:
        waits = {"OTELCOL_DECISION_WAIT": "60s", "OTELCOL_DECISION_WAIT_AFTER_ROOT": "1s", "OTELCOL_BASELINE_PERCENT": "100"}
        gateway = fleet.gateway(nowhere(), **waits).start()
        decided = [request_spans() for _ in range(20)]
        undecided = [request_spans()[:-1] for _ in range(20)]
        for spans in (*decided, *undecided):
            assert send(gateway.http, "traces", trace_message(spans)).acknowledged
        time.sleep(4)
        gateway.kill()
        gateway.change(JAEGER_OTLP=last.endpoint.removeprefix("http://"))
        gateway.start()

        def look() -> Counter[bytes]:
            found = Counter(span.trace_id for span in last.spans())
            assert found.keys() >= {spans[0].trace_id for spans in decided}
            return found

        found = eventually(look)
        assert found.keys() == {spans[0].trace_id for spans in decided}
        assert all(found[spans[0].trace_id] >= len(spans) for spans in decided)
        print(f"gateway killed: {len(decided)} of {len(decided)} decided traces arrived, 0 of {len(undecided)} undecided ones")


def test_jaeger_away_makes_agents_wait(fleet: Fleet) -> None:
    """A gateway whose queue is full takes no more; agents keep what comes, and all of it arrives when Jaeger is back."""
    away = nowhere()
    small = {"OTELCOL_QUEUE_BYTES": "20000", "OTELCOL_NUM_TRACES": "20"}
    share = {"OTELCOL_BASELINE_PERCENT": "100", "OTELCOL_DECISION_WAIT_AFTER_ROOT": "1s", "OTELCOL_DECISION_WAIT": "2s"}
    batch = "exporters: {otlp_grpc/jaeger: {sending_queue: {batch: {min_size: 1000, max_size: 10000}}}}"
    gateway = fleet.gateway(away, overlays=[batch], **small, **share)
    agent = fleet.agent(gateway.grpc)
    gateway.start(wait=False)
    agent.start()
    gateway.ready()
    sent: set[bytes] = set()
    for _ in range(100):
        spans = request_spans(steps=4, layers=2)
        assert send(agent.http, "traces", trace_message(spans)).acknowledged
        sent |= {span.span_id for span in spans}
    time.sleep(4)
    with grpc_receiver(int(away.rpartition(":")[2])) as last:

        def look() -> Counter[bytes]:
            found = Counter(span.span_id for span in last.spans())
            assert found.keys() == sent, f"{len(sent - found.keys())} of {len(sent)} missing"
            return found

        found = eventually(look)
    print(f"Jaeger away, queue of 20 kB: {len(sent)} spans acknowledged by the agent, all arrived, {found.total() - len(found)} twice")


def test_requests_that_run_while_a_gateway_restarts(fleet: Fleet) -> None:
    """A stopped gateway decides at once and forgets its decisions: failed requests stay whole, plain ones keep only their beginning."""
    with grpc_receiver() as last:
        gateway = fleet.gateway(last.endpoint, **{"OTELCOL_BASELINE_PERCENT": "0", "OTELCOL_DECISION_WAIT_AFTER_ROOT": "1s"}).start()
        failed = [request_spans(error=True) for _ in range(20)]
        plain = [request_spans() for _ in range(20)]
        for spans in (*failed, *plain):
            assert send(gateway.http, "traces", trace_message(spans[:3])).acknowledged
        gateway.end()
        gateway.start()
        for spans in (*failed, *plain):
            assert send(gateway.http, "traces", trace_message(spans[3:])).acknowledged

        def look() -> None:
            found = {span.span_id for span in last.spans()}
            assert found >= {span.span_id for spans in failed for span in spans}

        eventually(look)
        time.sleep(1)
        found = {span.span_id for span in last.spans()}
        assert found == {span.span_id for spans in failed for span in spans} | {span.span_id for spans in plain for span in spans[:3]}
        print(f"gateway restarted: {len(failed)} of {len(failed)} failed requests whole, {len(plain)} plain ones split")


def test_metrics_wait_on_the_agent_until_prometheus_has_them(fleet: Fleet) -> None:
    """A gateway acknowledges metrics when Prometheus has taken them: neither its death nor Prometheus' absence loses any."""
    need("prometheus")
    gateway = fleet.gateway(nowhere(), overlays=(), PROMETHEUS_REMOTE_WRITE=f"http://{nowhere()}/api/v1/write")
    agent = fleet.agent(gateway.grpc)
    gateway.start(wait=False)
    agent.start()
    gateway.ready()
    acknowledged = [number for number in range(50) if send(agent.http, "metrics", metric_message([number])).acknowledged]
    assert len(acknowledged) == 50
    time.sleep(1)
    gateway.kill()
    with Servers(fleet.folder, plain_environment()) as servers:
        url = servers.prometheus("prometheus", lambda settings: settings.update(rule_files=[], scrape_configs=[]))
        gateway.change(PROMETHEUS_REMOTE_WRITE=f"{url}/api/v1/write")
        gateway.start()

        def look() -> None:
            answer = get_json(f"{url}/api/v1/query", query="last_over_time(delivery_probe[5m])")
            found = [int(series["metric"]["number"]) for series in answer["data"]["result"]]
            assert sorted(found) == acknowledged

        eventually(look)
    print(f"Prometheus away, gateway killed: {len(acknowledged)} of {len(acknowledged)} acknowledged points stored")
