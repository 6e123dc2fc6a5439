"""Content capture, through the collector: each of the four modes sends what its name says and nothing more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferspan import semconv
from tests.integration.conftest import RunProgram
from tests.integration.servers import Stack, eventually, get_json
from tests.integration.spans_seen import Seen, from_jaeger, from_otlp, log_records

pytestmark = pytest.mark.integration

SERVICE = "content-modes"
MODES = ("NO_CONTENT", "SPAN_ONLY", "EVENT_ONLY", "SPAN_AND_EVENT")


@pytest.fixture(scope="module")
def truth(stack: Stack, run_program: RunProgram) -> dict[str, Any]:
    """The program has run; what it asked and got."""
    return run_program("programs/content_modes.py", OTEL_SERVICE_NAME=SERVICE, OTEL_EXPORTER_OTLP_ENDPOINT=stack.http)


def asked_and_answered(truth: dict[str, Any]) -> dict[str, Any]:
    """The messages in the schema of the conventions, by attribute."""
    return {
        semconv.INPUT_MESSAGES: [{"role": "user", "parts": [{"type": "text", "content": truth["prompt"]}]}],
        semconv.OUTPUT_MESSAGES: [
            {"role": "assistant", "parts": [{"type": "text", "content": truth["text"]}], "finish_reason": truth["finish"]}
        ],
    }


def content_events(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events with messages; those that judge an output have none."""
    return [record for record in log_records(lines) if record["event"] == semconv.CONTENT_EVENT]


def received(stack: Stack, conversation: str) -> Seen:
    """The request of a conversation as the collector received it."""

    def look() -> Seen:
        found = [span for span in from_otlp(stack.raw_lines(SERVICE)) if span.attributes.get(semconv.CONVERSATION_ID) == conversation]
        return found[0]

    return eventually(look)


@pytest.mark.parametrize(("conversation", "kind"), [("SPAN_ONLY", str), ("structured", list)])
def test_messages_on_the_span_at_the_collector(stack: Stack, truth: dict[str, Any], conversation: str, kind: type) -> None:
    """The collector receives a JSON text, or lists and maps, as ``content_format`` says."""
    attributes = received(stack, conversation).attributes
    for key, expected in asked_and_answered(truth).items():
        assert type(attributes[key]) is kind
        assert (json.loads(attributes[key]) if kind is str else attributes[key]) == expected


@pytest.mark.parametrize("conversation", ["SPAN_ONLY", "structured"])
def test_messages_on_the_span_in_jaeger(stack: Stack, truth: dict[str, Any], conversation: str) -> None:
    """Jaeger's own API gives a text that is JSON, whichever form was sent."""
    request = received(stack, conversation)
    spans = eventually(lambda: from_jaeger(stack.trace(request.trace)))
    (seen,) = [span for span in spans if span.id == request.id]
    for key, expected in asked_and_answered(truth).items():
        assert json.loads(seen.attributes[key]) == expected


@pytest.mark.parametrize("conversation", ["SPAN_ONLY", "structured"])
def test_messages_on_the_span_in_a_trace_as_otlp(stack: Stack, truth: dict[str, Any], conversation: str) -> None:
    """An API that gives traces as OTLP JSON, as Tempo's does and the third version of Jaeger's, hands back what was sent."""
    request = received(stack, conversation)
    eventually(lambda: stack.trace(request.trace))
    answer = get_json(f"{stack.jaeger}/api/v3/traces/{request.trace}")["result"]
    (seen,) = [span for span in from_otlp([answer]) if span.id == request.id]
    for key, expected in asked_and_answered(truth).items():
        value = seen.attributes[key]
        assert (json.loads(value) if isinstance(value, str) else value) == expected


def test_the_event_at_the_collector(stack: Stack, truth: dict[str, Any]) -> None:
    """The event arrives at DEBUG, with the inference attributes of its span and messages as lists and maps."""
    request = received(stack, "SPAN_AND_EVENT")

    def look() -> dict[str, Any]:
        return next(record for record in content_events(stack.raw_lines(SERVICE)) if record["trace"] == request.trace)

    event = eventually(look)
    group = {key: value for key, value in request.attributes.items() if key.startswith("gen_ai.")}
    assert event["severity"] == 5
    assert event["attributes"] == {**group, **asked_and_answered(truth)}


@pytest.mark.parametrize("mode", MODES)
def test_mode(stack: Stack, truth: dict[str, Any], mode: str) -> None:
    """Messages stand on the span, in the event, on both or nowhere; token ids only where the span may hold content."""

    def look() -> list[dict[str, Any]]:
        lines = stack.raw_lines(SERVICE)
        assert {span.attributes.get(semconv.CONVERSATION_ID) for span in from_otlp(lines)} >= {*MODES, "structured"}
        assert len(content_events(lines)) == 2
        return lines

    lines = eventually(look)
    spans = from_otlp(lines)
    (request,) = [span for span in spans if span.attributes.get(semconv.CONVERSATION_ID) == mode]
    trace = [span for span in spans if span.trace == request.trace]
    events = [record for record in content_events(lines) if record["trace"] == request.trace]
    on_span, in_event = mode in ("SPAN_ONLY", "SPAN_AND_EVENT"), mode in ("EVENT_ONLY", "SPAN_AND_EVENT")
    asked = [{"role": "user", "parts": [{"type": "text", "content": truth["prompt"]}]}]
    answered = [{"role": "assistant", "parts": [{"type": "text", "content": truth["text"]}], "finish_reason": truth["finish"]}]

    assert len(events) == in_event
    for event in events:
        assert event["attributes"][semconv.INPUT_MESSAGES] == asked
        assert event["attributes"][semconv.OUTPUT_MESSAGES] == answered
    if on_span:
        assert json.loads(request.attributes[semconv.INPUT_MESSAGES]) == asked
        assert json.loads(request.attributes[semconv.OUTPUT_MESSAGES]) == answered
        assert request.attributes[semconv.TOKEN_IDS] == truth["ids"]
    else:
        assert truth["prompt"] not in str(trace)
        assert semconv.ANALYSIS_COMMON_IDS not in request.attributes
        assert semconv.TOKEN_IDS not in request.attributes
    steps = [span for span in trace if semconv.STEP_INDEX in span.attributes]
    assert [semconv.STEP_TOKEN_IDS in step.attributes for step in steps] == [on_span] * len(steps)
