"""The rules and the running quantile on requests of any length, and the memory that held detail takes."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inferspan import semconv
from inferspan.buffer import CAPACITY
from inferspan.capture.generate import step_rows
from inferspan.capture.generate.step_attributes import StepFacts
from inferspan.capture.logits.statistics import LogitStatistics, StepLogits
from inferspan.metrics.requests import RequestMetrics
from inferspan.records import Failure, ModelInfo, ModuleBatch, ModuleCalls, ModuleInfo, Phase, RequestEnd, RequestStart, Step
from inferspan.settings import Settings
from inferspan.spans.flight_recorder import HELD_BYTES, RunningQuantile
from inferspan.spans.recorder import SpanRecorder
from inferspan.spans.writer import SpanWriter
from tests.spans.outputs import DECODE, PREFILL


class _NoMeter:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self


class _Bench:
    """A recorder of its own, requests of any length, and what is exported of them."""

    def __init__(self, *, queue: int = CAPACITY, **settings: Any) -> None:
        chosen = Settings(**settings)
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        metrics = RequestMetrics(lambda: _NoMeter(), chosen)
        self.recorder = SpanRecorder(chosen, lambda: provider.get_tracer("inferspan"), metrics, SpanWriter(capacity=queue))

    def start(self, kind: str = "forward") -> Any:
        info = ModelInfo("org/model", "huggingface", "Model")
        return self.recorder.start(RequestStart(kind, "text_completion", info, 0, False, {}), None)

    def request(self, seconds: float, kind: str = "generate", failure: Failure | None = None, **attributes: Any) -> bool:
        scope = self.start(kind)
        scope.detail([Phase(PREFILL, 0, 1, None, {})])
        scope.end(RequestEnd(round(seconds * 1e9), failure, {f"inferspan.{key}": value for key, value in attributes.items()}))
        self.recorder.writer.flush(10)
        spans = self.exporter.get_finished_spans()
        (kept,) = ((span.attributes or {})[semconv.DETAIL_KEPT] is True for span in spans if span.parent is None)
        assert len(spans) == 1 + kept
        self.exporter.clear()
        return kept


def test_thresholds() -> None:
    """A request is slow if it takes longer than ``slow_after``, or its first token longer than ``slow_first_token``."""
    bench = _Bench(keep="slow", slow_after=2.0)
    assert [bench.request(seconds) for seconds in (1.9, 2.0, 2.1)] == [False, False, True]
    assert [bench.request(seconds, kind="forward") for seconds in (1.9, 2.1)] == [False, True]
    assert not any([bench.request(1.0) for _ in range(200)] + [bench.request(1.99)])  # no quantile decides beside it


def test_running_quantile() -> None:
    """By a share, a request is slow if it takes longer than that share of those before it, once there are enough to tell."""
    bench = _Bench(keep="slow", slow_quantile=0.9)
    assert not any(bench.request(1 + number / 100) for number in range(30))
    assert [bench.request(seconds) for seconds in (1.26, 1.27, 1.4)] == [False, True, True]
    assert [bench.request(9.0, kind="forward") for _ in range(2)] == [False, False]  # those are measured by their own kind


def test_the_default_is_the_slowest_hundredth() -> None:
    """``keep="slow"`` alone keeps what takes longer than 99 % of the requests, and needs a hundred of them first."""
    bench = _Bench(keep="slow")
    assert [bench.request(seconds) for seconds in [*(1.0,) * 99, 5.0, 1.0, 1.1]] == [*(False,) * 101, True]


def test_compilations_and_failures_say_nothing_about_the_usual() -> None:
    """They are judged like all others and leave no mark in the estimate."""
    bench = _Bench(keep="slow", slow_quantile=0.5)
    failure = Failure("ValueError", "", "")
    assert not any(bench.request(9.0, warmup=True) or bench.request(0.1, failure=failure) for _ in range(40))
    assert not any(bench.request(1.0) for _ in range(30))
    assert [bench.request(8.0, warmup=True), bench.request(1.0), bench.request(1.1)] == [True, False, True]


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 0.999])
def test_quantile_of_the_latest(share: float) -> None:
    """The estimate is the exact quantile of the values in the window, and follows when they change."""
    numbers = random.Random(1)
    values = [*(numbers.random() for _ in range(1500)), *(10 + numbers.random() for _ in range(1500))]
    quantile = RunningQuantile(share, window=1000)
    found = []
    for number, value in enumerate(values, 1):
        quantile.add(value)
        if number in (1000, 2100, 3000):
            latest = sorted(values[max(0, number - 1000) : number])
            assert quantile.value is not None
            found.append((sum(one <= quantile.value for one in latest) >= share * 1000, quantile.value in latest))
            assert sum(one < quantile.value for one in latest) < share * 1000
    assert found == [(True, True)] * 3
    assert quantile.value is not None and quantile.value > 10


INFO = [ModuleInfo(f"layers.{number}", "Layer", number, f"layer {number}") for number in range(10)]


def _step(number: int, modules: int, rows: int = 1) -> list[Any]:
    """One step as capture hands it over: its modules, then itself with its statistics still to be made into attributes."""
    at = 10**18 + number * 10**6
    calls: list[Any] = []
    for module in range(modules):
        calls.append((module, -1, INFO[module], at + module, at + module + 1, (), (), None, None))
    every = [LogitStatistics(*(number + row + column / 7 for column in range(len(LogitStatistics._fields)))) for row in range(rows)]
    known: dict[str, Any] = {semconv.INPUT_SHAPES: [f"1x{number}"], semconv.OUTPUT_SHAPES: [f"1x1x{number}"], semconv.STEP_TOKENS: number}
    values = [float(value or 0) for row in [every[0]] * (rows > 1) + every for value in row]
    kept = (number, at, at + 10**6, DECODE, None, (), (), None, 0, known, None)
    late = StepFacts(kept, StepLogits(rows, 0, values, 0, len(values)), running=None, content=False, decode=None)
    step = Step(number, DECODE, at, at + 10**6, None, late)
    statistics = {}
    if rows == 2:
        keys = [
            semconv.OUTPUT_STAT_MEAN,
            semconv.OUTPUT_STAT_STD,
            semconv.OUTPUT_STAT_MIN,
            semconv.OUTPUT_STAT_MAX,
            semconv.OUTPUT_STAT_ABS_MAX,
        ]
        statistics = {
            module: {key: number + place / 7 for place, key in enumerate(keys)} | {"a": 0, "b": 0, "c": number} for module in range(modules)
        }
    device = {module: number + module / 7 for module in statistics}
    return [ModuleBatch(number, DECODE, 0, ModuleCalls(calls), statistics, device), step._replace(size=step.size + step_rows.ROW_BYTES * rows)]


def _long_request(bench: _Bench, steps: int, modules: int, rows: int = 1) -> Any:
    scope = bench.start()
    for first in range(0, steps, 128):
        pairs = [_step(number, modules, rows) for number in range(first, min(first + 128, steps))]
        scope.detail([batch for batch, _ in pairs if batch.calls] + [step for _, step in pairs])
        bench.recorder.writer.flush(600)  # metrics do not wait for the end
    scope.detail([Phase(DECODE, 0, 10**18 + 10**12, None, {})])
    return scope


@pytest.mark.parametrize(("modules", "rows"), [(10, 1), (10, 2), (0, 1), (0, 16)])
def test_memory_is_bounded(modules: int, rows: int) -> None:
    """What a request holds stays within its room however long it runs, and the room within 64 MiB: sizes are not guessed too low."""
    room = HELD_BYTES // 24
    bench = _Bench(keep="errors")
    bench.recorder.flight.capacity = room
    scope = _long_request(bench, 10, modules, rows)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        scopes = [_long_request(bench, steps // rows, modules, rows) for steps in (4000, 8000)]
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    share = taken / sum(room - scope.held.free for scope in scopes)
    print(
        f"{modules} modules a step, {rows} rows: {taken / sum(scope.held.spans for scope in scopes):.0f} bytes a span, {share:.2f} of the guess"
    )
    assert all(scope.held.lost > 0 for scope in scopes)
    assert taken < 2 * room * 4 / 3 and HELD_BYTES * 4 / 3 <= 64 * 2**20
    for one in (*reversed(scopes), scope):
        one.end(RequestEnd(10**18, None, {}))


def test_the_oldest_goes_first() -> None:
    """What does not fit is the beginning; what is left hangs together, and the request says how much is missing."""
    bench = _Bench(keep="errors")
    bench.recorder.flight.capacity = 100_000
    scope = _long_request(bench, 300, 2)
    scope.end(RequestEnd(2 * 10**18, Failure("ValueError", "", ""), {}, spans_dropped=5))
    assert bench.recorder.writer.flush(10)
    spans = {span.context.span_id: span for span in bench.exporter.get_finished_spans() if span.context}
    (request,) = (span for span in spans.values() if span.parent is None)
    assert {span.parent.span_id for span in spans.values() if span.parent} <= spans.keys()
    assert (request.attributes or {})[semconv.SPANS_DROPPED] == 5 + 300 * 3 + 2 - len(spans)
    steps: list[Any] = sorted((span.attributes or {})[semconv.STEP_INDEX] for span in spans.values() if span.name == "decode_step")
    assert steps == list(range(steps[0], 300)) and 250 < steps[0] < 280


def test_a_full_queue_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Detail that is kept and finds no room on its way out is counted like any other, and the request is there."""
    bench = _Bench(queue=3, keep="errors")
    dropped: list[Any] = []
    monkeypatch.setattr(bench.recorder.metrics, "dropped", lambda *seen: dropped.append(seen))
    _long_request(bench, 8, 2).end(RequestEnd(1, Failure("ValueError", "", ""), {}))
    assert bench.recorder.writer.flush(10)
    assert dropped == [(25, "queue_full")] and [span.name for span in bench.exporter.get_finished_spans()] == ["text_completion org/model"]
