"""A session file made by hand: the tree of the telemetry contract as OTLP JSON, with exact times and known numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv

START = 1_800_000_000_000_000_000
MS = 1_000_000


def otlp_value(value: Any) -> dict[str, Any]:
    """A value as OTLP JSON writes it: int64 as text, everything else as JSON has it."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    return {"arrayValue": {"values": [otlp_value(part) for part in value]}}


def otlp_attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Attributes as OTLP JSON writes them."""
    return [{"key": key, "value": otlp_value(value)} for key, value in attributes.items()]


class Recording:
    """Collects spans and metrics and writes them as lines; ids are counted, so that they are the same in every run."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.third_party: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self.traces = 0

    def trace(self) -> str:
        """A new trace id."""
        self.traces += 1
        return f"{self.traces:032x}"

    def span(
        self,
        name: str,
        at: float,
        ms: float,
        *,
        trace: str,
        parent: str = "",
        attributes: Mapping[str, Any] | None = None,
        error: str | None = None,
        ours: bool = True,
    ) -> str:
        """Add a span that starts ``at`` milliseconds after ``START``; returns its id."""
        number = f"{len(self.spans) + len(self.third_party) + 1:016x}"
        span: dict[str, Any] = {
            "traceId": trace,
            "spanId": number,
            "name": name,
            "kind": 1,
            "startTimeUnixNano": str(START + round(at * MS)),
            "endTimeUnixNano": str(START + round((at + ms) * MS)),
            "attributes": otlp_attributes(attributes or {}),
            "status": {} if error is None else {"code": 2, "message": error},
        }
        if parent:
            span["parentSpanId"] = parent
        (self.spans if ours else self.third_party).append(span)
        return number

    def metric(self, name: str, kind: str, unit: str, points: Sequence[Mapping[str, Any]]) -> None:
        """Add a cumulative metric."""
        data = {"dataPoints": list(points)} | ({} if kind == "gauge" else {"aggregationTemporality": 2})
        self.metrics.append({"name": name, "unit": unit, kind: data})

    def lines(self) -> list[str]:
        """The lines of the file; children come before their parents, as they are exported."""
        resource = {"attributes": otlp_attributes({"service.name": "tests", "host.name": "box"})}
        found = []
        for scope, spans in ((semconv.SCOPE, list(reversed(self.spans))), ("http", self.third_party)):
            if spans:
                found.append({"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": scope}, "spans": spans}]}]})
        if self.metrics:
            scopes = [{"scope": {"name": semconv.SCOPE}, "metrics": self.metrics}]
            found.append({"resourceMetrics": [{"resource": resource, "scopeMetrics": scopes}]})
        return [json.dumps(line, separators=(",", ":")) for line in found]

    def write(self, path: Path) -> Path:
        """Write the lines to a file."""
        path.write_text("".join(line + "\n" for line in self.lines()), encoding="utf-8")
        return path


def add_generate(
    recording: Recording, at: float, *, tokens: int = 3, layers: int = 2, content: bool = False, parent: str = "", trace: str = ""
) -> str:
    """Add one ``generate()`` with one row: 20 ms of prefill, 10 ms a decode step; step 0 and 1 hold modules. Returns its span id."""
    trace = trace or recording.trace()
    logprobs = [-0.1 * (number + 1) for number in range(tokens)]
    request = recording.span(
        "text_completion tiny/model", at, 20 + 10 * (tokens - 1), trace=trace, parent=parent,
        attributes={
            semconv.OPERATION_NAME: "text_completion", semconv.REQUEST_MODEL: "tiny/model", semconv.BATCH_SIZE: 1,
            semconv.INPUT_TOKENS: 12, semconv.OUTPUT_TOKENS: tokens, semconv.SEQUENCE_OUTPUT_TOKENS: [tokens],
            semconv.DECODE_STEPS: tokens - 1, semconv.FINISH_REASONS: ["length"], semconv.TTFT: 0.02, semconv.TPOT: 0.01,
            semconv.TOKENS_PER_SECOND: tokens / (0.02 + 0.01 * (tokens - 1)), semconv.MEMORY_PEAK: 3 * 1024**2,
            semconv.TOKEN_LOGPROBS: logprobs, semconv.TOKEN_ENTROPIES: [0.5] * tokens,
            semconv.TOKEN_INTERVALS: [0.02] + [0.01] * (tokens - 1),
        },
    )  # fmt: skip
    prefill = recording.span("prefill", at, 20, trace=trace, parent=request, attributes={semconv.PHASE: "prefill"})
    decode = recording.span("decode", at + 20, 10 * (tokens - 1), trace=trace, parent=request, attributes={semconv.PHASE: "decode"})
    for index in range(tokens):
        phase, parent_id, ms = ("prefill", prefill, 20.0) if index == 0 else ("decode", decode, 10.0)
        start = at if index == 0 else at + 20 + 10 * (index - 1)
        attributes: dict[str, Any] = {
            semconv.PHASE: phase, semconv.STEP_INDEX: index, semconv.STEP_TOKENS: 12 if index == 0 else 1,
            semconv.LOGITS_CHOSEN_LOGPROB: logprobs[index], semconv.LOGITS_ENTROPY: 0.5, semconv.LOGITS_TOP1: 0.9,
            semconv.LOGITS_MARGIN: 2.0, semconv.LOGITS_CHOSEN_RANK: 1,
        }  # fmt: skip
        if content:
            attributes |= {semconv.STEP_TOKEN_IDS: [100 + index], semconv.STEP_TOKEN_TEXTS: [f" word{index}"]}
        step = recording.span(f"{phase}_step", start, ms, trace=trace, parent=parent_id, attributes=attributes)
        if index < 2:
            add_layers(recording, start, ms, trace=trace, parent=step, layers=layers, index=index, phase=phase)
    return request


