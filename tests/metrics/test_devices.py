"""Readings as observable instruments: names, kinds, units and values as a metric reader sees them."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from inferspan import guard, semconv
from inferspan.metrics.devices import DeviceMetrics
from inferspan.records import Sample

GPU = {"hw.id": "GPU-a", "inferspan.device.id": "cuda:0"}


class Source:
    """Hands out what a test put in, and counts how often it was asked."""

    def __init__(self, *samples: Sample) -> None:
        self.samples = samples
        self.reads = 0

    def __call__(self) -> Sequence[Sample]:
        self.reads += 1
        return self.samples


class Callbacks:
    """A meter that keeps the callbacks of its instruments, by name, in the order in which they were made."""

    def __init__(self) -> None:
        self.asked: dict[str, Callable[..., Any]] = {}

    def create(self, name: str, *, callbacks: list[Callable[..., Any]], **_: Any) -> None:
        (self.asked[name],) = callbacks

    create_observable_gauge = create_observable_counter = create_observable_up_down_counter = create


def collected(reader: InMemoryMetricReader) -> dict[str, tuple[Any, ...]]:
    """Kind, unit and points of each metric that has any."""
    data = reader.get_metrics_data()
    found = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            assert (scope.scope.name, scope.scope.version, scope.schema_url) == ("inferspan", "1.2", semconv.CORE_SCHEMA_URL)
            for metric in scope.metrics:
                kind = type(metric.data).__name__ + ("" if not hasattr(metric.data, "is_monotonic") else f" {metric.data.is_monotonic}")
                points = [
                    (dict(point.attributes or {}), point.value) for point in metric.data.data_points if isinstance(point, NumberDataPoint)
                ]
                found[metric.name] = (kind, metric.unit, metric.description, points)
    return found


@pytest.fixture
def reader() -> InMemoryMetricReader:
    """A metric reader that a test collects with."""
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader: InMemoryMetricReader) -> MeterProvider:
    """A meter provider of the host's."""
    return MeterProvider([reader], shutdown_on_exit=False)


def test_kinds_and_values(reader: InMemoryMetricReader, provider: MeterProvider) -> None:
    """Samples become points of the table's kind and unit: whole numbers for bytes, counts and states, else floating point."""
    source = Source(
        Sample("hw.gpu.utilization", 1, {**GPU, "hw.gpu.task": "general"}),
        Sample("hw.gpu.utilization", 0.5, {**GPU, "hw.gpu.task": "decoder"}),
        Sample("hw.gpu.memory.usage", 858587136.0, GPU),
        Sample("hw.gpu.io", 4096.0, {**GPU, "network.io.direction": "receive"}),
        Sample("hw.energy", 12.5, {**GPU, "hw.type": "gpu"}),
        Sample("hw.errors", 3.0, {**GPU, "hw.type": "gpu", "error.type": "corrected"}),
        Sample("hw.status", 1.0, {**GPU, "hw.type": "gpu", "hw.state": "ok"}),
        Sample("inferspan.torch.memory.peak.allocated", 7.0, GPU),
        Sample("process.uptime", 3, {}),
    )
    DeviceMetrics(provider, source, version="1.2")
    found = collected(reader)
    briefs = {name: semconv.METRICS[name].brief for name in found}
    assert found == {
        "hw.gpu.utilization": (
            "Gauge", "1", briefs["hw.gpu.utilization"],
            [({**GPU, "hw.gpu.task": "general"}, 1.0), ({**GPU, "hw.gpu.task": "decoder"}, 0.5)],
        ),
        "hw.gpu.memory.usage": ("Sum False", "By", briefs["hw.gpu.memory.usage"], [(GPU, 858587136)]),
        "hw.gpu.io": ("Sum True", "By", briefs["hw.gpu.io"], [({**GPU, "network.io.direction": "receive"}, 4096)]),
        "hw.energy": ("Sum True", "J", briefs["hw.energy"], [({**GPU, "hw.type": "gpu"}, 12.5)]),
        "hw.errors": ("Sum True", "{error}", briefs["hw.errors"], [({**GPU, "hw.type": "gpu", "error.type": "corrected"}, 3)]),
        "hw.status": ("Sum False", "1", briefs["hw.status"], [({**GPU, "hw.type": "gpu", "hw.state": "ok"}, 1)]),
        "inferspan.torch.memory.peak.allocated": ("Gauge", "By", briefs["inferspan.torch.memory.peak.allocated"], [(GPU, 7)]),
        "process.uptime": ("Gauge", "s", briefs["process.uptime"], [({}, 3.0)]),
    }  # fmt: skip
    types = {name: {type(value) for _, value in metric[3]} for name, metric in found.items()}
    floats = {"hw.gpu.utilization", "hw.energy", "process.uptime"}
    assert types == {name: {float if name in floats else int} for name in found}


