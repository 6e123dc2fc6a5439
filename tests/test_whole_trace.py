"""What inferspan emits, as a newcomer reads it: the whole trace of three small requests as text.

Each line is a span or one of its attributes. Times, sizes in memory and the values of random weights differ from run to run; a word in
angle brackets stands for them and names their unit.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from opentelemetry.sdk.trace import ReadableSpan
from torch import nn

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

MASKS = {
    semconv.TTFT: "<s>",
    semconv.TPOT: "<s>",
    semconv.TOKEN_INTERVALS: "<s>",
    semconv.TOKENS_PER_SECOND: "<tokens/s>",
    semconv.PREFILL_TOKENS_PER_SECOND: "<tokens/s>",
    semconv.ANALYSIS_UNIQUE_TOKENS: "<tokens>",
    semconv.MEMORY_START: "<By>",
    semconv.MEMORY_END: "<By>",
    semconv.MEMORY_PEAK: "<By>",
    semconv.MEMORY_PEAK_EXACT: "<boolean>",
}
"""Attributes whose values differ from run to run, with their units."""


def shown(key: str, value: Any) -> str:
    """A value as the page shows it: what differs from run to run is masked, element by element."""
    if key in MASKS:
        return f"[{', '.join([MASKS[key]] * len(value))}]" if isinstance(value, tuple) else MASKS[key]
    if isinstance(value, tuple):
        return f"[{', '.join(shown(key, one) for one in value)}]"
    # What is computed from random weights is known to be a number and no more.
    return "<number>" if isinstance(value, float) and math.isfinite(value) else str(value)


def as_text(spans: list[ReadableSpan]) -> str:
    """The trees of all spans: a span's name, its attributes and events, then its children, each level indented."""
    lines: list[str] = []

    def write(span: ReadableSpan, depth: int) -> None:
        indent = "    " * depth
        lines.append(f"{indent}{span.name}{'' if span.status.is_unset else f' [{span.status.status_code.name}]'}")
        attributes = span.attributes or {}
        lines.extend(f"{indent}  | {key} = {shown(key, attributes[key])}" for key in sorted(attributes))
        lines.extend(f"{indent}  * {event.name}: {', '.join(sorted(event.attributes or {}))}" for event in span.events)
        for child in spans:
            if child.parent is not None and span.context is not None and child.parent.span_id == span.context.span_id:
                write(child, depth + 1)

    for span in spans:
        if span.parent is None:
            write(span, 0)
    return "\n".join(lines) + "\n"


