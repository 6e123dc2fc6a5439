"""Secrets and captured content: every byte that an agent or a gateway sends on is looked through for what was planted.

Each test plants under all the places where a program can put a text: attributes of spans, events, links, scopes, resources, metrics and
log records, bodies, nested values, names and status messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from inferspan import semconv
from inferspan.bundles import collector_config
from tests.integration.fleet import Fleet, Node, send
from tests.integration.servers import eventually
from tests.integration.telemetry_made import attributes, log_message, metric_message, request_spans, trace_message
from tests.otlp_receivers import Received, attributes_of, grpc_receiver

pytestmark = pytest.mark.integration

KEYS = ("app.api_key", "http.request.header.authorization", "DB_PASSWORD", "client-secret", "Cookie", "aws.private-key", "hf_access_token")
VALUES = {
    "bearer": "Bearer abcdefghijklmnop.QRSTUVWX-0123456789",
    "email": "jane.doe@example.org",
    "openai": "sk-proj-abcdefghijklmnopqrstuvwxyz",
    "huggingface": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz",
    "github": "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "aws": "AKIAIOSFODNN7EXAMPLE",
}
UNDER_KEY = "planted-under-a-key"
SAID = "the text around it stays"


def planted() -> dict[str, Any]:
    """Attributes with secrets under telling keys and secrets within telling texts; numbers and harmless ones beside them."""
    by_key: dict[str, Any] = {key: f"{UNDER_KEY} {number}" for number, key in enumerate(KEYS)}
    by_value = {f"note.{name}": f"{SAID}: {value}" for name, value in VALUES.items()}
    return {
        **by_key,
        **by_value,
        "list": [f"{SAID} {value}" for value in VALUES.values()],
        "gen_ai.usage.input_tokens": 7,
        "host.id": "quiet",
    }


def everything() -> dict[str, Any]:
    """One request of each kind, with secrets at every place."""
    secrets, text = planted(), " ".join(VALUES.values())
    spans = request_spans(error=True)
    root = spans[-1]
    root.attributes.extend(attributes(secrets))
    root.status.message = f"failed with {text}"
    root.events.add(name="exception").attributes.extend(attributes({**secrets, "exception.message": text}))
    traces = trace_message(spans, {"service.name": "delivery", **secrets})
    traces.resource_spans[0].scope_spans[0].scope.attributes.extend(attributes(secrets))
    metrics = metric_message([1], **{key: value for key, value in secrets.items() if isinstance(value, str)})
    metrics.resource_metrics[0].resource.attributes.extend(attributes(secrets))
    logs = log_message([text, {"nested": text, **secrets}, [text]], **secrets)
    logs.resource_logs[0].resource.attributes.extend(attributes(secrets))
    return {"traces": traces, "metrics": metrics, "logs": logs}


def post(node: Node, messages: Mapping[str, Any], last: Received) -> None:
    """Send one request of each kind and wait until all have come out."""
    for kind, message in messages.items():
        assert send(node.http, kind, message).acknowledged

    def look() -> None:
        assert {kind for kind, *_ in last.requests} >= set(messages)

    eventually(look)


def leaks(last: Received, words: Mapping[str, str]) -> dict[str, list[str]]:
    """Which of these words are in the bytes that came out, by kind of telemetry."""
    found: dict[str, list[str]] = {}
    for kind, message, *_ in last.requests:
        wire = message.SerializeToString()
        found.setdefault(kind, []).extend(name for name, word in words.items() if word.encode() in wire)
    return {kind: sorted(set(names)) for kind, names in found.items()}


@pytest.fixture
def last() -> Iterator[Received]:
    """Where it all ends."""
    with grpc_receiver() as received:
        yield received


def address(last: Received) -> str:
    """Its host and port."""
    return last.endpoint.removeprefix("http://")


def test_no_secret_leaves_the_agent(fleet: Fleet, last: Received) -> None:
    """No planted secret is in any byte that the agent sends on, and what stood around it is."""
    agent = fleet.agent(address(last)).start()
    post(agent, everything(), last)
    assert leaks(last, {**VALUES, "by key": UNDER_KEY}) == {"traces": [], "metrics": [], "logs": []}
    root = last.spans()[-1]
    kept = attributes_of(root)
    assert kept["note.email"].startswith(SAID)
    assert kept["gen_ai.usage.input_tokens"] == 7
    assert kept["host.id"] == "quiet"
    assert root.status.message.startswith("failed with ")
    print(f"redaction: {len(VALUES)} values and {len(KEYS)} keys planted in traces, metrics and logs, 0 came out")


def test_patterns_are_the_same_for_status_messages() -> None:
    """A pattern of values added to one of the two places is in the other."""
    processors = yaml.safe_load(collector_config("agent.yaml").read_text(encoding="utf-8"))["processors"]
    statements = processors["transform/redaction"]["trace_statements"]
    assert statements == [
        f'replace_pattern(span.status.message, "{pattern}", "****")'.replace("\\", "\\\\")
        for pattern in processors["redaction"]["blocked_values"]
    ]


def test_what_redaction_does_not_reach(fleet: Fleet, last: Received) -> None:
    """Names, and attributes of span links, come out as they were: the configuration says so."""
    agent = fleet.agent(address(last)).start()
    spans = request_spans()
    spans[-1].name = VALUES["aws"]
    spans[-1].links.add(trace_id=b"1" * 16, span_id=b"1" * 8).attributes.extend(
        attributes({"note": VALUES["email"], "app.api_key": UNDER_KEY})
    )
    post(agent, {"traces": trace_message(spans)}, last)
    assert leaks(last, {**VALUES, "by key": UNDER_KEY}) == {"traces": ["aws", "by key", "email"]}


# ------------------------------------------------------------------------------------------------------------------ content
SECRET = "quokka-captured"
CONTENT = {attribute.key: attribute.type for attribute in semconv.ATTRIBUTES if "only with content capture" in attribute.brief}
FOREIGN = ("gen_ai.system_instructions", "gen_ai.prompt", "gen_ai.completion", "gen_ai.prompt.0.content", "gen_ai.completion.0.content")


def captured() -> dict[str, Any]:
    """A request whose spans, and a content event whose attributes, hold what was asked and answered."""
    samples = {"string": SECRET, "int": 4711, "int[]": [4711], "double[]": [0.4711], "string[]": [SECRET]}
    content = {**{key: samples[kind] for key, kind in CONTENT.items()}, **dict.fromkeys(FOREIGN, SECRET)}
    spans = request_spans()
    for span in spans:
        span.attributes.extend(attributes(content))
    structured = {semconv.INPUT_MESSAGES: [{"role": "user", "parts": [{"content": SECRET}]}], "gen_ai.request.model": "tiny"}
    logs = log_message([SECRET], event=semconv.CONTENT_EVENT, **structured)
    logs.resource_logs[0].scope_logs[0].log_records.extend(log_message(["another record"]).resource_logs[0].scope_logs[0].log_records)
    return {"traces": trace_message(spans), "logs": logs}


@pytest.mark.parametrize("drop", ["true", "false"])
@pytest.mark.parametrize("kind", ["agent", "gateway"])
def test_content_is_dropped_by_one_switch(fleet: Fleet, last: Received, kind: str, drop: str) -> None:
    """With OTELCOL_DROP_CONTENT=true nothing captured leaves an agent or a gateway, and everything else does; without it all does."""
    share = {"OTELCOL_BASELINE_PERCENT": "100", "OTELCOL_DECISION_WAIT_AFTER_ROOT": "1s"}
    make = fleet.agent if kind == "agent" else fleet.gateway
    post(make(address(last), OTELCOL_DROP_CONTENT=drop, **share).start(), captured(), last)
    spans = last.spans()
    assert len(spans) == len(request_spans())
    bodies = [record.body.string_value for record in last.logs()]
    keys = {key for span in spans for key in attributes_of(span)} & {*CONTENT, *FOREIGN}
    if drop == "true":
        assert leaks(last, {"text": SECRET}) == {"traces": [], "logs": []}
        assert keys == set()
        assert bodies == ["another record"]
    else:
        assert keys == {*CONTENT, *FOREIGN}
        assert bodies == [SECRET, "another record"]
    assert attributes_of(spans[-1])["gen_ai.request.model"] == "tiny"


def test_agent_and_gateway_drop_the_same_content() -> None:
    """The two processors of the switch are the same in both files."""
    agent, gateway = (
        yaml.safe_load(collector_config(f"{kind}.yaml").read_text(encoding="utf-8"))["processors"] for kind in ("agent", "gateway")
    )
    assert {name: agent[name] for name in ("transform/content", "filter/content")} == {
        name: gateway[name] for name in ("transform/content", "filter/content")
    }
