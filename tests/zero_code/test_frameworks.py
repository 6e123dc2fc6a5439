"""Frameworks whose own instrumentation has a span around the model: one inference span in the trace, not two.

The stand-ins make the spans that smolagents, LangChain, OpenInference and OpenLLMetry make around a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import context as otel_context

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

Observe = Callable[..., Any]
OPENINFERENCE = "openinference.span.kind"
AROUND = {
    "smolagents by OpenTelemetry": {semconv.OPERATION_NAME: "chat", semconv.PROVIDER_NAME: "huggingface"},
    "LangChain by OpenInference": {OPENINFERENCE: "LLM", "llm.model_name": "tiny"},
    "LangChain by OpenLLMetry": {"llm.request.type": "chat", "traceloop.entity.name": "HuggingFacePipeline"},
}
"""Attributes of the span of a model call, by framework and who instruments it."""
NO_MODEL_CALL = {
    "agent": {semconv.OPERATION_NAME: "invoke_agent"},
    "chain": {OPENINFERENCE: "CHAIN"},
    "tool": {semconv.OPERATION_NAME: "execute_tool"},
    "embeddings": {semconv.OPERATION_NAME: "embeddings"},
    "server": {"http.request.method": "POST"},
}


def _generate() -> None:
    models.llama().generate(models.prompt(), max_new_tokens=3, min_new_tokens=3, do_sample=False)


@pytest.mark.parametrize("attributes", AROUND.values(), ids=AROUND)
def test_span_of_a_model_call_is_the_only_one(telemetry: Telemetry, observe: Observe, attributes: dict[str, Any]) -> None:
    """Inside it our request is ``inferspan.generate`` without a gen_ai attribute, and the client metrics are theirs."""
    observe()
    with telemetry.tracer_provider.get_tracer("framework").start_as_current_span("ChatHuggingFace", attributes=attributes):
        _generate()
    (request,) = telemetry.spans(semconv.SPAN_GENERATE)
    assert [key for key in request.attributes or {} if key.startswith("gen_ai.")] == []
    assert telemetry.metric_sum(semconv.M_USAGE_OUTPUT) == 0
    assert len(telemetry.steps()) == 3
    telemetry.check()


def test_usage_is_on_the_span_of_the_conventions(telemetry: Telemetry, observe: Observe) -> None:
    """A span with names of the conventions gets the tokens that it lacks; what it has stays."""
    observe()
    attributes: dict[str, Any] = {semconv.OPERATION_NAME: "chat", semconv.INPUT_TOKENS: 77}
    with telemetry.tracer_provider.get_tracer("framework").start_as_current_span("chat tiny", attributes=attributes):
        _generate()
    told = telemetry.only()
    assert told[semconv.INPUT_TOKENS] == 77
    assert told[semconv.OUTPUT_TOKENS] == 3


def test_span_of_other_conventions_is_left_alone(telemetry: Telemetry, observe: Observe) -> None:
    """One with other names gets nothing of ours."""
    observe()
    with telemetry.tracer_provider.get_tracer("framework").start_as_current_span("LLM", attributes={OPENINFERENCE: "LLM"}):
        _generate()
    (span,) = telemetry.spans("LLM")
    assert dict(span.attributes or {}) == {OPENINFERENCE: "LLM"}


def test_request_for_silence(telemetry: Telemetry, observe: Observe) -> None:
    """Where OpenLLMetry asks for silence below its span, which need not be current, ours is no model call either."""
    observe()
    token = otel_context.attach(otel_context.set_value("suppress_language_model_instrumentation", True))
    try:
        _generate()
    finally:
        otel_context.detach(token)
    assert len(telemetry.spans(semconv.SPAN_GENERATE)) == 1
    assert telemetry.requests() == []


@pytest.mark.parametrize("attributes", NO_MODEL_CALL.values(), ids=NO_MODEL_CALL)
def test_span_that_is_no_model_call(telemetry: Telemetry, observe: Observe, attributes: dict[str, Any]) -> None:
    """Inside spans of agents, chains, tools and servers our request is the model call."""
    observe()
    with telemetry.tracer_provider.get_tracer("framework").start_as_current_span("around", attributes=attributes):
        _generate()
    ours = [span for span in telemetry.spans() if span.name.startswith("text_completion")]
    assert [(span.attributes or {})[semconv.OUTPUT_TOKENS] for span in ours] == [3]
    assert telemetry.metric_sum(semconv.M_USAGE_OUTPUT) == 3
    telemetry.check()


def test_own_request_around_a_model(telemetry: Telemetry, observe: Observe) -> None:
    """A request of ours is no other library's: a draft model inside it stays a nested request."""
    observe()
    draft = models.llama(seed=1)
    models.llama().generate(models.prompt()[-1:], assistant_model=draft, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert telemetry.spans(semconv.SPAN_GENERATE) == []
    assert telemetry.requests(nested=True)