GENERATE = """\
text_completion
  | gen_ai.operation.name = text_completion
  | gen_ai.provider.name = huggingface
  | gen_ai.request.max_tokens = 2
  | gen_ai.response.finish_reasons = [length]
  | gen_ai.usage.input_tokens = 6
  | gen_ai.usage.output_tokens = 2
  | gen_ai.usage.text.input_tokens = 6
  | gen_ai.usage.text.output_tokens = 2
  | inferspan.analysis.avg_logits_mean = <number>
  | inferspan.analysis.avg_logits_std = <number>
  | inferspan.analysis.chosen_probability.average = <number>
  | inferspan.analysis.chosen_probability.deviation = <number>
  | inferspan.analysis.chosen_probability.maximum = <number>
  | inferspan.analysis.chosen_probability.minimum = <number>
  | inferspan.analysis.confidence.average = <number>
  | inferspan.analysis.confidence.deviation = <number>
  | inferspan.analysis.confidence.maximum = <number>
  | inferspan.analysis.confidence.minimum = <number>
  | inferspan.analysis.distinct_ratio = <number>
  | inferspan.analysis.repetition_rate = <number>
  | inferspan.analysis.repetition_rate_recent = <number>
  | inferspan.analysis.token_entropy = <number>
  | inferspan.analysis.unique_tokens = <tokens>
  | inferspan.batch.size = 1
  | inferspan.decode.steps = 1
  | inferspan.device.bytes = 97600
  | inferspan.device.flops = 121216
  | inferspan.device.id = cpu
  | inferspan.device.type = cpu
  | inferspan.health.kinds = [low]
  | inferspan.kv_cache.bytes = 896
  | inferspan.memory.end = <By>
  | inferspan.memory.peak = <By>
  | inferspan.memory.peak_exact = <boolean>
  | inferspan.memory.start = <By>
  | inferspan.model.architecture = LlamaForCausalLM
  | inferspan.model.attention.implementation = sdpa
  | inferspan.model.cache.implementation = dynamic
  | inferspan.model.compile.mode = none
  | inferspan.model.dtype = float32
  | inferspan.model.name = LlamaForCausalLM
  | inferspan.model.parameter.count = 11872
  | inferspan.model.type = llama
  | inferspan.prefill.tokens_per_second = <tokens/s>
  | inferspan.request.do_sample = False
  | inferspan.request.num_beams = 1
  | inferspan.sequences.input_tokens = [6]
  | inferspan.sequences.output_tokens = [2]
  | inferspan.time_per_output_token = <s>
  | inferspan.time_to_first_token = <s>
  | inferspan.tokens.entropies = [<number>, <number>]
  | inferspan.tokens.intervals = [<s>, <s>]
  | inferspan.tokens.logprobs = [<number>, <number>]
  | inferspan.tokens_per_second = <tokens/s>
  | inferspan.warmup = True
    prefill
      | inferspan.device.bytes = 54656
      | inferspan.device.flops = 100864
      | inferspan.phase = prefill
        prefill_step
          | inferspan.device.id = cpu
          | inferspan.input.dtypes = [int64]
          | inferspan.input.shapes = [1x6]
          | inferspan.logits.chosen_logprob = <number>
          | inferspan.logits.chosen_rank = 1
          | inferspan.logits.entropy = <number>
          | inferspan.logits.inf_count = 0
          | inferspan.logits.margin = <number>
          | inferspan.logits.max = <number>
          | inferspan.logits.mean = <number>
          | inferspan.logits.min = <number>
          | inferspan.logits.nan_count = 0
          | inferspan.logits.std = <number>
          | inferspan.logits.top1_probability = <number>
          | inferspan.output.dtypes = [float32]
          | inferspan.output.shapes = [1x64]
          | inferspan.phase = prefill
          | inferspan.sequence.length = 6
          | inferspan.step.index = 0
          | inferspan.step.rows = 1
          | inferspan.step.tokens = 6
            layer 0
              | inferspan.input.dtypes = [float32, float32, float32, int64]
              | inferspan.input.shapes = [1x6x32, 1x6x8, 1x6x8, 1x6]
              | inferspan.module.layer.index = 0
              | inferspan.module.name = model.layers.0
              | inferspan.module.type = LlamaDecoderLayer
              | inferspan.output.dtypes = [float32]
              | inferspan.output.shapes = [1x6x32]
              | inferspan.phase = prefill
              | inferspan.step.index = 0
                layer 0 self_attn
                  | inferspan.input.dtypes = [float32, int64, float32, float32]
                  | inferspan.input.shapes = [1x6x32, 1x6, 1x6x8, 1x6x8]
                  | inferspan.module.layer.index = 0
                  | inferspan.module.name = model.layers.0.self_attn
                  | inferspan.module.type = LlamaAttention
                  | inferspan.output.dtypes = [float32]
                  | inferspan.output.shapes = [1x6x32]
                  | inferspan.phase = prefill
                  | inferspan.step.index = 0
                layer 0 mlp
                  | inferspan.input.dtypes = [float32]
                  | inferspan.input.shapes = [1x6x32]
                  | inferspan.module.layer.index = 0
                  | inferspan.module.name = model.layers.0.mlp
                  | inferspan.module.type = LlamaMLP
                  | inferspan.output.dtypes = [float32]
                  | inferspan.output.shapes = [1x6x32]
                  | inferspan.phase = prefill
                  | inferspan.step.index = 0
    decode
      | inferspan.device.bytes = 42944
      | inferspan.device.flops = 20352
      | inferspan.phase = decode
        decode_step
          | inferspan.device.id = cpu
          | inferspan.input.dtypes = [int64]
          | inferspan.input.shapes = [1x1]
          | inferspan.logits.chosen_logprob = <number>
          | inferspan.logits.chosen_rank = 1
          | inferspan.logits.entropy = <number>
          | inferspan.logits.inf_count = 0
          | inferspan.logits.margin = <number>
          | inferspan.logits.max = <number>
          | inferspan.logits.mean = <number>
          | inferspan.logits.min = <number>
          | inferspan.logits.nan_count = 0
          | inferspan.logits.std = <number>
          | inferspan.logits.top1_probability = <number>
          | inferspan.output.dtypes = [float32]
          | inferspan.output.shapes = [1x64]
          | inferspan.phase = decode
          | inferspan.sequence.length = 7
          | inferspan.step.index = 1
          | inferspan.step.rows = 1
          | inferspan.step.tokens = 1
            layer 0
              | inferspan.input.dtypes = [float32, float32, float32, int64]
              | inferspan.input.shapes = [1x1x32, 1x1x8, 1x1x8, 1x1]
              | inferspan.module.layer.index = 0
              | inferspan.module.name = model.layers.0
              | inferspan.module.type = LlamaDecoderLayer
              | inferspan.output.dtypes = [float32]
              | inferspan.output.shapes = [1x1x32]
              | inferspan.phase = decode
              | inferspan.step.index = 1
                layer 0 self_attn
                  | inferspan.input.dtypes = [float32, int64, float32, float32]
                  | inferspan.input.shapes = [1x1x32, 1x1, 1x1x8, 1x1x8]
                  | inferspan.module.layer.index = 0
                  | inferspan.module.name = model.layers.0.self_attn
                  | inferspan.module.type = LlamaAttention
                  | inferspan.output.dtypes = [float32]
                  | inferspan.output.shapes = [1x1x32]
                  | inferspan.phase = decode
                  | inferspan.step.index = 1
                layer 0 mlp
                  | inferspan.input.dtypes = [float32]
                  | inferspan.input.shapes = [1x1x32]
                  | inferspan.module.layer.index = 0
                  | inferspan.module.name = model.layers.0.mlp
                  | inferspan.module.type = LlamaMLP
                  | inferspan.output.dtypes = [float32]
                  | inferspan.output.shapes = [1x1x32]
                  | inferspan.phase = decode
                  | inferspan.step.index = 1
"""


