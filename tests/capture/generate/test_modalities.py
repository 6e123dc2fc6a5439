"""Tokens by modality and from a cache: on the span, in the usage counters, and the same in both."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from transformers import DynamicCache, GenerationMixin, LlamaForCausalLM

import inferspan
from tests.cases import models

CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"
IMAGE, AUDIO = 63, 62
IMAGES = torch.full((1, 4), IMAGE)
USAGE = "gen_ai.client.inference.usage."
OUTPUT_KNOWN = pytest.mark.skipif(
    not hasattr(GenerationMixin, "output_modalities"), reason="no model of transformers 4 says what it generates"
)


class _Usage:
    """Usage attributes of the last request on the span, and the usage counters, in one shape: ``{"image.input_tokens": 4, ...}``."""

    def __init__(self) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self._tracers = TracerProvider(shutdown_on_exit=False)
        self._tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self._handles: list[inferspan.Handle] = []

    def instrument(self, model: Any) -> Any:
        options: Any = {"nvml": False, "host": False, "allocator": False, "modules": "none", "steps": "none"}
        self._handles.append(inferspan.instrument(model, tracer_provider=self._tracers, meter_provider=self._meters, **options))
        return model

    def span(self) -> dict[str, Any]:
        inferspan.flush()
        attributes = [span.attributes or {} for span in self._spans.get_finished_spans() if span.parent is None][-1]
        return {key.removeprefix("gen_ai.usage."): value for key, value in attributes.items() if key.startswith("gen_ai.usage.")}

    def counters(self) -> dict[str, Any]:
        """Counted tokens of all requests, by metric and modality."""
        data = self._reader.get_metrics_data()
        return {
            f"{dict(point.attributes or {})['gen_ai.token.modality']}.{metric.name.removeprefix(USAGE)}": getattr(point, "value", None)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name.startswith(USAGE)
            for point in metric.data.data_points
        }

    def close(self) -> None:
        for handle in self._handles:
            handle.uninstrument()
        self._meters.shutdown()


@pytest.fixture
def usage() -> Iterator[_Usage]:
    """What the requests of the test used."""
    made = _Usage()
    yield made
    made.close()


def _generate(model: Any, **options: Any) -> Any:
    return model.generate(**{"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, **options})


@OUTPUT_KNOWN
def test_images_are_told_from_text(usage: _Usage) -> None:
    """Positions of images are image tokens, the others text, and both add up to the prompt; padding is neither."""
    model = usage.instrument(models.llava())
    ids = torch.cat([IMAGES.repeat(2, 1), models.prompt(2, 5)], dim=1)
    padding = torch.zeros((2, 2), dtype=torch.long)
    mask = torch.cat([padding, torch.ones_like(ids)], dim=1)
    _generate(model, input_ids=torch.cat([padding, ids], dim=1), attention_mask=mask, pixel_values=torch.randn(2, 3, 8, 8))
    expected = {"image.input_tokens": 8, "text.input_tokens": 10, "text.output_tokens": 6}
    assert usage.span() == {"input_tokens": 18, "output_tokens": 6, **expected}
    assert usage.counters() == expected


@OUTPUT_KNOWN
def test_audio_is_told_from_text(usage: _Usage) -> None:
    """Positions of audio are audio tokens."""
    model = usage.instrument(models.qwen2_audio())
    ids = torch.cat([torch.full((1, 4), AUDIO), models.prompt(1, 3)], dim=1)
    _generate(model, input_ids=ids, input_features=torch.randn(1, 8, 16), feature_attention_mask=torch.ones((1, 16), dtype=torch.long))
    expected = {"audio.input_tokens": 4, "text.input_tokens": 3, "text.output_tokens": 3}
    assert usage.span() == {"input_tokens": 7, "output_tokens": 3, **expected}
    assert usage.counters() == expected


@OUTPUT_KNOWN
def test_a_prompt_without_images_is_text(usage: _Usage) -> None:
    """A model for images that is asked in words alone has text tokens; zero image tokens are not sent."""
    _generate(usage.instrument(models.llava()), input_ids=models.prompt(1, 5))
    expected = {"text.input_tokens": 5, "text.output_tokens": 3}
    assert usage.span() == {"input_tokens": 5, "output_tokens": 3, **expected}
    assert usage.counters() == expected


@OUTPUT_KNOWN
def test_embeddings_as_a_prompt_are_not_split(usage: _Usage) -> None:
    """What embeddings stand for cannot be told: one number, of unknown modality, and no part of it on the span."""
    model = usage.instrument(models.llava())
    with torch.no_grad():
        embeds = model.get_input_embeddings()(models.prompt(1, 5))
    _generate(model, inputs_embeds=embeds)
    assert usage.span() == {"input_tokens": 5, "output_tokens": 3, "text.output_tokens": 3}
    assert usage.counters() == {"unknown.input_tokens": 5, "text.output_tokens": 3}


def _git() -> Any:
    """A model that puts its images before the prompt, without a token for them."""
    from transformers import GitConfig, GitForCausalLM, GitVisionConfig

    torch.manual_seed(0)
    vision = GitVisionConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
    sizes: Any = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = GitConfig(vision_config=vision.to_dict(), vocab_size=models.VOCABULARY, bos_token_id=1, eos_token_id=2, pad_token_id=0, **sizes)
    return GitForCausalLM(config).eval()


@OUTPUT_KNOWN
def test_a_model_without_placeholder_is_not_split(usage: _Usage) -> None:
    """Without a token that stands for images their positions cannot be told."""
    _generate(usage.instrument(_git()), input_ids=models.prompt(1, 5), pixel_values=torch.randn(1, 3, 8, 8))
    assert usage.span() == {"input_tokens": 5, "output_tokens": 3, "text.output_tokens": 3}
    assert usage.counters() == {"unknown.input_tokens": 5, "text.output_tokens": 3}


def test_a_reused_prefix_is_counted_as_read_from_the_cache(usage: _Usage) -> None:
    """What was in the cache is part of the input and counted beside it, each row of the batch, without its padding."""
    model, cache = usage.instrument(models.llama()), DynamicCache()
    ids = models.prompt(2, 6)
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    first = _generate(model, input_ids=ids, attention_mask=mask, **{CACHE: cache})
    second = torch.cat([first, models.prompt(2, 2, seed=2)], dim=1)
    _generate(model, input_ids=second, attention_mask=torch.cat([mask, torch.ones((2, 5), dtype=torch.long)], dim=1), **{CACHE: cache})
    assert usage.span() == {
        "input_tokens": 20,
        "text.input_tokens": 20,
        "cache_read.input_tokens": 14,
        "output_tokens": 6,
        "text.output_tokens": 6,
    }
    assert usage.counters() == {"text.input_tokens": 30, "text.output_tokens": 12, "text.cache_read.input_tokens": 14}


def test_a_request_without_reuse_reads_no_cache(usage: _Usage) -> None:
    """Where nothing was reused there is no number, not zero."""
    _generate(usage.instrument(models.llama()), input_ids=models.prompt(1, 6), **{CACHE: DynamicCache()})
    assert "cache_read.input_tokens" not in usage.span()
    assert "text.cache_read.input_tokens" not in usage.counters()


def test_a_reused_image_is_read_from_the_cache(usage: _Usage) -> None:
    """Of a reused prefix the images are image tokens too."""
    model, cache = usage.instrument(models.llava()), DynamicCache()
    ids = torch.cat([IMAGES, models.prompt(1, 5)], dim=1)
    first = _generate(model, input_ids=ids, pixel_values=torch.randn(1, 3, 8, 8), **{CACHE: cache})
    second = torch.cat([first, models.prompt(1, 2, seed=2)], dim=1)
    _generate(model, input_ids=second, attention_mask=torch.ones_like(second), **{CACHE: cache})
    assert usage.span()["cache_read.input_tokens"] == 11
    assert usage.span()["image.input_tokens"] == 4
    counters = usage.counters()
    assert {key: value for key, value in counters.items() if "cache_read" in key} == {
        "image.cache_read.input_tokens": 4,
        "text.cache_read.input_tokens": 7,
    }
