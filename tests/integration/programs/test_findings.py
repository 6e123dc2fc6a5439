"""Findings about an output, through the collector: the event under its request, and the counter in Prometheus."""

from __future__ import annotations

from typing import Any

import pytest

from inferspan import semconv
from inferspan.analysis.findings import find
from inferspan.analysis.generation import analyse
from tests.integration.conftest import RunProgram
from tests.integration.servers import Stack, eventually
from tests.integration.spans_seen import Seen, from_otlp, log_records

pytestmark = pytest.mark.integration

SERVICE = "findings"


@pytest.fixture(scope="module")
def truth(stack: Stack, run_program: RunProgram) -> dict[str, Any]:
    """The program has run; the tokens that its model has generated."""
    return run_program("programs/looping_job.py", OTEL_SERVICE_NAME=SERVICE, OTEL_EXPORTER_OTLP_ENDPOINT=stack.http)


@pytest.fixture(scope="module")
def request_seen(stack: Stack, truth: dict[str, Any]) -> Seen:
    """The request as the collector has received it."""

    def look() -> Seen:
        return next(span for span in from_otlp(stack.raw_lines(SERVICE)) if semconv.HEALTH_KINDS in span.attributes)

    return eventually(look)


def test_the_event_arrives_under_its_request(stack: Stack, truth: dict[str, Any], request_seen: Seen) -> None:
    """It says what the analysis of the generated tokens says, at INFO."""
    (finding,) = find(analyse(truth["sequences"]))

    def look() -> dict[str, Any]:
        (found,) = (record for record in log_records(stack.raw_lines(SERVICE)) if record["event"] == "gen_ai.evaluation.result")
        return found

    event = eventually(look)
    assert (event["trace"], event["span"], event["severity"]) == (request_seen.trace, request_seen.id, 9)
    assert event["attributes"] == {
        "gen_ai.evaluation.name": "inferspan.repetition",
        "gen_ai.evaluation.score.label": "loop",
        "gen_ai.evaluation.score.value": pytest.approx(finding.value),
        "gen_ai.evaluation.explanation": finding.explanation,
    }


def test_the_span_has_the_kinds(request_seen: Seen) -> None:
    """A tail sampler can keep the trace by them."""
    assert request_seen.attributes[semconv.HEALTH_KINDS] == ["loop"]


def test_the_counter_is_in_prometheus(stack: Stack, request_seen: Seen) -> None:
    """One finding of one kind, of one request of two sequences."""

    def look() -> tuple[dict[str, str], float]:
        (found,) = stack.query(f'inferspan_health_findings_total{{service_name="{SERVICE}"}}')
        return found

    labels, value = eventually(look)
    assert value == 1
    assert (labels["inferspan_health_kind"], labels["gen_ai_request_model"]) == ("loop", "looping")