def test_generate(telemetry: Telemetry) -> None:
    """A generate() of two tokens: request, two phases, a step for each forward pass, and the layers of sampled steps."""
    model = models.llama(num_hidden_layers=1, eos_token_id=None)
    telemetry.instrument(model, modules="layers")
    model.generate(models.prompt(), max_new_tokens=2, do_sample=False)
    assert as_text(telemetry.spans()) == GENERATE


FORWARD = """\
forward Sequential
  | inferspan.batch.size = 2
  | inferspan.device.bytes = 240
  | inferspan.device.flops = 128
  | inferspan.device.id = cpu
  | inferspan.device.type = cpu
  | inferspan.input.dtypes = [float32]
  | inferspan.input.shapes = [2x8]
  | inferspan.model.architecture = Sequential
  | inferspan.model.compile.mode = none
  | inferspan.model.dtype = float32
  | inferspan.model.name = Sequential
  | inferspan.model.parameter.count = 36
  | inferspan.output.dtypes = [float32]
  | inferspan.output.shapes = [2x4]
  | inferspan.warmup = True
    layer 0
      | inferspan.input.dtypes = [float32]
      | inferspan.input.shapes = [2x8]
      | inferspan.module.layer.index = 0
      | inferspan.module.name = 0
      | inferspan.module.type = Linear
      | inferspan.output.dtypes = [float32]
      | inferspan.output.shapes = [2x4]
      | inferspan.phase = forward
    layer 1
      | inferspan.input.dtypes = [float32]
      | inferspan.input.shapes = [2x4]
      | inferspan.module.layer.index = 1
      | inferspan.module.name = 1
      | inferspan.module.type = ReLU
      | inferspan.output.dtypes = [float32]
      | inferspan.output.shapes = [2x4]
      | inferspan.phase = forward
"""


def test_plain_forward_pass(telemetry: Telemetry) -> None:
    """A call of any other module: the request, and each module inside of it."""
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
    telemetry.instrument(model, modules="all")
    model(torch.zeros(2, 8))
    assert as_text(telemetry.spans()) == FORWARD


class Failing(nn.Module):
    """Fails as a program of the user's may fail."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such thing")


FAILED = """\
forward Sequential [ERROR]
  | error.type = ValueError
  | inferspan.batch.size = 2
  | inferspan.device.id = cpu
  | inferspan.device.type = cpu
  | inferspan.failed = True
  | inferspan.input.dtypes = [float32]
  | inferspan.input.shapes = [2x8]
  | inferspan.model.architecture = Sequential
  | inferspan.model.compile.mode = none
  | inferspan.model.dtype = float32
  | inferspan.model.name = Sequential
  | inferspan.model.parameter.count = 36
  | inferspan.warmup = True
  * exception: exception.message, exception.stacktrace, exception.type
    layer 0
      | inferspan.input.dtypes = [float32]
      | inferspan.input.shapes = [2x8]
      | inferspan.module.layer.index = 0
      | inferspan.module.name = 0
      | inferspan.module.type = Linear
      | inferspan.output.dtypes = [float32]
      | inferspan.output.shapes = [2x4]
      | inferspan.phase = forward
    layer 1 [ERROR]
      | error.type = ValueError
      | inferspan.input.dtypes = [float32]
      | inferspan.input.shapes = [2x4]
      | inferspan.module.layer.index = 1
      | inferspan.module.name = 1
      | inferspan.module.type = Failing
      | inferspan.phase = forward
"""


def test_failed_forward_pass(telemetry: Telemetry) -> None:
    """A call that fails: the exception stands on the request, and its class on each span that it passed through."""
    model = nn.Sequential(nn.Linear(8, 4), Failing())
    telemetry.instrument(model, modules="all")
    with pytest.raises(ValueError, match="no such thing"):
        model(torch.zeros(2, 8))
    assert as_text(telemetry.spans()) == FAILED
