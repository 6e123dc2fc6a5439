"""Content capture, through the collector: each of the four modes sends what its name says and nothing more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferspan import semconv
from tests.integration.conftest import RunProgram
from tests.integration.servers import Stack, eventually
from tests.integration.spans_seen import from_otlp, log_records

pytestmark = pytest.mark.integration

SERVICE = "content-modes"
MODES = ("NO_CONTENT", "SPAN_ONLY", "EVENT_ONLY", "SPAN_AND_EVENT")


@pytest.fixture(scope="module")
def truth(stack: Stack, run_program: RunProgram) -> dict[str, Any]:
    """The program has run; what it asked and got."""
    return run_program("content_modes.py", OTEL_SERVICE_NAME=SERVICE, OTEL_EXPORTER_OTLP_ENDPOINT=stack.http)


@pytest.mark.parametrize("mode", MODES)
def test_mode(stack: Stack, truth: dict[str, Any], mode: str) -> None:
    """Messages stand on the span, in the event, on both or nowhere; token ids only where the span may hold content."""

    def look() -> list[dict[str, Any]]:
        lines = stack.raw_lines(SERVICE)
        assert {span.attributes.get(semconv.CONVERSATION_ID) for span in from_otlp(lines)} >= set(MODES)
        assert len(log_records(lines)) == 2
        return lines

    lines = eventually(look)
    spans = from_otlp(lines)
    (request,) = [span for span in spans if span.attributes.get(semconv.CONVERSATION_ID) == mode]
    trace = [span for span in spans if span.trace == request.trace]
    events = [record for record in log_records(lines) if record["trace"] == request.trace]
    on_span, in_event = mode in ("SPAN_ONLY", "SPAN_AND_EVENT"), mode in ("EVENT_ONLY", "SPAN_AND_EVENT")
    asked = [{"role": "user", "parts": [{"type": "text", "content": truth["prompt"]}]}]
    answered = [{"role": "assistant", "parts": [{"type": "text", "content": truth["text"]}], "finish_reason": truth["finish"]}]

    assert len(events) == in_event
    for event in events:
        assert event["event"] == "gen_ai.client.inference.operation.details"
        assert event["attributes"][semconv.INPUT_MESSAGES] == asked
        assert event["attributes"][semconv.OUTPUT_MESSAGES] == answered
    if on_span:
        assert json.loads(request.attributes[semconv.INPUT_MESSAGES]) == asked
        assert json.loads(request.attributes[semconv.OUTPUT_MESSAGES]) == answered
        assert request.attributes[semconv.TOKEN_IDS] == truth["ids"]
    else:
        assert truth["prompt"] not in str(trace)
        assert semconv.TOKEN_IDS not in request.attributes
    steps = [span for span in trace if semconv.STEP_INDEX in span.attributes]
    assert [semconv.TOKEN_ID in step.attributes for step in steps] == [on_span] * len(steps)