def test_every_device_metric(reader: InMemoryMetricReader, provider: MeterProvider) -> None:
    """Every device metric of the table has an instrument."""
    DeviceMetrics(provider, Source(*(Sample(name, 1, {}) for name in semconv.DEVICE_METRICS)), version="1.2")
    assert set(collected(reader)) == set(semconv.DEVICE_METRICS)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, 2**63, 2**64 - 1])
def test_values_nobody_can_store(reader: InMemoryMetricReader, provider: MeterProvider, value: float) -> None:
    """A value that is not finite, negative or over 63 bits is left out, and the others of the metric are not."""
    DeviceMetrics(
        provider, Source(Sample("hw.gpu.memory.usage", value, {"hw.id": "GPU-b"}), Sample("hw.gpu.memory.usage", 5, GPU)), version="1.2"
    )
    assert collected(reader)["hw.gpu.memory.usage"][3] == [(GPU, 5)]


def test_frost(reader: InMemoryMetricReader, provider: MeterProvider) -> None:
    """A temperature may be below zero."""
    DeviceMetrics(provider, Source(Sample("hw.temperature", -4, GPU)), version="1.2")
    assert collected(reader)["hw.temperature"][3] == [(GPU, -4.0)]


def test_one_read_per_collection(reader: InMemoryMetricReader, provider: MeterProvider) -> None:
    """A collection reads once, however many instruments there are, and the next one reads again."""
    source = Source(Sample("process.uptime", 1, {}))
    DeviceMetrics(provider, source, version="1.2")
    assert collected(reader)["process.uptime"][3] == [({}, 1.0)]
    assert source.reads == 1
    source.samples = (Sample("process.thread.count", 2, {}),)
    assert list(collected(reader)) == ["process.thread.count"]
    assert source.reads == 2


def test_two_providers() -> None:
    """Each provider's collection reads for itself."""
    source = Source(Sample("process.uptime", 1, {}))
    readers = [InMemoryMetricReader(), InMemoryMetricReader()]
    for reader in readers:
        DeviceMetrics(MeterProvider([reader], shutdown_on_exit=False), source, version="1.2")
    assert [list(collected(reader)) for reader in readers] == [["process.uptime"]] * 2
    assert source.reads == 2


def test_slow_collection() -> None:
    """Readings are not handed out for longer than a collection takes."""
    now = [0.0]
    meter = Callbacks()
    source = Source()
    DeviceMetrics(meter, source, clock=lambda: now[0])  # type: ignore[arg-type]
    asked = [*meter.asked.values()]
    asked[0](None)
    asked[1](None)
    assert source.reads == 1
    now[0] += 1.5
    asked[2](None)
    assert source.reads == 2


def test_close_and_reopen(reader: InMemoryMetricReader, provider: MeterProvider) -> None:
    """A closed source is let go and reports nothing; the same instruments report a new one."""
    source = Source(Sample("process.uptime", 1, {}))
    gone = weakref.ref(source)
    metrics = DeviceMetrics(provider, source, version="1.2")
    assert collected(reader)["process.uptime"][3] == [({}, 1.0)]
    metrics.close()
    metrics.close()
    del source
    gc.collect()
    assert (collected(reader), gone()) == ({}, None)
    metrics.reopen(Source(Sample("process.uptime", 2, {})))
    assert collected(reader)["process.uptime"][3] == [({}, 2.0)]


