"""Which traces a gateway keeps, and which of them whole: every statement of docs/delivery.md about sampling, on one gateway.

Spans are sent as inferspan sends them: steps while a request runs, its request span at the end. All cases run side by side, because
each of them waits for decisions. The figures are printed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.integration.conftest import plain_environment
from tests.integration.delivery.fleet import Fleet, Node, running_fleet, send
from tests.integration.delivery.telemetry_made import new_trace, request_spans, span, trace_message
from tests.integration.servers import eventually
from tests.support.otlp_receivers import grpc_receiver

pytestmark = pytest.mark.integration

WAIT, AFTER_ROOT = 4.0, 1.0
TICK = 1.0
"""The sampler decides once a second."""
BASELINE = 20
PLAIN = 400
EACH = 20
ENVIRONMENT = {
    "OTELCOL_DECISION_WAIT": f"{WAIT:.0f}s",
    "OTELCOL_DECISION_WAIT_AFTER_ROOT": f"{AFTER_ROOT:.0f}s",
    "OTELCOL_SLOW_MS": "2000",
    "OTELCOL_BASELINE_PERCENT": str(BASELINE),
}

# Kept because of one attribute or time, whatever the share: what request_spans is told.
REASONS: Mapping[str, dict[str, Any]] = {
    "error": {"error": True, "ERROR_TYPE": "RuntimeError"},
    "slow": {"seconds": 2.5},
    "slow first token": {"TTFT": 2.1},
    "non-finite": {"NONFINITE": True},
    "forced": {"KEEP": True},
}


@dataclass(frozen=True)
class Kept:
    """What was sent and what came out, by case, each as the spans of every trace."""

    sent: Mapping[str, Mapping[bytes, set[bytes]]]
    found: Mapping[bytes, set[bytes]]

    def whole(self, case: str) -> int:
        """How many traces of a case came out with all their spans."""
        return sum(self.found.get(trace) == spans for trace, spans in self.sent[case].items())

    def absent(self, case: str) -> int:
        """How many traces of a case came out with no span."""
        return sum(trace not in self.found for trace in self.sent[case])

    def say(self, case: str) -> None:
        """Print the figures of a case."""
        total = len(self.sent[case])
        whole, absent = self.whole(case), self.absent(case)
        print(f"tail sampling: {case}: {total} sent, {whole} kept whole, {absent} dropped whole, {total - whole - absent} split")


class Schedule:
    """Spans to be sent at certain times, in seconds from the start."""

    def __init__(self) -> None:
        self.sent: dict[str, dict[bytes, set[bytes]]] = defaultdict(lambda: defaultdict(set))
        self._at: dict[float, list[Span]] = defaultdict(list)

    def add(self, case: str, *parts: tuple[float, list[Span]]) -> None:
        """One trace of a case, in parts."""
        for when, spans in parts:
            self._at[when] += spans
            for each in spans:
                self.sent[case][each.trace_id].add(each.span_id)

    def run(self, gateway: Node) -> None:
        """Send everything at its time."""
        begin = time.monotonic()
        for when in sorted(self._at):
            time.sleep(max(0.0, begin + when - time.monotonic()))
            spans = self._at[when]
            for start in range(0, len(spans), 500):
                assert send(gateway.http, "traces", trace_message(spans[start : start + 500])).acknowledged


def _schedule() -> Schedule:
    plan = Schedule()
    later = WAIT + 2 * TICK  # after the decision, if nothing brings it forward
    for _ in range(PLAIN):
        plan.add("plain", (0, request_spans()))
    for _ in range(EACH):
        for reason, told in REASONS.items():
            plan.add(reason, (0, request_spans(**told)))
            # Handed over live: the first steps come a while before the request span, which alone says why the trace is wanted.
            spans = request_spans(**told)
            plan.add(f"{reason}, steps before its root", (0, spans[:4]), (WAIT - 2, spans[4:]))
        long = request_spans(seconds=later, steps=6)
        plan.add("longer than decision_wait", (0, long[:3]), (1, long[3:9]), (later, long[9:]))
        quiet = request_spans(steps=3, **REASONS["error"])
        plan.add("longer, silent in between, fails at last", (0, quiet[:1]), (later + 1, quiet[1:]))
        plan.add("root never comes", (0, request_spans(parent=b"elsewher")))
        trace = new_trace()
        finished = request_spans(trace)
        other = span(trace, "prefill_step", finished[-1].span_id, time.time_ns(), 0.1, error=True, STEP_INDEX=0)
        plan.add("another rank's error after the decision", (0, finished), (later, [other]))
        trace = new_trace()
        forced = request_spans(trace, KEEP=True)
        plan.add("another rank's spans after a decision to keep", (0, forced), (later, request_spans(trace, parent=forced[-1].span_id)))
    return plan


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """Send all cases to one gateway and wait until it has decided about every trace."""
    with running_fleet(tmp_path_factory.mktemp("sampling"), plain_environment()) as fleet, grpc_receiver() as last:
        plan = _schedule()
        plan.run(_started(fleet, last.endpoint))
        time.sleep(WAIT + 2 * TICK)

        def look() -> int:
            count = len(last.spans())
            time.sleep(1)
            assert count == len(last.spans()), "still arriving"
            return count

        eventually(look)
        found: dict[bytes, set[bytes]] = defaultdict(set)
        for each in last.spans():
            found[each.trace_id].add(each.span_id)
        yield Kept(plan.sent, found)


def _started(fleet: Fleet, last: str) -> Node:
    return fleet.gateway(last, **ENVIRONMENT).start()


@pytest.mark.parametrize("reason", REASONS)
def test_wanted_traces_are_kept_whole(kept: Kept, reason: str) -> None:
    """Every failed, slow, non-finite and forced request is kept with all its spans, also if its steps came before its request span."""
    for case in (reason, f"{reason}, steps before its root"):
        kept.say(case)
        assert kept.whole(case) == EACH


def test_a_share_of_the_others_is_kept_whole(kept: Kept) -> None:
    """Plain requests are kept at the baseline share, and a trace is kept with all its spans or not at all."""
    kept.say("plain")
    assert kept.whole("plain") + kept.absent("plain") == PLAIN
    # Five standard deviations of a binomial distribution.
    assert abs(kept.whole("plain") - PLAIN * BASELINE / 100) < 5 * (PLAIN * BASELINE / 100 * (1 - BASELINE / 100)) ** 0.5


@pytest.mark.parametrize("case", ["longer than decision_wait", "longer, silent in between, fails at last"])
def test_requests_longer_than_the_wait_are_kept_whole(kept: Kept, case: str) -> None:
    """A request that still runs when its decision falls is kept, and so is all that comes of it later."""
    kept.say(case)
    assert kept.whole(case) == EACH


def test_traces_without_a_root_are_kept(kept: Kept) -> None:
    """A trace whose root goes to another collector counts as still running."""
    kept.say("root never comes")
    assert kept.whole("root never comes") == EACH


def test_what_comes_after_a_decision_shares_it(kept: Kept) -> None:
    """Late spans of a kept trace are kept; an error that arrives after its finished trace was dropped does not bring it back."""
    case = "another rank's spans after a decision to keep"
    kept.say(case)
    assert kept.whole(case) == EACH
    case = "another rank's error after the decision"
    kept.say(case)
    assert kept.whole(case) + kept.absent(case) == EACH
    assert kept.absent(case) > 0
