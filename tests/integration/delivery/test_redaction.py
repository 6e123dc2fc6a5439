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
from tests.integration.delivery.fleet import Fleet, Node, send
from tests.integration.delivery.telemetry_made import attributes, log_message, metric_message, request_spans, trace_message
from tests.integration.servers import eventually
from tests.support.otlp_receivers import Received, attributes_of, grpc_receiver

pytestmark = pytest.mark.integration

KEYS = (
    "app.api_key",
    "X-API-KEY",
    "http.request.header.authorization",
    "DB_PASSWORD",
    "client-secret",
    "Cookie",
    "aws.private-key",
    "accessToken",
    "HF_TOKEN",
    "session.token",
    "x-auth-token",
    "db.connection_string",
    "client.pwd",
)
# What is written, and the part of it that must not come out.
WRITTEN = {
    "bearer": ("Bearer {}", "abcdefghijklmnop.QRSTUVWX-0123456789"),
    "basic": ("Authorization: Basic {}", "dXNlcjpwYXNzd29yZDEyMw=="),
    "jwt": ("{}", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"),
    "url": ("https://jane:{}@localhost:8000/v1", "hunter2-in-url"),
    "text": ("cannot connect: host=db password={} port=5432", "hunter2-in-text"),
    "query": ("GET /v1?api_key={}&model=m", "hunter2-in-query"),
    "json": ('{{"user": "jane", "password": "{}"}}', "hunter2-in-json"),
    "pem": ("-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----", "MIIEowIBAAKCAQEAabcdef"),
    "email": ("{}", "jane.doe@example.org"),
    "openai": ("{}", "sk-proj-abcdefghijklmnopqrstuvwxyz"),
    "huggingface": ("{}", "hf_AbCdEfGhIjKlMnOpQrStUvWxYz"),
    "github": ("{}", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"),
    "github-fine": ("{}", "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz"),
    "gitlab": ("{}", "glpat-abcdefghij-klmnopqrst"),
    "slack": ("{}", "xoxp-123456789012-abcdefghijklmnop"),
    "aws": ("{}", "AKIAIOSFODNN7EXAMPLE"),
    "aws-session": ("{}", "ASIAIOSFODNN7EXAMPLE"),
    "google": ("{}", "AIzaSyA-234567890abcdefghijklmnopqrstuv"),
}
VALUES = {name: text.format(secret) for name, (text, secret) in WRITTEN.items()}
SECRETS = {name: secret for name, (_, secret) in WRITTEN.items()}
HARMLESS: dict[str, Any] = {
    "gen_ai.usage.input_tokens": 7,
    "gen_ai.request.max_tokens": 64,
    "gen_ai.token.type": "input",
    "eos_token": "</s>",
    "image_grid_token": "grid_token=4",
    "host.id": "quiet",
    "gen_ai.request.model": "hf-internal-testing/tiny-random-LlamaForCausalLM",
    "inferspan.model.name": "meta-llama/Llama-3.1-8B-Instruct@main",
    "inferspan.model.class": "hf_quantizer_config_llama_bf16_v2",
    "path": "models/hf-cache-models-of-the-team/m",
    "inferspan.module.name": "model.layers.0.self_attn.q_proj",
    "shape": "[1, 32, 4096]",
    "link": "https://example.org:8443/a?model=m&max_tokens=5",
}
UNDER_KEY = "planted-under-a-key"
SAID = "the text around it stays"


def planted() -> dict[str, Any]:
    """Attributes with secrets under telling keys and secrets within telling texts, each also deep inside a map."""
    by_key: dict[str, Any] = {key: f"{UNDER_KEY} {number}" for number, key in enumerate(KEYS)}
    by_value = {f"note.{name}": f"{SAID}: {value}" for name, value in VALUES.items()}
    return {
        **by_key,
        **by_value,
        "list": [f"{SAID} {value}" for value in VALUES.values()],
        "map": {"deep": [{**by_key, **by_value}]},
    }


def everything() -> dict[str, Any]:
    """One request of each kind, with secrets at every place."""
    secrets, text = planted(), " ".join(VALUES.values())
    spans = request_spans(error=True)
    root = spans[-1]
    root.ClearField("attributes")
    root.attributes.extend(attributes({**secrets, **HARMLESS}))
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
    assert leaks(last, {**SECRETS, "by key": UNDER_KEY}) == {"traces": [], "metrics": [], "logs": []}
    root = last.spans()[-1]
    kept = attributes_of(root)
    assert {name for name in VALUES if not kept[f"note.{name}"].startswith(SAID)} == set()
    assert {key: kept[key] for key in HARMLESS} == HARMLESS
    assert root.status.message.startswith("failed with ")
    print(f"redaction: {len(VALUES)} values and {len(KEYS)} keys planted in traces, metrics and logs, 0 came out")


def test_no_attribute_of_ours_is_hidden(fleet: Fleet, last: Received) -> None:
    """No key of the conventions is taken for one of a secret."""
    agent = fleet.agent(address(last)).start()
    spans = request_spans()
    ours = {attribute.key: "shown" for attribute in semconv.ATTRIBUTES}
    spans[-1].ClearField("attributes")
    spans[-1].attributes.extend(attributes(ours))
    post(agent, {"traces": trace_message(spans)}, last)
    assert attributes_of(last.spans()[-1]) == ours


def test_patterns_are_the_same_for_status_messages() -> None:
    """A pattern of values added to one of the two places is in the other."""
    processors = yaml.safe_load(collector_config("agent.yaml").read_text(encoding="utf-8"))["processors"]
    statements = processors["transform/redaction"]["trace_statements"]
    assert statements == [
        'replace_pattern(span.status.message, "{}", "****")'.format(pattern.replace("\\", "\\\\").replace('"', '\\"'))
        for pattern in processors["redaction"]["blocked_values"]
    ]


def test_what_redaction_does_not_reach(fleet: Fleet, last: Received) -> None:
    """Names, trace states, and attributes of span links and exemplars come out as they were: the configuration says so."""
    agent = fleet.agent(address(last)).start()
    spans = request_spans()
    spans[-1].name = VALUES["aws"]
    spans[-1].trace_state = f"vendor={VALUES['github']}"
    spans[-1].links.add(trace_id=b"1" * 16, span_id=b"1" * 8).attributes.extend(
        attributes({"note": VALUES["email"], "app.api_key": UNDER_KEY})
    )
    metrics = metric_message([1])
    exemplar = metrics.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0].exemplars.add(as_int=1)
    exemplar.filtered_attributes.extend(attributes({"note": VALUES["email"]}))
    post(agent, {"traces": trace_message(spans), "metrics": metrics}, last)
    assert leaks(last, {**SECRETS, "by key": UNDER_KEY}) == {"traces": ["aws", "by key", "email", "github"], "metrics": ["email"]}


# ------------------------------------------------------------------------------------------------------------------ content
SECRET = "quokka-captured"
CONTENT = {attribute.key: attribute.type for attribute in semconv.ATTRIBUTES if "only with content capture" in attribute.brief}
FOREIGN = (  # of other libraries, and of earlier conventions
    "gen_ai.system_instructions",
    "gen_ai.prompt",
    "gen_ai.completion",
    "gen_ai.prompt.0.content",
    "gen_ai.completion.0.content",
    "gen_ai.completion.0.tool_calls.0.arguments",
    "gen_ai.event.content",
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.call.result",
    "input.value",
    "output.value",
    "llm.input_messages.0.message.content",
    "llm.output_messages.0.message.contents.1.message_content.text",
    "llm.prompts",
    "retrieval.documents.0.document.content",
    "traceloop.entity.input",
    "traceloop.entity.output",
)
STAYS = {
    "gen_ai.usage.input_tokens": 3,
    "gen_ai.request.max_tokens": 5,
    "inferspan.tokens.per_second": 7.0,
    "input.mime_type": "text/plain",
}
EVENTS = (semconv.CONTENT_EVENT, "gen_ai.user.message", "gen_ai.choice", "gen_ai.content.prompt")


def captured() -> dict[str, Any]:
    """Spans and their events, log records, and events with content, which hold what was asked and answered."""
    samples = {"string": SECRET, "int": 4711, "int[]": [4711], "double[]": [0.4711], "string[]": [SECRET]}
    content = {**{key: samples[kind] for key, kind in CONTENT.items()}, **dict.fromkeys(FOREIGN, SECRET)}
    spans = request_spans()
    for span in spans:
        span.attributes.extend(attributes({**content, **STAYS}))
        span.events.add(name="gen_ai.content.prompt").attributes.extend(attributes({**content, **STAYS}))
    structured = {semconv.INPUT_MESSAGES: [{"role": "user", "parts": [{"content": SECRET}]}], "gen_ai.request.model": "tiny"}
    logs = log_message([SECRET], event=EVENTS[0], **structured)
    records = logs.resource_logs[0].scope_logs[0].log_records
    for event in EVENTS[1:]:
        records.extend(log_message([SECRET], event=event).resource_logs[0].scope_logs[0].log_records)
    # Before log records had a name, events had it in an attribute.
    records.extend(log_message([SECRET], **{"event.name": EVENTS[1]}).resource_logs[0].scope_logs[0].log_records)
    records.extend(log_message(["another record"], event="", **content, **STAYS).resource_logs[0].scope_logs[0].log_records)
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
    holders = [*spans, *(event for span in spans for event in span.events), last.logs()[-1]]
    keys = {key for holder in holders for key in attributes_of(holder)} & {*CONTENT, *FOREIGN}
    if drop == "true":
        assert leaks(last, {"text": SECRET}) == {"traces": [], "logs": []}
        assert keys == set()
        assert bodies == ["another record"]
    else:
        assert keys == {*CONTENT, *FOREIGN}
        assert bodies == [SECRET] * (len(EVENTS) + 1) + ["another record"]
    assert all(attributes_of(holder).items() >= STAYS.items() for holder in holders)
    assert attributes_of(spans[-1])["gen_ai.request.model"] == "tiny"


def test_agent_and_gateway_drop_the_same_content() -> None:
    """The two processors of the switch are the same in both files."""
    agent, gateway = (
        yaml.safe_load(collector_config(f"{kind}.yaml").read_text(encoding="utf-8"))["processors"] for kind in ("agent", "gateway")
    )
    assert {name: agent[name] for name in ("transform/content", "filter/content")} == {
        name: gateway[name] for name in ("transform/content", "filter/content")
    }
