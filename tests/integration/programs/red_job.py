"""A small program whose requests can be counted: generations, plain forward passes of two kinds of model, and a span of its own.

Where telemetry goes is in the environment. How many spans of each kind it made, in seconds how long the requests took, and which
step and module spans must have been made, is written as JSON to the path given as argument.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from opentelemetry import trace
from transformers import LogitsProcessor, LogitsProcessorList

import inferspan
from tests.cases.models import llama, prompt

GENERATIONS, FAILURES, FORWARDS, CLASSIFICATIONS = 5, 2, 3, 4
MAX_NEW = 4
SLOW_SECONDS = 0.6


class Classifier(torch.nn.Module):
    """A model that nobody generates with."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(3)])

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Through all layers."""
        for layer in self.layers:
            values = torch.relu(layer(values))
        return values


class Fails(LogitsProcessor):
    """Raises in the first step."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Fail."""
        raise ValueError("no step is wanted")


class Waits(LogitsProcessor):
    """Makes one request slow."""

    def __init__(self) -> None:
        self.waited = False

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Wait once, pass the scores through."""
        if not self.waited:
            self.waited = True
            time.sleep(SLOW_SECONDS)
        return scores


def main(path: str) -> None:
    """Ask and say what was asked."""
    model, classifier = llama(), Classifier()
    model.config.name_or_path = "tiny-llama"
    inputs = prompt()
    greedy: dict[str, Any] = {"max_new_tokens": MAX_NEW, "min_new_tokens": MAX_NEW, "do_sample": False}
    language = inferspan.instrument(model)
    other = inferspan.instrument(classifier)
    tracer = trace.get_tracer("program")
    for number in range(GENERATIONS):
        slow = LogitsProcessorList([Waits()]) if number == 0 else None
        with tracer.start_as_current_span("GET /answer", kind=trace.SpanKind.SERVER):
            model.generate(inputs, **greedy, logits_processor=slow)
    for _ in range(FAILURES):
        try:
            model.generate(inputs, **greedy, logits_processor=LogitsProcessorList([Fails()]))
        except ValueError:
            continue
    with torch.no_grad():
        for _ in range(FORWARDS):
            model(inputs)
        for _ in range(CLASSIFICATIONS):
            classifier(torch.zeros(2, 8))
    inferspan.flush()
    language.uninstrument()
    other.uninstrument()
    counts = {"generations": GENERATIONS, "failures": FAILURES, "forwards": FORWARDS, "classifications": CLASSIFICATIONS}
    Path(path).write_text(json.dumps({**counts, "slow_seconds": SLOW_SECONDS}))


if __name__ == "__main__":
    main(sys.argv[1])