def test_counters_go_on_where_a_new_source_begins_at_zero(reader: InMemoryMetricReader, provider: MeterProvider) -> None:
    """Each series for itself, through several sources; a gauge shows what the source says."""
    other = {**GPU, "hw.id": "GPU-b"}
    metrics = DeviceMetrics(provider, Source(), version="1.2")
    seen = []
    for ours, theirs in ((50.0, 7.0), (60.0, 8.0), (3.0, 9.0), (4.0, 1.0), (1.0, 1.0)):
        samples = Sample("hw.energy", ours, GPU), Sample("hw.energy", theirs, other), Sample("hw.power", ours, GPU)
        metrics.reopen(Source(*samples))
        found = collected(reader)
        seen.append([value for _, value in (*found["hw.energy"][3], *found["hw.power"][3])])
    assert seen == [[50, 7, 50], [60, 8, 60], [63, 9, 3], [64, 10, 4], [65, 10, 1]]


def test_readings_that_another_reader_has_overtaken_are_no_new_beginning() -> None:
    """A reader that still goes through older readings gets the newer value."""
    meter = Callbacks()

    class Overtaken(dict[str, Any]):
        """Attributes that let another collection go first when they are read."""

        def items(self) -> Any:
            source.samples = (Sample("hw.energy", 9.0, GPU),)
            newer.extend(meter.asked["hw.energy"](None))
            return GPU.items()

    newer: list[Any] = []
    source = Source(Sample("hw.energy", 5.0, Overtaken()))
    DeviceMetrics(meter, source)  # type: ignore[arg-type]
    (older,) = meter.asked["hw.energy"](None)
    assert [older.value, *(one.value for one in newer)] == [9, 9]
    assert [one.value for one in meter.asked["hw.energy"](None)] == [9]


@pytest.mark.parametrize("closing", [True, False], ids=["closed", "new source"])
def test_source_that_goes_while_it_is_read(reader: InMemoryMetricReader, provider: MeterProvider, closing: bool) -> None:
    """Readings that come back after another thread has taken their source away harm nothing, and the new source is asked afresh."""
    later = Source(Sample("process.uptime", 2, {}))

    def read() -> Sequence[Sample]:
        if closing:
            metrics.close()
        metrics.reopen(later)
        return [Sample("process.uptime", 1, {}), Sample("process.thread.count", 7, {})]

    metrics = DeviceMetrics(provider, read, version="1.2")
    collected(reader)
    assert [(name, points) for name, (*_, points) in collected(reader).items()] == [("process.uptime", [({}, 2)])]


def test_failing_source(reader: InMemoryMetricReader, provider: MeterProvider, contained: list[guard.Swallowed]) -> None:
    """A source that raises costs one contained error per collection and the readings, never the collection."""

    def fail() -> Sequence[Sample]:
        raise RuntimeError("no readings")

    DeviceMetrics(provider, fail, version="1.2")
    assert collected(reader) == {}
    assert [error.place for error in contained] == ["device_metrics.callback"]
    contained.clear()


def test_broken_meter(contained: list[guard.Swallowed]) -> None:
    """Neither a provider without meters nor a meter without instruments reaches the caller."""

    class Broken:
        """A provider, and a meter, that fail."""

        def get_meter(self, *args: Any, **options: Any) -> Any:
            raise RuntimeError("no meter")

    class Meter:
        """A meter whose instruments cannot be created."""

        def create(self, *args: Any, **options: Any) -> Any:
            raise RuntimeError("no instrument")

        create_observable_gauge = create_observable_counter = create_observable_up_down_counter = create

    DeviceMetrics(Broken(), Source())  # type: ignore[arg-type]
    DeviceMetrics(Meter(), Source())  # type: ignore[arg-type]
    assert {error.place for error in contained} == {"device_metrics.meter", "device_metrics.instrument"}
    contained.clear()


def test_no_sdk() -> None:
    """Without an SDK the instruments are there and do nothing."""
    source = Source()
    DeviceMetrics(NoOpMeterProvider(), source).close()
    assert source.reads == 0
