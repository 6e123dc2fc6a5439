"""A real program through agent and gateway into Jaeger: every trace that is wanted is there with each span that the program made.

What it made stands in its session file. Its waits are shorter than those of the configuration, and so is the gateway's.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from tests.integration.conftest import RunProgram, plain_environment
from tests.integration.delivery.fleet import Fleet
from tests.integration.servers import Servers, eventually, get_json
from tests.integration.spans_seen import from_jaeger, from_otlp
from tests.support.programs import need

pytestmark = pytest.mark.integration

WANTED = {"failed", "slow-first-token", "long", "forced", "non-finite"}
ROOT = Path(__file__).resolve().parents[3]
SERVICE = "delivery-job"
SAMPLING = {
    "OTELCOL_DECISION_WAIT": "2s",  # the long request takes longer
    "OTELCOL_DECISION_WAIT_AFTER_ROOT": "1s",
    "OTELCOL_SLOW_MS": "60000",  # none is slow: the long one is kept because it still runs, and only its end says that it failed
    "OTELCOL_SLOW_FIRST_TOKEN": "0.7",
    "OTELCOL_BASELINE_PERCENT": "0",
}


Spans = dict[str, set[str]]


@pytest.fixture
def sent(fleet: Fleet, run_program: RunProgram, tmp_path: Path) -> Iterator[Callable[..., tuple[Spans, Spans, Callable[[], Spans]]]]:
    """Runs the program against agent, gateway and Jaeger: spans by case in its session file, those of wanted cases, and in Jaeger so far."""

    def run(sampling: dict[str, str], **variables: str) -> tuple[Spans, Spans, Callable[[], Spans]]:
        need("jaeger")
        session = tmp_path / "session.jsonl"
        otlp, query = servers.jaeger("jaeger", "http://127.0.0.1:9")
        gateway = fleet.gateway(otlp, overlays=(), **sampling)
        agent = fleet.agent(gateway.grpc)
        gateway.start(wait=False)
        agent.start()
        gateway.ready()
        run_program(
            "delivery/delivery_job.py",
            OTEL_SERVICE_NAME=SERVICE,
            OTEL_EXPORTER_OTLP_ENDPOINT=agent.http,
            OTEL_BSP_SCHEDULE_DELAY="200",
            INFERSPAN_SESSION_FILE=str(session),
            PYTHONPATH=str(ROOT),
            **variables,
        )
        spans = from_otlp(json.loads(line) for line in session.read_text(encoding="utf-8").splitlines())
        cases = {span.trace: str(span.attributes[semconv.CONVERSATION_ID]) for span in spans if semconv.CONVERSATION_ID in span.attributes}
        made = _by_case(spans, cases)

        def found() -> Spans:
            traces = get_json(f"{query}/api/traces", service=SERVICE, limit=200, lookback="1h")["data"]
            return _by_case([span for trace in traces for span in from_jaeger(trace["spans"])], cases)

        return made, {case: ids for case, ids in made.items() if case in WANTED}, found

    with Servers(fleet.folder, plain_environment()) as servers:
        yield run


def _by_case(spans: Iterable[Any], cases: dict[str, str]) -> Spans:
    found = defaultdict(set)
    for span in spans:
        found[cases[span.trace]].add(span.id)
    return dict(found)


def test_wanted_requests_of_a_program_arrive_whole(sent: Any) -> None:
    """Failed, slow, long, forced and non-finite requests are in Jaeger with the very spans of the session file, plain ones are not."""
    made, wanted, found = sent(SAMPLING)

    def look() -> None:
        assert found() == wanted

    eventually(look)
    print(f"a real program: {len(wanted)} of {len(wanted)} wanted traces whole ({sum(map(len, wanted.values()))} spans), ", end="")
    print(f"{len(made) - len(wanted)} plain ones dropped")


def test_a_gateway_keeps_what_the_flight_recorder_keeps(sent: Any) -> None:
    """A trace that only ``keep`` found remarkable arrives whole; one that only the gateway does, as the request span that there is."""
    sampling = SAMPLING | {"OTELCOL_SLOW_FIRST_TOKEN": "60"}
    made, wanted, found = sent(sampling, INFERSPAN_KEEP="slow,nonfinite", INFERSPAN_SLOW_FIRST_TOKEN="0.7")
    assert {case for case, ids in made.items() if len(ids) == 1} == {"plain-1", "plain-2", "failed", "long"}

    def look() -> None:
        assert found() == wanted

    eventually(look)
