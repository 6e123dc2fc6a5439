"""Coexistence with other GenAI instrumentation: one gen_ai span and one usage sample per model call, not two.

Libraries based on ``opentelemetry-util-genai`` store their running call in the context under a well-known key. If such a call is open
around ours, our span is an ``inferspan.generate`` without gen_ai attributes, and our values fill the fields that the other left empty.
Otherwise our call is announced under the same key, if that package is installed, so that instrumentation inside records nothing.

Others (OpenInference, OpenLLMetry, instrumentation of a framework by hand) are known by the attributes of the span that is current around
our call, or by the key by which OpenLLMetry asks instrumentation below it for silence. Spans of agents, tools and chains are no model
calls.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace

from inferspan import semconv
from inferspan.guard import contain
from inferspan.records import RequestEnd, RequestStart

__all__ = ["ThirdPartyCall", "announce"]

_FIELDS = {
    "response_finish_reasons": semconv.FINISH_REASONS,
    "request_temperature": semconv.REQUEST_TEMPERATURE,
    "request_top_p": semconv.REQUEST_TOP_P,
    "request_top_k": semconv.REQUEST_TOP_K,
    "request_max_tokens": semconv.REQUEST_MAX_TOKENS,
    "request_seed": semconv.REQUEST_SEED,
    "request_choice_count": semconv.REQUEST_CHOICE_COUNT,
    "request_stop_sequences": semconv.REQUEST_STOP_SEQUENCES,
    "request_stream": semconv.REQUEST_STREAM,
    "embeddings_dimension_count": semconv.EMBEDDINGS_DIMENSION,
}
"""Fields of a third-party call and our attributes that fill them."""

_KEYS = {True: "opentelemetry.genai.client.embedding.context", False: "opentelemetry.genai.client.inference.context"}


_INFERENCE = (semconv.OPERATION_CHAT, semconv.OPERATION_TEXT_COMPLETION, semconv.OPERATION_GENERATE_CONTENT)
_MODEL_CALLS: Mapping[str, Mapping[bool, tuple[str, ...]]] = {
    semconv.OPERATION_NAME: {True: (semconv.OPERATION_EMBEDDINGS,), False: _INFERENCE},
    "openinference.span.kind": {True: ("EMBEDDING",), False: ("LLM",)},
    "llm.request.type": {True: ("embedding", "embeddings"), False: ("chat", "completion")},
}
"""Attributes by which the span of a model call is known, with their values for embeddings and for everything else."""
_SILENCE = "suppress_language_model_instrumentation"
_PUBLISHED = (semconv.FINISH_REASONS, semconv.REQUEST_MAX_TOKENS, semconv.REQUEST_TEMPERATURE, semconv.REQUEST_TOP_P, semconv.REQUEST_TOP_K)


def _key(start: RequestStart) -> str:
    return _KEYS[start.operation == semconv.OPERATION_EMBEDDINGS]


class ThirdPartyCall:
    """Another library's running call; values that it does not know itself are published on it."""

    def __init__(self, call: Any, model: str | None) -> None:
        self._call = call
        self._model = model

    @classmethod
    def around(cls, current: otel_context.Context, start: RequestStart) -> ThirdPartyCall | None:
        """The third-party call that is open in ``current``, if any."""
        call = current.get(_key(start))
        if call is not None:
            return None if getattr(call, "_inferspan", False) else cls(call, start.model.name)
        with contain("third-party gen_ai span"):
            span = trace.get_current_span(current)
            attributes = getattr(span, "attributes", None)
            if isinstance(attributes, Mapping) and _is_model_call(span, attributes, start):
                return _ThirdPartySpan(span, start.model.name)
            if current.get(_SILENCE) is True:
                return cls(None, start.model.name)
        return None

    def publish(self, end: RequestEnd) -> None:
        """Fill those of its fields that are still empty."""
        values: dict[str, object] = {name: end.attributes.get(key) for name, key in _FIELDS.items()}
        values |= {
            "usage_input_tokens": end.input_tokens,
            "usage_output_tokens": end.output_tokens,
            "request_model": self._model,
            "response_model": self._model,
            "response_time_to_first_chunk": end.time_to_first_token if end.streaming else None,
        }
        for name, value in values.items():
            if value is not None and self._call is not None and getattr(self._call, name, value) is None:
                with contain("third-party gen_ai span"):
                    setattr(self._call, name, value)


class _ThirdPartySpan(ThirdPartyCall):
    """A model call of which only the span is known. Where it has the names of the conventions, those that are missing are set."""

    def publish(self, end: RequestEnd) -> None:
        """See :class:`ThirdPartyCall`."""
        present = self._call.attributes
        if semconv.OPERATION_NAME not in present:
            return
        values: dict[str, Any] = {key: end.attributes.get(key) for key in _PUBLISHED}
        values |= {semconv.INPUT_TOKENS: end.input_tokens, semconv.OUTPUT_TOKENS: end.output_tokens, semconv.RESPONSE_MODEL: self._model}
        with contain("third-party gen_ai span"):
            self._call.set_attributes({key: value for key, value in values.items() if value is not None and key not in present})


def _is_model_call(span: Any, attributes: Mapping[str, Any], start: RequestStart) -> bool:
    """Whether ``span`` is another library's for the same model call."""
    if getattr(getattr(span, "instrumentation_scope", None), "name", None) == semconv.SCOPE:
        return False
    embeds = start.operation == semconv.OPERATION_EMBEDDINGS
    return any(attributes.get(key) in values[embeds] for key, values in _MODEL_CALLS.items())


@lru_cache(maxsize=1)
def _inference_data() -> Any:
    """The class that util-genai expects, or ``None`` if it is not installed."""
    name = "opentelemetry.util.genai.invocation"
    if name not in sys.modules:
        try:
            if importlib.util.find_spec(name) is None:
                return None
        except ImportError:
            return None
    return getattr(importlib.import_module(name), "InferenceData", None)


def announce(context: otel_context.Context, start: RequestStart, third_party: ThirdPartyCall | None) -> otel_context.Context:
    """``context`` with our call announced to instrumentation inside it."""
    if third_party is not None or start.operation == semconv.OPERATION_EMBEDDINGS:
        return context
    with contain("announcing to util-genai"):
        kind = _inference_data()
        if kind is not None:
            data = kind()
            data._inferspan = True
            return otel_context.set_value(_key(start), data, context)
    return context
