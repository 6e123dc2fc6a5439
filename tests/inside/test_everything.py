"""All settings that look inside a model, together: the program stays as it is, nothing fails, and nothing stays behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import inferspan
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached

EVERYTHING: dict[str, Any] = {
    "modules": "all",
    "every_step": True,
    "output_stats": True,
    "input_stats": True,
    "activation_metric": True,
    "numerics": "all",
    "numerics_inputs": True,
    "memory": "all",
    "gradients": "all",
    "control_flow": "all",
    "data_flow": "operations",
    "attention_steps": "all",
    "attention_maps": True,
    "top_k_positions": "all",
    "capture_content": "SPAN_AND_EVENT",
    "max_spans_per_trace": 100_000,
    "span_hard_cap": 100_000,
}


class _Attention(nn.Module):
    """Attention by torch's function."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        query = self.project(hidden)
        return nn.functional.scaled_dot_product_attention(query, query, query)


class _Block(nn.Module):
    """Random in training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.self_attn, self.drop, self.head = _Attention(), nn.Dropout(0.5), nn.Linear(8, 4)

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.head(self.drop(self.self_attn(hidden)))
        return found


def _train(model: nn.Module) -> list[Tensor]:
    model.zero_grad()
    output = model(torch.ones(1, 2, 5, 8))
    output.sum().backward()
    found = [output.detach(), *[parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]]
    model.zero_grad()
    return found


def _generate(**options: Any) -> Callable[[Any], list[Tensor]]:
    def call(model: Any) -> list[Tensor]:
        return [model.generate(models.prompt(), max_new_tokens=4, **options)]

    return call


REQUESTS: list[tuple[str, Callable[[], Any], Callable[[Any], list[Tensor]]]] = [
    ("training", _Block, _train),
    ("sampling", models.llama, _generate(do_sample=True)),
    ("beams", models.t5, _generate(do_sample=False, num_beams=2)),
]


@pytest.mark.parametrize(("make", "call"), [row[1:] for row in REQUESTS], ids=[row[0] for row in REQUESTS])
def test_the_program_stays_as_it_is(telemetry: Telemetry, make: Any, call: Any) -> None:
    """Results, gradients and random numbers are the same, and so is the model afterwards."""
    plain, model = make(), make()
    torch.manual_seed(3)
    expected, drawn = call(plain), torch.rand(1)
    handle = telemetry.instrument(model, attention="all", **EVERYTHING)
    torch.manual_seed(3)
    found = call(model)
    assert torch.equal(torch.rand(1), drawn)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    handle.uninstrument()
    assert attached(model) == attached(plain)
    telemetry.check()


@pytest.mark.parametrize("detached", [True, False], ids=["uninstrumented", "instrumented"])
@pytest.mark.parametrize(("make", "call"), [row[1:] for row in REQUESTS], ids=[row[0] for row in REQUESTS])
def test_a_handle_keeps_nothing_of_the_model(telemetry: Telemetry, make: Any, call: Any, detached: bool) -> None:
    """The program lets go of the model, before or after ``uninstrument()``, and keeps the handle."""
    model = make()
    handle = telemetry.instrument(model, attention="all", **EVERYTHING)
    call(model)
    if detached:
        handle.uninstrument()
    inferspan.flush()
    modules = {name: weakref.ref(module) for name, module in model.named_modules()}
    weights = {name: weakref.ref(one) for name, one in model.named_parameters()}
    del model
    gc.collect()
    assert [name for name, one in modules.items() if one() is not None] == []
    assert [name for name, one in weights.items() if one() is not None] == []


def test_a_counter_of_the_program_counts_no_operation_of_attention(telemetry: Telemetry) -> None:
    """The products of queries and keys that are computed again are none of the model's."""
    counts = []
    for instrumented in (False, True):
        model = models.llama()
        if instrumented:
            handle = telemetry.instrument(model, attention="all", **EVERYTHING)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model.generate(models.prompt(), do_sample=False, max_new_tokens=3)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1]
    assert [call.source for call in handle.attention().calls[:1]] == ["recomputed"]
    telemetry.check()
