"""What an agent has acknowledged arrives, however often the agent is killed and however long the gateway is away.

Every span, metric point and log record is numbered; a sender repeats nothing. The figures are printed: sent, acknowledged, arrived,
arrived twice.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.integration.delivery.fleet import Fleet, Node, send
from tests.integration.delivery.telemetry_made import log_message, metric_message, request_spans, trace_message
from tests.integration.servers import eventually
from tests.support.otlp_receivers import Received, attributes_of, grpc_receiver

pytestmark = pytest.mark.integration

KINDS = ("traces", "metrics", "logs")
ALL_KEPT = {"OTELCOL_BASELINE_PERCENT": "100", "OTELCOL_DECISION_WAIT": "2s", "OTELCOL_DECISION_WAIT_AFTER_ROOT": "1s"}


class Sender:
    """Sends small requests of all three kinds to an agent, until it is stopped, and notes which were acknowledged."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sent: dict[str, set[str]] = {kind: set() for kind in KINDS}
        self.acknowledged: dict[str, set[str]] = {kind: set() for kind in KINDS}
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(kind,)) for kind in KINDS]

    def __enter__(self) -> Sender:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send no more."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self, kind: str) -> None:
        number = 0
        while not self._stopped.is_set():
            numbers = range(number, number + 5)
            if kind == "traces":
                spans = request_spans(steps=1, layers=1)
                names, message = {span.span_id.hex() for span in spans}, trace_message(spans)
            elif kind == "metrics":
                names, message = {str(each) for each in numbers}, metric_message(numbers)
            else:
                names, message = {str(each) for each in numbers}, log_message([str(each) for each in numbers])
            number += 5
            self.sent[kind] |= names
            if send(self.url, kind, message).acknowledged:
                self.acknowledged[kind] |= names
            time.sleep(0.01)

    def more(self, count: int = 60) -> None:
        """Wait until that many more of each kind have been acknowledged."""
        goals = {kind: len(names) + count for kind, names in self.acknowledged.items()}

        def look() -> None:
            missing = [kind for kind, goal in goals.items() if len(self.acknowledged[kind]) < goal]
            assert not missing, f"the agent acknowledges no more {missing}"

        eventually(look, pause=0.02)


def arrived(last: Received) -> dict[str, Counter[str]]:
    """How often each numbered thing came out at the end."""
    points = [point for metric in last.metrics() if metric.name == "delivery.probe" for point in metric.gauge.data_points]
    return {
        "traces": Counter(span.span_id.hex() for span in last.spans()),
        "metrics": Counter(attributes_of(point)["number"] for point in points),
        "logs": Counter(record.body.string_value for record in last.logs()),
    }


def check(sender: Sender, last: Received, title: str, *, quiet: float = 120.0, longest: float = 600.0) -> None:
    """Everything acknowledged arrives, and nothing that was never sent; the figures are printed.

    Args:
        sender: what was sent and acknowledged.
        last: what has arrived.
        title: of the figures.
        quiet: seconds in which nothing more arrives, after which the rest counts as lost.
        longest: seconds to wait in all, on however slow a machine.
    """
    began = moved = time.monotonic()
    most = 0

    def look() -> dict[str, Counter[str]]:
        nonlocal moved, most
        found = arrived(last)
        if (count := sum(map(len, found.values()))) > most:
            moved, most = time.monotonic(), count
        missing = {kind: len(names - found[kind].keys()) for kind, names in sender.acknowledged.items()}
        if any(missing.values()) and time.monotonic() < min(moved + quiet, began + longest):
            raise LookupError(f"acknowledged and not yet arrived: {missing}")
        return found

    found = eventually(look, timeout=longest)
    missing = {kind: len(names - found[kind].keys()) for kind, names in sender.acknowledged.items()}
    assert not any(missing.values()), f"acknowledged and not arrived: {missing}"
    for kind in KINDS:
        assert found[kind].keys() <= sender.sent[kind]
        twice = found[kind].total() - len(found[kind])
        print(f"{title}: {kind}: sent {len(sender.sent[kind])}, acknowledged {len(sender.acknowledged[kind])}, ", end="")
        print(
            f"arrived {len(found[kind])}, of them not acknowledged {len(found[kind].keys() - sender.acknowledged[kind])}, duplicates {twice}"
        )


def again(node: Node, end: Callable[[], None]) -> None:
    """End a node and start it on the same folder."""
    end()
    node.start()


def test_nothing_acknowledged_is_lost(fleet: Fleet) -> None:
    """The gateway goes away, the agent is killed while it receives, stopped, killed while it drains; all that it acknowledged arrives."""
    with grpc_receiver() as last:
        gateway = fleet.gateway(last.endpoint, **ALL_KEPT)
        agent = fleet.agent(gateway.grpc)
        gateway.start(wait=False)
        agent.start(wait=False)
        gateway.ready()
        agent.ready()
        with Sender(agent.http) as sender:
            sender.more()
            gateway.end()
            sender.more()
            again(agent, agent.kill)  # while it receives, nowhere to send to
            sender.more()
            again(agent, agent.end)  # an orderly stop, with a full queue
            sender.more()
            again(agent, agent.kill)
            sender.more(500)
            gateway.start()
            for pause in (0.02, 0.1, 0.2, 0.4):  # while it receives and drains
                time.sleep(pause)
                again(agent, agent.kill)
                sender.more(20)
        check(sender, last, "gateway away, agent killed 6 times and stopped once")
