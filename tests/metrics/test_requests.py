"""Requests as metrics: names, units, kinds, buckets, attributes and exemplars in each of the three namings."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from inferspan import guard, semconv
from inferspan.export.ids import ids
from inferspan.metrics.first_request import FirstRequest
from inferspan.metrics.requests import RequestMetrics
from inferspan.records import (
    KIND_BATCH,
    BatchFigures,
    Failure,
    ModelInfo,
    ModuleBatch,
    ModuleCalls,
    ModuleInfo,
    ModuleStage,
    PhaseKey,
    RequestEnd,
    RequestStart,
)
from inferspan.settings import Settings

MODEL = ModelInfo("org/model", "huggingface", "Model")
LABELS = {
    "gen_ai.operation.name": "text_completion",
    "gen_ai.provider.name": "huggingface",
    "gen_ai.request.model": "org/model",
    "gen_ai.response.model": "org/model",
}
END: dict[str, Any] = {
    "input_tokens": 10,
    "output_tokens": 20,
    "time_to_first_token": 0.25,
    "time_per_output_token": 0.01,
    "batch_size": 2,
    "kv_cache_bytes": 4096,
    "overhead_ns": 5_000_000,
}
FAILURE = Failure("ValueError", "", "")
MLP, NORM = ModuleInfo("layers.3.mlp", "MLP", 3, "layer 3 mlp"), ModuleInfo("norm", "RMSNorm", None, "norm")
FIGURES = {f"inferspan.output.stat.{name}": 0.5 for name in ("std", "abs_max", "sparsity")}
BATCH = ModuleBatch(
    1,
    PhaseKey("decode", 1),
    0,
    ModuleCalls(
        [
            (0, -1, MLP, 0, 2_000_000, (), (), None, 0),
            (1, -1, NORM, 2_000_000, 3_000_000, (), (), None, 1),
            (2, -1, NORM, 3_000_000, 5_000_000, (), (), None, None),
        ]
    ),
    {
        0: {"inferspan.output.stat.nan_count": 5, "inferspan.output.stat.inf_count": 0, **FIGURES},
        1: {"inferspan.output.stat.nan_count": 0, "inferspan.output.stat.inf_count": 2},
    },
)
"""Two modules, one of them called twice; only two of the calls have statistics, and each has something to report."""

TOWER = ModuleInfo("vision_tower", "Tower", None, "vision_encode", ModuleStage("vision_encode", "image", "cpu"))
STAGES = ModuleBatch(
    0,
    PhaseKey("prefill", 0),
    0,
    ModuleCalls([(0, -1, MLP, 0, 1_000_000, (), (), None, None), (1, -1, TOWER, 0, 250_000_000, (), (), None, None)]),
    {},
    stages=1,
)
"""A module and a stage, without statistics."""


class _Sink:
    """A meter provider in memory and what it holds: metric name -> (kind, unit, buckets, {labels: value})."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.meter = self.provider.get_meter("test")

    def collect(self) -> dict[str, Any]:
        data = self._reader.get_metrics_data()
        return {
            metric.name: metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def points(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """Labels and sum or value of each point, by metric."""
        return {
            name: [(dict(point.attributes), getattr(point, "sum", getattr(point, "value", None))) for point in metric.data.data_points]
            for name, metric in self.collect().items()
        }


@pytest.fixture
def sink() -> Iterator[_Sink]:
    """Where metrics of the test go."""
    made = _Sink()
    yield made
    made.provider.shutdown()


def _start(kind: str = "generate", *, operation: str | None = "text_completion", nested: bool = False) -> RequestStart:
    return RequestStart(kind, operation, MODEL, 0, nested, {})


def _request(sink: _Sink, settings: Settings, *, span: Any = None, third_party: bool = False, start: Any = None, **end: Any) -> RequestMetrics:
    metrics = RequestMetrics(lambda: sink.meter, settings)
    start = start or _start()
    metrics.started(start)
    metrics.ended(start, RequestEnd(2_000_000_000, attributes={}, **{"failure": None, **END, **end}), span, third_party=third_party)
    return metrics


def _batch(sink: _Sink) -> None:
    """Two steps of a batch."""
    metrics = RequestMetrics(lambda: sink.meter, Settings())
    steps, figures = {"prefill": [0.02], "decode": [0.01]}, BatchFigures([3, 2], [20, 2], 4, 5, 16)
    start, end = _start(KIND_BATCH, operation=None), RequestEnd(9, None, {}, step_seconds=steps, batch=figures)
    metrics.started(start)
    metrics.ended(start, end, None, third_party=False)
    metrics.steps(start, end, None)


SERVER = {
    "gen_ai.server.request.duration": [(LABELS, 2.0)],
    "gen_ai.server.time_to_first_token": [(LABELS, 0.25)],
    "gen_ai.server.time_per_output_token": [(LABELS, 0.01)],
}
MODEL_LABEL = {"gen_ai.request.model": "org/model"}
OWN = {
    "inferspan.generate.active": [(MODEL_LABEL, 0)],
    "inferspan.batch.size": [(MODEL_LABEL, 2)],
    "inferspan.kv_cache.usage": [(MODEL_LABEL, 4096)],
    "inferspan.telemetry.overhead": [({}, 0.005)],
}
TEXT = {**LABELS, "gen_ai.token.modality": "text"}
LATEST = {
    "gen_ai.client.inference.duration": [(LABELS, 2.0)],
    "gen_ai.client.inference.usage.input_tokens": [(TEXT, 10)],
    "gen_ai.client.inference.usage.output_tokens": [(TEXT, 20)],
    "gen_ai.client.inference.operation.input_tokens": [(LABELS, 10)],
    "gen_ai.client.inference.operation.output_tokens": [(LABELS, 20)],
}
LEGACY = {
    "gen_ai.client.operation.duration": [(LABELS, 2.0)],
    "gen_ai.client.token.usage": [({**LABELS, "gen_ai.token.type": "input"}, 10), ({**LABELS, "gen_ai.token.type": "output"}, 20)],
}


@pytest.mark.parametrize(("naming", "client"), [("dup", {**LATEST, **LEGACY}), ("latest", LATEST), ("legacy", LEGACY)])
def test_generate(sink: _Sink, naming: str, client: dict[str, Any]) -> None:
    """A request gives the server family and ours always, and the client family under the names that are asked for."""
    _request(sink, Settings(semconv=naming))
    assert sink.points() == {**SERVER, **OWN, **client}


def test_findings_are_counted_by_kind(sink: _Sink) -> None:
    """Each kind of finding about the output of a request counts once."""
    _request(sink, Settings(), findings=["low", "loop"])
    found = sink.points()["inferspan.health.findings"]
    assert found == [({**MODEL_LABEL, "inferspan.health.kind": kind}, 1) for kind in ("low", "loop")]


def test_steps_that_requests_share(sink: _Sink) -> None:
    """A batch gives its steps, once for each, and the state of its loop; it is no request."""
    _batch(sink)
    assert sink.points() == {
        "inferspan.batch.requests": [(MODEL_LABEL, 5)],
        "inferspan.batch.tokens": [(MODEL_LABEL, 22)],
        "inferspan.batch.waiting": [(MODEL_LABEL, 4)],
        "inferspan.kv_cache.blocks.used": [(MODEL_LABEL, 5)],
        "inferspan.kv_cache.blocks.limit": [(MODEL_LABEL, 16)],
        "inferspan.generate.step.duration": [
            ({"inferspan.phase": "prefill", **MODEL_LABEL}, 0.02),
            ({"inferspan.phase": "decode", **MODEL_LABEL}, 0.01),
        ],
    }


def test_kinds_units_and_buckets(sink: _Sink) -> None:
    """Every instrument has the kind, unit and bucket boundaries of the table."""
    settings = Settings(entropy_metric=True, module_metric=True, activation_metric=True)
    kinds: dict[str, Any] = {"nonfinite": {("logits", "nan"): 2}, "cached_split": {"text": 3}, "findings": ["loop"], "drift": {"entropy": 1.5}}
    kinds |= {"step_rows": 1.5, "drafted_tokens": 8, "accepted_tokens": 5, "time_in_queue": 0.02, "preemptions": 1}
    metrics = _request(sink, settings, streaming=True, chunk_intervals=[0.01], spans_dropped=1, **kinds)
    metrics.steps(_start(), _steps(), None)
    metrics.modules(_start(), BATCH, BATCH.calls.rows(), None)
    metrics.modules(_start(), STAGES, STAGES.calls.rows(), None)
    for kind, operation in (("forward", None), ("forward", "embeddings")):
        _request(sink, Settings(), start=_start(kind, operation=operation))
    _request(sink, Settings(), start=_start("pipeline"), stages=[("denoise", 0.5)])
    RequestMetrics(lambda: sink.meter, settings, FirstRequest(lambda: 0.0, lambda: 1)).started(_start())
    _batch(sink)
    found = sink.collect()
    wanted = {name for name, metric in semconv.METRICS.items() if not metric.instrument.startswith("Observable")}
    # Those of routers, of stages of the program and of the roofline have tests of their own.
    wanted -= {semconv.M_EXPERTS_IMBALANCE, semconv.M_PROGRAM_STAGE_DURATION, semconv.M_PROGRAM_STAGE_MEMORY}
    wanted -= {semconv.M_DEVICE_FLOPS, semconv.M_DEVICE_BYTES, semconv.M_DEVICE_PEAK_SHARE}
    wanted -= {semconv.M_UTILIZATION_FLOPS, semconv.M_UTILIZATION_BANDWIDTH}
    assert set(found) == wanted
    for name, metric in found.items():
        table = semconv.METRICS[name]
        shape = type(metric.data).__name__
        assert (shape, metric.unit) == ({"Counter": "Sum", "UpDownCounter": "Sum"}.get(table.instrument, table.instrument), table.unit)
        if shape == "Sum":
            assert metric.data.is_monotonic == (table.instrument == "Counter"), name
        for point in metric.data.data_points:
            assert table.buckets is None or tuple(point.explicit_bounds) == table.buckets, name
            assert set(point.attributes) <= {*table.attributes, semconv.ERROR_TYPE}, name


def _steps() -> RequestEnd:
    seconds = {"prefill": [0.25], "decode": [0.01, 0.02]}
    return RequestEnd(2_000_000_000, None, {}, step_seconds=seconds, entropies=[1.0, 0.5], top1_probabilities=[0.75, 0.999])


def test_steps(sink: _Sink) -> None:
    """Steps give their durations by phase; entropy and largest probability only where the setting asks for them, and not when nested."""
    for settings, nested in ((Settings(), False), (Settings(entropy_metric=True), True)):
        RequestMetrics(lambda: sink.meter, settings).steps(_start(nested=nested), _steps(), None)
    labels = [{**MODEL_LABEL, "inferspan.phase": phase} for phase in ("prefill", "decode")]
    assert sink.points() == {"inferspan.generate.step.duration": [(labels[0], 0.5), (labels[1], pytest.approx(0.06))]}
    RequestMetrics(lambda: sink.meter, Settings(entropy_metric=True)).steps(_start(), _steps(), None)
    points = sink.points()
    assert points["inferspan.logits.entropy"] == [(MODEL_LABEL, 1.5)]
    assert points["inferspan.logits.top1_probability"] == [(MODEL_LABEL, pytest.approx(1.749))]


@pytest.mark.parametrize(
    ("settings", "end", "expected"),
    [
        (Settings(), {}, False),
        (Settings(), {"step_seconds": {"prefill": [], "decode": []}}, False),
        (Settings(), {"step_seconds": {"decode": [0.1]}}, True),
        (Settings(), {"entropies": [1.0]}, False),
        (Settings(entropy_metric=True), {"entropies": [1.0]}, True),
    ],
)
def test_requests_without_steps(sink: _Sink, settings: Settings, end: dict[str, Any], expected: bool) -> None:
    """Whether a request has anything for the hand-over thread to record follows from its steps and the settings."""
    assert RequestMetrics(lambda: sink.meter, settings).has_steps(RequestEnd(1, None, {}, **end)) is expected


@pytest.mark.parametrize("durations", [False, True])
def test_modules(sink: _Sink, durations: bool) -> None:
    """Module calls count their non-finite outputs by model, module, type and layer, and have durations where the setting asks."""
    metrics = RequestMetrics(lambda: sink.meter, Settings(module_metric=durations))
    assert metrics.has_modules(BATCH)
    assert metrics.has_modules(BATCH._replace(statistics={})) is durations
    metrics.modules(_start(), BATCH, BATCH.calls.rows(), None)
    common = {"inferspan.model.name": "org/model"}
    mlp = {**common, "inferspan.module.name": "layers.3.mlp", "inferspan.module.type": "MLP", "inferspan.module.layer.index": 3}
    norm = {**common, "inferspan.module.name": "norm", "inferspan.module.type": "RMSNorm"}
    times = [({**mlp, "inferspan.phase": "decode"}, 0.002), ({**norm, "inferspan.phase": "decode"}, 0.003)]
    assert sink.points() == {
        "inferspan.numerics.nonfinite": [({**mlp, "kind": "nan"}, 5), ({**norm, "kind": "inf"}, 2)],
        **({"inferspan.module.duration": times} if durations else {}),
    }


def test_stages_have_durations(sink: _Sink) -> None:
    """Each call of a stage is measured by model and stage, whatever the settings say of modules; those have no part in it."""
    metrics = RequestMetrics(lambda: sink.meter, Settings())
    assert metrics.has_modules(STAGES)
    metrics.modules(_start(), STAGES, STAGES.calls.rows(), None)
    assert sink.points() == {"inferspan.stage.duration": [({**MODEL_LABEL, "inferspan.stage.name": "vision_encode"}, 0.25)]}


def test_non_finite_logits(sink: _Sink) -> None:
    """Non-finite logits are counted under their place, which has no type and no layer."""
    _request(sink, Settings(), nonfinite={("logits", "nan"): 2})
    labels = {"inferspan.model.name": "org/model", "inferspan.module.name": "logits", "kind": "nan"}
    assert sink.points()["inferspan.numerics.nonfinite"] == [(labels, 2)]


def test_tokens_by_modality(sink: _Sink) -> None:
    """Counters are split where the request is, histograms never; what a cache gave is counted beside the input."""
    split: dict[str, Any] = {"input_split": {"text": 6, "image": 4}, "cached_split": {"image": 4}, "output_modality": "unknown"}
    _request(sink, Settings(semconv="latest"), **split)
    points = sink.points()

    def of(modality: str, value: int) -> tuple[dict[str, Any], int]:
        return ({**LABELS, "gen_ai.token.modality": modality}, value)

    assert points["gen_ai.client.inference.usage.input_tokens"] == [of("text", 6), of("image", 4)]
    assert points["gen_ai.client.inference.usage.cache_read.input_tokens"] == [of("image", 4)]
    assert points["gen_ai.client.inference.usage.output_tokens"] == [of("unknown", 20)]
    assert points["gen_ai.client.inference.operation.input_tokens"] == [(LABELS, 10)]


FAILING = {**LABELS, "error.type": "ValueError"}
UNKNOWN = {**LABELS, "gen_ai.token.modality": "unknown"}
FAILED_DURATIONS = {
    "gen_ai.server.request.duration": [(FAILING, 2.0)],
    "gen_ai.client.inference.duration": [(FAILING, 2.0)],
    "gen_ai.client.operation.duration": [(FAILING, 2.0)],
}
FAILED: dict[str, Any] = {"failure": FAILURE, "time_to_first_token": None, "time_per_output_token": None}


@pytest.mark.parametrize(
    ("known", "read", "written"),
    [
        ({"output_tokens": None}, (TEXT, 10), (UNKNOWN, 0)),
        ({"output_tokens": 3}, (TEXT, 10), (TEXT, 3)),
        ({"input_tokens": None, "output_tokens": None}, (UNKNOWN, 0), (UNKNOWN, 0)),
    ],
)
def test_failed_request(sink: _Sink, known: dict[str, Any], read: Any, written: Any) -> None:
    """A failed request adds what is known of its tokens to the counters, else 0 of unknown kind; no histogram has its tokens or latencies."""
    _request(sink, Settings(), **{**FAILED, **known})
    usage = {
        "gen_ai.client.inference.usage.input_tokens": [read],
        "gen_ai.client.inference.usage.output_tokens": [written],
    }
    assert sink.points() == {**OWN, **FAILED_DURATIONS, **usage}


def test_failed_embedding(sink: _Sink) -> None:
    """A failed embedding has its durations, under its error, and no tokens in a histogram."""
    _request(sink, Settings(), start=_start("forward", operation="embeddings"), failure=FAILURE, output_tokens=None)
    points = sink.points()
    failing = {**FAILING, "gen_ai.operation.name": "embeddings"}
    assert points["gen_ai.client.embeddings.duration"] == [(failing, 2.0)]
    assert points["gen_ai.client.operation.duration"] == [(failing, 2.0)]
    assert {"gen_ai.client.embeddings.operation.input_tokens", "gen_ai.client.token.usage"} & points.keys() == set()


def test_streaming(sink: _Sink) -> None:
    """Only a streaming request has chunk latencies: the first, and one for each that follows."""
    _request(sink, Settings(), streaming=True, chunk_intervals=[0.01, 0.02])
    points = sink.points()
    for family in ("gen_ai.client.inference", "gen_ai.client.operation"):
        assert points[f"{family}.time_to_first_chunk"] == [(LABELS, 0.25)]
        assert points[f"{family}.time_per_output_chunk"] == [(LABELS, pytest.approx(0.03))]


def test_nested_and_foreign(sink: _Sink) -> None:
    """A nested request is in no total; inside another library's call the client family is that library's."""
    _request(sink, Settings(), start=_start(nested=True))
    assert set(sink.points()) == {"inferspan.telemetry.overhead"}
    _request(sink, Settings(), third_party=True)
    assert set(sink.points()) == {*SERVER, *OWN}


@pytest.mark.parametrize("naming", ["dup", "latest", "legacy"])
@pytest.mark.parametrize("third_party", [False, True])
def test_embeddings(sink: _Sink, naming: str, third_party: bool) -> None:
    """A forward pass that embeds has its duration and input tokens under the names that are asked for, unless another library has them."""
    _request(sink, Settings(semconv=naming), start=_start("forward", operation="embeddings"), output_tokens=None, third_party=third_party)
    labels = {**LABELS, "gen_ai.operation.name": "embeddings"}
    latest = {"gen_ai.client.embeddings.duration": [(labels, 2.0)], "gen_ai.client.embeddings.operation.input_tokens": [(labels, 10)]}
    legacy = {
        "gen_ai.client.operation.duration": [(labels, 2.0)],
        "gen_ai.client.token.usage": [({**labels, "gen_ai.token.type": "input"}, 10)],
    }
    client = {} if third_party else {"dup": {**latest, **legacy}, "latest": latest, "legacy": legacy}[naming]
    own = {
        "inferspan.forward.duration": [({"inferspan.model.name": "org/model"}, 2.0)],
        "inferspan.telemetry.overhead": [({}, 0.005)],
    }
    assert sink.points() == {**own, **client}


def test_exemplars_and_the_global_generator(sink: _Sink) -> None:
    """Histograms point at the request's trace, sums at none, and nothing draws from the global random generator."""
    tracer = TracerProvider(id_generator=ids(), shutdown_on_exit=False).get_tracer("test")
    random.seed(7)
    before = random.getstate()
    with tracer.start_as_current_span("caller's own"):
        span = tracer.start_span("request")
        settings = Settings(entropy_metric=True, module_metric=True)
        metrics = _request(sink, settings, span=span, spans_dropped=2, nonfinite={("logits", "inf"): 1})
        metrics.steps(_start(), _steps(), span)
        metrics.modules(_start(), BATCH, BATCH.calls.rows(), span)
        found = sink.collect()
    assert random.getstate() == before
    context = span.get_span_context()
    for name, metric in found.items():
        exemplars = [exemplar for point in metric.data.data_points for exemplar in point.exemplars]
        seen = {(exemplar.trace_id, exemplar.span_id) for exemplar in exemplars}
        histogram = type(metric.data).__name__ == "Histogram"
        assert seen == ({(context.trace_id, context.span_id)} if histogram else set()), name


def test_series_do_not_grow(sink: _Sink) -> None:
    """A thousand requests have as many series as one."""
    _request(sink, Settings())
    before = {name: len(points) for name, points in sink.points().items()}
    for number in range(50):
        _request(sink, Settings(), input_tokens=number, output_tokens=number, batch_size=number + 1)
    assert {name: len(points) for name, points in sink.points().items()} == before


def test_broken_meter_recovers(sink: _Sink, contained: list[guard.Swallowed]) -> None:
    """A meter that fails costs the metrics of that time, not the totals, and is asked again."""
    broken = [True]

    def meter() -> Any:
        if broken[0]:
            raise OSError("no meter")
        return sink.meter

    metrics = RequestMetrics(meter, Settings())
    end = RequestEnd(2_000_000_000, None, {}, **END)
    for state in (True, False):
        broken[0] = state
        metrics.started(_start())
        metrics.ended(_start(), end, None, third_party=False)
    assert metrics.summary.totals().requests == 2
    assert sink.points()["gen_ai.server.request.duration"] == [(LABELS, 2.0)]
    assert {(error.place, error.kind) for error in contained} == {("request metrics", "OSError")}
    contained.clear()
