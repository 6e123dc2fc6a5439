"""Decoding loops that a user would write, around ``inferspan.generation()``, and what they emit."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from torch import Tensor

import inferspan
from inferspan import semconv
from tests.cases.telemetry import Telemetry

__all__ = ["LOOP_KNOWS", "QUIET", "VOCABULARY", "emitted", "engine", "given", "greedy", "providers", "some_logits"]

VOCABULARY = 16
"""Of the engine that is no module."""

QUIET = {"nvml": False, "host": False, "allocator": False}
LOOP_KNOWS: dict[str, Any] = {semconv.DO_SAMPLE: False, semconv.NUM_BEAMS: 1}
"""What ``generate()`` reads in its configuration, and only the loop itself knows."""


def providers(telemetry: Telemetry, **settings: Any) -> dict[str, Any]:
    """Arguments of ``generation()`` for a model that is not instrumented."""
    return {"tracer_provider": telemetry.tracer_provider, "meter_provider": telemetry.meter_provider, **QUIET, **settings}


def engine(telemetry: Telemetry, **options: Any) -> Any:
    """A generation of an engine that is no module."""
    return inferspan.generation("small.onnx", **providers(telemetry), **options)


def some_logits(rows: int = 1) -> numpy.ndarray[Any, Any]:
    """Logits of such an engine, always the same."""
    return numpy.random.default_rng(0).normal(size=(rows, VOCABULARY)).astype(numpy.float32)


def given(ids: Tensor, padding: int = 0) -> dict[str, Tensor]:
    """A prompt as a tokenizer returns it; its first row has so much padding on the left."""
    ids, mask = ids.clone(), torch.ones_like(ids)
    ids[0, :padding], mask[0, :padding] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def _cache_of(output: Any) -> Any:
    return output.get("past_key_values") if output.get("past_key_values") is not None else output.get("cache")


@torch.no_grad()
def greedy(model: Any, prompt: dict[str, Tensor], limit: int, *, cached: bool = True, chunk: int | None = None, told: bool = True, **options: Any) -> Tensor:
    """Greedy decoding with a cache, written by hand; rows that have ended get padding, as in ``generate()``."""
    ids, mask = prompt["input_ids"], prompt["attention_mask"]
    eos = model.generation_config.eos_token_id
    cache, ended = None, torch.zeros(len(ids), dtype=torch.bool)
    with inferspan.context(**LOOP_KNOWS), inferspan.generation(model, input_tokens=prompt if told else None, max_new_tokens=limit, **options) as g:
        begin = 0
        while chunk and begin + chunk < ids.shape[1]:
            with g.prefill():
                output = model(ids[:, begin : begin + chunk], attention_mask=mask[:, : begin + chunk], past_key_values=cache, use_cache=True)
            cache, begin = _cache_of(output), begin + chunk
        for step in range(limit):
            inputs = ids[:, begin:] if step == 0 else ids[:, -1:] if cached else ids
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -inputs.shape[1] :]
            with g.prefill() if step == 0 else g.step():
                output = model(
                    inputs, attention_mask=mask, past_key_values=cache, position_ids=positions, use_cache=cached, logits_to_keep=1
                )
            chosen = output.logits[:, -1].argmax(-1).masked_fill(ended, 0)
            g.token(output.logits, chosen)
            cache, ids = _cache_of(output), torch.cat([ids, chosen[:, None]], 1)
            mask = torch.cat([mask, torch.ones_like(chosen[:, None])], 1)
            if eos is not None:
                ended |= chosen == eos
                if ended.all():
                    break
        g.finish("length")
    return ids


def emitted(loop: Any, model: Any, *, attach: bool = True, **settings: Any) -> tuple[Any, Telemetry]:
    """The result of a loop that ran twice, and everything it has emitted."""
    telemetry = Telemetry()
    options = {}
    if attach:
        telemetry.instrument(model, **settings)
    else:
        options = providers(telemetry, **settings)
    loop(model, **options)
    result = loop(model, **options)
    telemetry.close()
    telemetry.check()
    return result, telemetry
