"""Bytes of passes against figures worked by hand, on a model of the 8B shape without memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inferspan import semconv
from tests.cases.telemetry import Telemetry
from tests.roofline.tiny import MODELS

PARAMETERS = 8_030_261_248
EMBEDDING = 128_256 * 4_096
KEYS_AND_VALUES = 2 * 32 * 8 * 128
"""Elements of one position: keys and values of 32 layers, 8 heads of 128."""
ATTENTION = (4096 + 4096) + 2 * (4096 + 1024) + (4096 + 4096) + 2 * 4096
"""Elements that queries, keys and values, output and attention itself take and give for one position."""
MLP = 3 * (4096 + 14_336)
ACTIVATIONS = 4096 + 32 * (ATTENTION + MLP) + (4096 + 128_256)
"""Of a whole pass, for one position: embedding, layers, head."""


@pytest.fixture(scope="module")
def large() -> Any:
    """The shape of Llama 3 8B in bfloat16, on the meta device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=8192,
    )  # fmt: skip
    with torch.device("meta"):
        return LlamaForCausalLM(config).bfloat16().eval()


def _bytes_of_decode(telemetry: Telemetry, model: Any, rows: int, past: int) -> int:
    """Bytes of a pass of one token a row behind ``past`` positions in the cache."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    keys = torch.empty(rows, 8, past, 128, device="meta", dtype=torch.bfloat16)
    for layer in range(32):
        cache.update(keys, keys, layer)
    ids = torch.zeros(rows, 1, dtype=torch.long, device="meta")
    telemetry.instrument(model, logits=False, modules="none")
    with torch.no_grad():
        model(ids, past_key_values=cache, position_ids=torch.zeros_like(ids))
    (request,) = telemetry.roots()
    found = (request.attributes or {})[semconv.DEVICE_BYTES]
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize(("rows", "past"), [(1, 127), (1, 8191), (16, 2047)])
def test_decode_of_the_8b_shape(telemetry: Telemetry, large: Any, rows: int, past: int) -> None:
    """Weights once, but for the table of the embedding, the cache of each row, and what goes between modules."""
    found = _bytes_of_decode(telemetry, large, rows, past)
    weights = 2 * (PARAMETERS - EMBEDDING + rows * 4096)
    cache = 2 * rows * (past + 1) * KEYS_AND_VALUES
    assert found == weights + cache + 2 * rows * ACTIVATIONS


def test_decode_of_the_8b_shape_is_nearly_its_weights(telemetry: Telemetry, large: Any) -> None:
    """With a short context 15 GB go to and fro, 0.1 % more than the weights that a pass reads."""
    found = _bytes_of_decode(telemetry, large, 1, 127)
    assert found == pytest.approx(2 * (PARAMETERS - EMBEDDING), rel=2e-3)


def test_experts_that_are_not_chosen_are_not_read(telemetry: Telemetry) -> None:
    """One position reads the two experts of four that it goes through; many positions nearly all."""
    model = MODELS["mixtral"]()
    telemetry.instrument(model, logits=False)
    with torch.no_grad():
        model(torch.ones(1, 1, dtype=torch.long), use_cache=False)
        model(torch.ones(1, 2, dtype=torch.long), use_cache=False)
    one, two = [(request.attributes or {})[semconv.DEVICE_BYTES] for request in telemetry.roots()]
    experts = 4 * (4 * 3 * 32 * 48) * 2
    """Bytes of four experts in two layers."""
    others = two - one - experts // 4  # type: ignore[operator]
    assert others < experts // 8


def test_quantized_weights_count_as_they_are_stored(telemetry: Telemetry) -> None:
    """A linear layer whose weights are packed in buffers reads these."""

    class Packed(torch.nn.Module):
        scales: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.in_features, self.out_features = 64, 16
            self.register_buffer("qweight", torch.zeros(16, 32, dtype=torch.uint8))
            self.register_buffer("scales", torch.ones(16, dtype=torch.float32))

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden[..., :16] * self.scales

    model = torch.nn.Sequential(torch.nn.LayerNorm(64), Packed())
    telemetry.instrument(model)
    with torch.no_grad():
        model(torch.ones(3, 64))
    (request,) = telemetry.roots()
    attributes = request.attributes or {}
    assert attributes[semconv.DEVICE_FLOPS] == 2 * 3 * 64 * 16
    assert attributes[semconv.DEVICE_BYTES] == 2 * 64 * 4 + (16 * 32 + 16 * 4) + 3 * (64 + 16) * 4
