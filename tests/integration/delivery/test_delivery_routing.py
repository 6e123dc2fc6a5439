"""Two agents before two gateways: all spans of a trace meet at one gateway, whichever agent and whichever request brought them."""

from __future__ import annotations

import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest

from tests.integration.delivery.fleet import Fleet, send
from tests.integration.delivery.telemetry_made import request_spans, trace_message
from tests.integration.servers import eventually
from tests.support.otlp_receivers import grpc_receiver

pytestmark = pytest.mark.integration

TRACES = 300
PARTS = 4


def test_no_trace_is_split(fleet: Fleet) -> None:
    """Hundreds of traces, each in four requests, out of order and by both agents, come out whole and at one gateway each."""
    keep_all = {"OTELCOL_BASELINE_PERCENT": "100", "OTELCOL_DECISION_WAIT": "3s", "OTELCOL_DECISION_WAIT_AFTER_ROOT": "2s"}
    with grpc_receiver() as one, grpc_receiver() as other:
        lasts = [one, other]
        gateways = [fleet.gateway(last.endpoint, name=f"gateway-{number}", **keep_all) for number, last in enumerate(lasts)]
        addresses = [gateway.grpc for gateway in gateways]
        # The list in another order means the same.
        agents = [fleet.agent(*addresses, name="agent-0"), fleet.agent(*reversed(addresses), name="agent-1")]
        for node in (*gateways, *agents):
            node.start(wait=False)
        for node in (*gateways, *agents):
            node.ready()
        sent = defaultdict(set)
        parts = []
        for _ in range(TRACES):
            spans = request_spans(steps=3, layers=2)
            sent[spans[0].trace_id] = {span.span_id for span in spans}
            random.shuffle(spans)
            parts += [spans[number::PARTS] for number in range(PARTS)]
        random.shuffle(parts)
        batches = [list(chain(*parts[start : start + 10])) for start in range(0, len(parts), 10)]  # a request has spans of several traces

        def post(numbered: tuple[int, list[object]]) -> bool:
            number, spans = numbered
            return send(agents[number % 2].http, "traces", trace_message(spans)).acknowledged  # type: ignore[arg-type]

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(post, enumerate(batches)))

        def look() -> list[dict[bytes, set[bytes]]]:
            found = []
            for last in lasts:
                seen = defaultdict(set)
                for span in last.spans():
                    seen[span.trace_id].add(span.span_id)
                found.append(dict(seen))
            assert sum(len(spans) for seen in found for spans in seen.values()) >= sum(map(len, sent.values()))
            return found

        first, second = eventually(look)
        assert not first.keys() & second.keys()
        assert first | second == sent
        assert min(len(first), len(second)) > TRACES / 5, "both gateways have work"
        print(f"routing: {TRACES} traces in {len(batches)} requests by 2 agents: {len(first)} + {len(second)} whole, 0 split")
