"""Beside other GenAI instrumentation: its running call is filled, ours is announced."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.context import Context, set_value

from inferspan.records import ModelInfo, RequestEnd, RequestStart
from inferspan.spans import genai_interop
from inferspan.spans.genai_interop import ThirdPartyCall, announce

INFERENCE = "opentelemetry.genai.client.inference.context"
EMBEDDING = "opentelemetry.genai.client.embedding.context"


def _start(operation: str = "text_completion") -> RequestStart:
    return RequestStart("generate", operation, ModelInfo("org/model", "huggingface", "Model"), 0, False, {})


@pytest.fixture(autouse=True)
def looked_up_again() -> Iterator[None]:
    """The class of the package is looked up once a process."""
    clear = genai_interop._inference_data.cache_clear
    clear()
    yield
    clear()


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> type:
    """A stand-in for the package that other instrumentation is built on."""

    class InferenceData:
        """What the package puts into the context."""

    module: Any = types.ModuleType("opentelemetry.util.genai.invocation")
    module.InferenceData = InferenceData
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return InferenceData


@pytest.mark.parametrize(("key", "operation", "found"), [
    (INFERENCE, "text_completion", True), (INFERENCE, "embeddings", False), (EMBEDDING, "embeddings", True), (EMBEDDING, "chat", False),
])  # fmt: skip
def test_foreign_call(key: str, operation: str, found: bool) -> None:
    """A third-party call counts for the same kind of operation only."""
    assert (ThirdPartyCall.around(set_value(key, SimpleNamespace(), Context()), _start(operation)) is not None) == found
    assert ThirdPartyCall.around(Context(), _start(operation)) is None


def test_publish() -> None:
    """Empty fields are filled, filled ones and missing ones are left alone."""
    call = SimpleNamespace(usage_input_tokens=None, usage_output_tokens=7, response_finish_reasons=None, request_model="theirs",
                           response_model=None, request_max_tokens=None, request_temperature=None)  # fmt: skip
    third_party = ThirdPartyCall.around(set_value(INFERENCE, call, Context()), _start())
    assert third_party is not None
    attributes: Any = {"gen_ai.response.finish_reasons": ["stop"], "gen_ai.request.max_tokens": 4}
    third_party.publish(RequestEnd(1, None, attributes, input_tokens=5, output_tokens=20))
    assert vars(call) == {
        "usage_input_tokens": 5, "usage_output_tokens": 7, "response_finish_reasons": ["stop"], "request_model": "theirs",
        "response_model": "org/model", "request_max_tokens": 4, "request_temperature": None,
    }  # fmt: skip


def test_announcement(package: type) -> None:
    """Inside ours there is an object of the package's own class, which is not taken for a third-party call."""
    inside = announce(Context(), _start(), None)
    assert type(inside[INFERENCE]) is package
    assert ThirdPartyCall.around(inside, _start()) is None
    third_party = ThirdPartyCall.around(set_value(INFERENCE, SimpleNamespace(), Context()), _start())
    assert announce(Context(), _start(), third_party) == {} == announce(Context(), _start("embeddings"), None)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the package is missing the context is left as it is."""
    monkeypatch.setitem(sys.modules, "opentelemetry.util.genai", None)
    assert announce(Context(), _start(), None) == {}
