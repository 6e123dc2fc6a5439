"""Session files of two versions of a program, written from seeded figures."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inferspan import semconv

__all__ = ["noise", "write"]

BEGIN = 1_800_000_000
"""Seconds since the epoch."""


def noise(count: int, seed: int, *, deviation: float = 0.01, outliers: float = 0.05) -> list[float]:
    """Factors about 1, some of them much larger."""
    draw = random.Random(seed)
    return [draw.lognormvariate(0, deviation) * (1.5 if draw.random() < outliers else 1.0) for _ in range(count)]


def _attributes(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    return [{"key": key, "value": {kinds[type(value)]: str(value) if type(value) is int else value}} for key, value in found.items()]


def write(
    path: Path,
    seconds: Sequence[float],
    *,
    model: str = "tiny",
    tokens: Sequence[int] | int = 10,
    inputs: Sequence[int] | int = 24,
    prefill: float = 0.25,
    slow_module: float = 1.0,
    logits_mean: float = 0.5,
    more: Mapping[str, Any] | None = None,
    every: Sequence[Mapping[str, Any]] = (),
    resource: Mapping[str, Any] | None = None,
    run: str = "1",
    failed: Sequence[int] = (),
    append: bool = False,
    begin: float = 0.0,
) -> Path:
    """Requests of these seconds, one every 10 s, each with prefill, decode, a step and calls of two modules.

    ``every`` adds attributes to single requests, ``more`` to all; ``prefill`` is its share of the time, ``begin`` a number of seconds by which all start later.
    """
    process = {"service.name": "svc", "service.instance.id": f"{path.name} {run}", **(resource or {})}
    spans = []
    for number, duration in enumerate(seconds):
        start = BEGIN + 10 * number + 100_000 * int(run) + begin
        output = tokens if isinstance(tokens, int) else tokens[number]
        prompt = inputs if isinstance(inputs, int) else inputs[number]
        first = prefill * duration
        own = {
            semconv.REQUEST_MODEL: model, semconv.OUTPUT_TOKENS: output, semconv.INPUT_TOKENS: prompt, semconv.BATCH_SIZE: 1,
            semconv.TTFT: first, semconv.TPOT: (duration - first) / max(1, output - 1), **(more or {}), **(every[number] if every else {}),
        }  # fmt: skip
        trace = f"{abs(hash((path.name, run, number))) + 1:032x}"
        logits = {semconv.LOGITS_MEAN: logits_mean, semconv.LOGITS_STD: 2.0, semconv.LOGITS_ENTROPY: 3.0, semconv.LOGITS_MAX: 9.0}
        call = duration / 100
        rows: list[tuple[str, int, int, float, float, Mapping[str, Any]]] = [
            (f"text_completion {model}", 1, 0, 0, duration, own),
            ("prefill", 2, 1, 0, first, {semconv.PHASE: "prefill"}),
            ("prefill_step", 3, 2, 0, first, {semconv.STEP_INDEX: 0, **logits}),
            ("decode", 4, 1, first, duration, {semconv.PHASE: "decode"}),
            ("decode_step", 5, 4, first, duration, {semconv.STEP_INDEX: 1}),
            ("layer 0", 6, 5, first, first + call, {semconv.MODULE_NAME: "layers.0"}),
            ("layer 1", 7, 5, first + call, first + call + call * slow_module, {semconv.MODULE_NAME: "layers.1"}),
        ]
        for name, span, parent, begun, ended, attributes in rows:
            spans.append({
                "traceId": trace, "spanId": f"{span:016x}", "parentSpanId": f"{parent:016x}" if parent else "", "name": name,
                "startTimeUnixNano": str(round((start + begun) * 1e9)), "endTimeUnixNano": str(round((start + ended) * 1e9)),
                "attributes": _attributes(attributes), **({"status": {"code": 2}} if span == 1 and number in failed else {}),
            })  # fmt: skip
    scope = {"scope": {"name": semconv.SCOPE}, "spans": spans}
    line = json.dumps({"resourceSpans": [{"resource": {"attributes": _attributes(process)}, "scopeSpans": [scope]}]})
    with path.open("a" if append else "w") as file:
        file.write(line + "\n")
    return path
