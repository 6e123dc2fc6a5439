"""Events and stages of a program, as the collector, Jaeger and Prometheus have them."""

from __future__ import annotations

from typing import Any

import pytest

from inferspan import semconv
from tests.integration.conftest import RunProgram
from tests.integration.servers import Stack, eventually
from tests.integration.spans_seen import Seen, from_jaeger, from_otlp, log_records

pytestmark = pytest.mark.integration

SERVICE = "events-job"


@pytest.fixture(scope="module")
def ran(stack: Stack, run_program: RunProgram) -> dict[str, Any]:
    """The program has run."""
    return run_program("programs/events_job.py", OTEL_SERVICE_NAME=SERVICE, OTEL_EXPORTER_OTLP_ENDPOINT=stack.http)


def _received(stack: Stack) -> list[Seen]:
    def look() -> list[Seen]:
        found = from_otlp(stack.raw_lines(SERVICE))
        assert len(found) >= 5
        return found

    return eventually(look)


def _only(spans: list[Seen], name: str) -> Seen:
    (found,) = [span for span in spans if span.name == name]
    return found


def test_an_event_of_its_own_is_a_log_record(stack: Stack, ran: dict[str, Any]) -> None:
    """An event without a span arrives as a log record with its name, at INFO."""
    (record,) = eventually(lambda: [one for one in log_records(stack.raw_lines(SERVICE)) if one["event"] == "started"] or [][0])
    assert (record["severity"], record["attributes"]) == (9, {"odd": "{'a': 1}"})
    assert "started" not in {span.name for span in _received(stack)}


def test_spans_at_the_collector(stack: Stack, ran: dict[str, Any]) -> None:
    """Stages, steps and the request lie in the session, with its id and tags; facts of the model stand on the session."""
    spans = _received(stack)
    session = _only(spans, "session video")
    assert {key: session.attributes[key] for key in (semconv.MODEL_NAME, semconv.MODEL_PARAMETERS, semconv.MODEL_TYPE)} == {
        semconv.MODEL_NAME: "my-net", semconv.MODEL_PARAMETERS: 7, semconv.MODEL_TYPE: "t2v",
    }  # fmt: skip
    inside = [span for span in spans if span.parent == session.id]
    assert sorted(span.name for span in inside) == ["denoise_step", "denoise_step", "forward small", "load"]
    assert {span.attributes[f"{semconv.SESSION_TAG}.mode"] for span in inside} == {"t2v"}
    steps = [span.attributes for span in inside if span.name == "denoise_step"]
    assert [(one[semconv.DENOISE_INDEX], one[semconv.DENOISE_TIMESTEP]) for one in steps] == [(0, 1000.0), (1, 500.0)]


@pytest.mark.parametrize("end", ["collector", "Jaeger"])
def test_events_on_spans(end: str, stack: Stack, ran: dict[str, Any]) -> None:
    """An event on a span has its name, its attributes and those of the session."""
    spans = _received(stack)
    load = _only(spans, "load")
    if end == "Jaeger":
        load = _only(eventually(lambda: [one for one in from_jaeger(stack.trace(load.trace)) if one.name == "load"] or [][0]), "load")
    ((name, attributes),) = load.events
    session = _only(spans, "session video").attributes[semconv.SESSION_ID]
    assert name == "checkpoint_loaded"
    assert {key: attributes[key] for key in ("file", "tensors", semconv.SESSION_ID)} == {"file": "weights.pt", "tensors": 3, semconv.SESSION_ID: session}
    assert load.attributes["app.tensors"] == 3


def test_stages_in_prometheus(stack: Stack, ran: dict[str, Any]) -> None:
    """Stages are counted by name, and no tag or id of a session is a label."""
    query = f'inferspan_program_stage_duration_seconds_count{{service_name="{SERVICE}"}}'

    def look() -> dict[str, float]:
        found = {labels["inferspan_stage_name"]: value for labels, value in stack.query(query)}
        assert len(found) == 2
        return found

    assert eventually(look) == {"load": 1, "denoise_step": 2}
    assert not [key for labels, _ in stack.query(query) for key in labels if "session" in key]
