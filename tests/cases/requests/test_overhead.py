"""The overhead metric: our own time on the model's threads, and nobody else's."""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.cases import models
from tests.cases.telemetry import Telemetry

NAP = 0.1
TOKENS = 6
OVERHEAD = "inferspan.telemetry.overhead"


class Sleeping(LlamaForCausalLM):
    """Waits for something inside of the methods that inferspan wraps, and inside of its forward pass."""

    place = ""
    naps = 0

    def nap(self, place: str) -> None:
        """Sleep, if this is the place."""
        if place == self.place:
            self.naps += 1
            time.sleep(NAP)

    @functools.wraps(LlamaForCausalLM.prepare_inputs_for_generation)
    def prepare_inputs_for_generation(self, *args: Any, **options: Any) -> Any:
        """Before each forward pass."""
        self.nap("prepare_inputs_for_generation")
        return super().prepare_inputs_for_generation(*args, **options)

    @functools.wraps(LlamaForCausalLM._update_model_kwargs_for_generation)
    def _update_model_kwargs_for_generation(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        self.nap("_update_model_kwargs_for_generation")
        return super()._update_model_kwargs_for_generation(*args, **options)

    @functools.wraps(LlamaForCausalLM.forward)
    def forward(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        """The forward pass."""
        self.nap("forward")
        return super().forward(*args, **options)


@pytest.mark.parametrize("place", ["prepare_inputs_for_generation", "_update_model_kwargs_for_generation", "forward"])
def test_time_of_the_model_is_not_overhead(telemetry: Telemetry, place: str) -> None:
    """A model that sleeps in what inferspan wraps adds nothing to the overhead of its requests."""
    model = models.llama()
    model.__class__ = Sleeping
    telemetry.instrument(model)
    model.place = place
    with torch.no_grad():
        model.generate(models.prompt(), do_sample=False, max_new_tokens=TOKENS, min_new_tokens=TOKENS)
    assert model.naps == TOKENS
    # Ours takes a few milliseconds; half of the time slept leaves a slow machine room.
    assert 0 < telemetry.metric_sum(OVERHEAD) < TOKENS * NAP / 2
    telemetry.check()