def add_layers(recording: Recording, start: float, ms: float, *, trace: str, parent: str, layers: int, index: int, phase: str) -> None:
    """Layers that share 80 % of a step, each with an attention of half its time."""
    each = ms * 0.8 / layers
    for layer in range(layers):
        own = {semconv.PHASE: phase, semconv.STEP_INDEX: index, semconv.MODULE_LAYER_INDEX: layer}
        name = f"model.layers.{layer}"
        top = recording.span(
            f"layer {layer}", start + layer * each, each, trace=trace, parent=parent,
            attributes={**own, semconv.MODULE_NAME: name, semconv.MODULE_TYPE: "TinyLayer", semconv.OUTPUT_SHAPES: ["1x12x64"]},
        )  # fmt: skip
        recording.span(
            f"layer {layer} self_attn", start + layer * each, each / 2, trace=trace, parent=top,
            attributes={**own, semconv.MODULE_NAME: f"{name}.self_attn", semconv.MODULE_TYPE: "TinyAttention"},
        )  # fmt: skip


def add_failure(recording: Recording, at: float, message: str = "too long") -> str:
    """Add a call that fails at once; returns its span id."""
    number = recording.span(
        "text_completion tiny/model", at, 2, trace=recording.trace(), error=message,
        attributes={semconv.REQUEST_MODEL: "tiny/model", semconv.ERROR_TYPE: "ValueError", semconv.FINISH_REASONS: ["error"]},
    )  # fmt: skip
    event = {"exception.type": "ValueError", "exception.message": message, "exception.stacktrace": "Traceback ..."}
    recording.spans[-1]["events"] = [{"name": "exception", "timeUnixNano": str(START), "attributes": otlp_attributes(event)}]
    return number


@pytest.fixture
def recording() -> Recording:
    """An empty recording."""
    return Recording()


@pytest.fixture
def generate() -> Callable[..., str]:
    """Add a recorded generation to a recording."""
    return add_generate


@pytest.fixture
def fail() -> Callable[..., str]:
    """Add a failed generation to a recording."""
    return add_failure


@pytest.fixture
def session_path(recording: Recording, tmp_path: Path) -> Path:
    """Two generate() calls, one failure, two metrics, one caller of another library."""
    trace = recording.trace()
    caller = recording.span("POST /chat", 0, 80, trace=trace, ours=False)
    add_generate(recording, 10, content=True, parent=caller, trace=trace)
    add_generate(recording, 100, tokens=5)
    add_failure(recording, 200)
    buckets = {"bucketCounts": ["0", "2", "0"], "explicitBounds": [0.01, 0.1]}
    recording.metric(
        semconv.M_SERVER_TTFT, "histogram", "s",
        [{"count": "2", "sum": 0.04, **buckets, "min": 0.02, "max": 0.02, "timeUnixNano": str(START)}],
    )  # fmt: skip
    points = [{"asInt": str(1024**2 * (number + 1)), "timeUnixNano": str(START + number * 10**9)} for number in range(4)]
    recording.metric(semconv.M_PROCESS_MEMORY, "sum", "By", points)
    return recording.write(tmp_path / "session.jsonl")
