"""Whose tokens are counted: a request is nested only where another one counts the same tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

NEW = 4


class Asking(nn.Module):
    """Asks a language model in its own forward pass."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.scale = nn.Linear(2, 2)
        self.asked = [model]

    def forward(self, ids: Tensor) -> Any:
        self.scale(torch.ones(1, 2))
        return self.asked[0].generate(ids, max_new_tokens=NEW, do_sample=False, eos_token_id=None)


class Encoder(nn.Module):
    """An embedding model, which may use another one."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.words, self.inner = nn.Embedding(models.VOCABULARY, 6), [inner]

    def forward(self, input_ids: Tensor) -> Any:
        return self.words(input_ids).mean(1) if self.inner[0] is None else self.inner[0](input_ids)


def test_generate_inside_a_forward_pass_counts(telemetry: Telemetry) -> None:
    """Its tokens stand on its span and in the metrics, and it is a child of the pass."""
    model = models.llama()
    asking = Asking(model)
    telemetry.instrument(asking)
    telemetry.instrument(model)
    asking(models.prompt(2))
    attributes = telemetry.only()
    assert semconv.NESTED not in attributes
    assert attributes[semconv.TTFT] > 0
    assert telemetry.usage() == [(12, 2 * NEW)]
    assert telemetry.metric_sum(semconv.M_LEGACY_USAGE, gen_ai__token__type="output") == 2 * NEW
    assert telemetry.metric_sum(semconv.M_USAGE_OUTPUT) == 2 * NEW
    assert telemetry.metric_sum(semconv.M_SERVER_DURATION) > 0
    (outer,), (request,) = telemetry.forwards(), telemetry.requests()
    assert request.parent == outer.context
    telemetry.check()


def test_generate_inside_generate_inside_a_forward_pass_is_nested(telemetry: Telemetry) -> None:
    """The draft of assisted decoding inside a forward pass is in no total."""
    model, draft = models.llama(), models.llama(1)
    telemetry.instrument(draft)
    telemetry.instrument(model)

    class Drafting(Asking):
        def forward(self, ids: Tensor) -> Any:
            return self.asked[0].generate(ids, max_new_tokens=NEW, do_sample=False, eos_token_id=None, assistant_model=draft)

    asking = Drafting(model)
    telemetry.instrument(asking)
    asking(models.prompt())
    assert telemetry.usage() == [(6, NEW)]
    assert len(telemetry.requests(nested=True)) > 0
    assert telemetry.metric_sum(semconv.M_LEGACY_USAGE, gen_ai__token__type="output") == NEW


def test_embeddings_inside_a_forward_pass_count_once(telemetry: Telemetry) -> None:
    """Of an embedding model inside another one only the outer counts; inside a plain forward pass it counts itself."""
    inner = Encoder()
    outer = Encoder(inner)
    holder = nn.Sequential(nn.Identity(), outer)
    telemetry.instrument(inner, operation="embeddings")
    telemetry.instrument(outer, operation="embeddings")
    telemetry.instrument(holder)
    holder(models.prompt(2))
    assert [span.name for span in telemetry.requests()] == ["embeddings Encoder"]
    assert len(telemetry.requests(nested=True)) == 1
    assert telemetry.metric_sum(semconv.M_EMBEDDINGS_INPUT) == 12
