"""Settings of sampling through ``instrument()``, in programs with a fake NVML: intervals, choice of readings, presets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

import inferspan
from inferspan import semconv
from inferspan.samplers import process
from inferspan.settings import Settings

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys, time
import torch
import inferspan
from tests.samplers.fake_nvml import FakeNvml, hopper_card
library = sys.modules["pynvml"] = FakeNvml(hopper_card())
settings, wanted = json.loads(sys.argv[1]), sys.argv[2]
model = torch.nn.Linear(2, 2)
handle = inferspan.instrument(model, all_gpus=True, allocator=False, **settings)
model(torch.ones(1, 2))
until = time.monotonic() + 60
while library.calls[wanted] < 8 and time.monotonic() < until:
    time.sleep(0.02)
inferspan.flush()
handle.uninstrument()
print(json.dumps(library.calls))
"""


def run(folder: Path, wanted: str, **settings: Any) -> tuple[dict[str, int], dict[str, list[dict[str, Any]]]]:
    """Calls of NVML until one was made eight times, and the points of the session file by metric."""
    path = folder / "session.jsonl"
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "INFERSPAN_"))}
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps({"session_file": str(path), **settings}), wanted],
        env=environ, cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    points: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text().splitlines():
        for resource in json.loads(line).get("resourceMetrics", ()):
            for scope in resource["scopeMetrics"]:
                for metric in scope["metrics"]:
                    data = metric.get("gauge") or metric.get("sum") or {"dataPoints": []}
                    points.setdefault(metric["name"], []).extend(data["dataPoints"])
    return json.loads(done.stdout.splitlines()[-1]), points


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, int], dict[str, list[dict[str, Any]]]]:
    """A run that reads the GPU and the host each 0.1 s."""
    folder = tmp_path_factory.mktemp("fast")
    return run(folder, "nvmlDeviceGetPowerUsage", gpu_interval=0.1, host_interval=0.1, sampler_interval=3600.0)


def test_dear_readings_keep_the_slow_beat(fast: Any) -> None:
    """Of rounds at 0.1 s one is whole: eight readings of power, and fewer of the energy, which requests read too."""
    calls, _ = fast
    assert calls["nvmlDeviceGetPowerUsage"] >= 8
    assert calls["nvmlDeviceGetTotalEnergyConsumption"] < 8


def test_each_reading_has_its_own_time(fast: Any) -> None:
    """The session file has the readings with the times at which they were taken."""
    _, points = fast
    assert len({point["timeUnixNano"] for point in points[semconv.M_POWER]}) >= 7


def test_readings_of_the_host_have_their_own_times(fast: Any) -> None:
    """The host's interval gives points of its own."""
    _, points = fast
    assert len({point["timeUnixNano"] for point in points[semconv.M_SYSTEM_MEMORY_USAGE]}) >= 3


def test_the_cost_of_reading_is_exported(fast: Any) -> None:
    """Seconds by sampler, above zero."""
    _, points = fast
    found = {point["attributes"][0]["value"]["stringValue"]: point["asDouble"] for point in points[semconv.M_SAMPLING_TIME]}
    assert set(found) == {"nvml", "host"}
    assert min(found.values()) > 0


def test_production_reads_memory_and_utilisation_only(tmp_path: Path) -> None:
    """What the preset leaves out is not asked of NVML, and not in the file."""
    calls, points = run(tmp_path, "nvmlDeviceGetUtilizationRates", preset="production", gpu_interval=0.1)
    assert {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption", "fields"}.isdisjoint(calls)
    assert {semconv.M_POWER, semconv.M_TEMPERATURE, semconv.M_SYSTEM_CPU_TIME}.isdisjoint(points)
    assert {semconv.M_GPU_UTILIZATION, semconv.M_GPU_MEMORY_USAGE, semconv.M_SYSTEM_MEMORY_USAGE} <= set(points)


@pytest.mark.parametrize("name", ["gpu_metrics", "host_metrics"])
def test_a_misspelt_reading_is_named(name: str) -> None:
    """The error has the setting, the value and what is allowed."""
    with pytest.raises(inferspan.SettingsError, match=rf"{name}.*cannot be 'memry'.*use one or more of .*memory"):
        Settings.resolve({name: "memry"}, environ={})


@pytest.mark.parametrize("name", ["gpu_interval", "host_interval", "display_interval"])
@pytest.mark.parametrize("value", [0.09, 3600.1, "soon"])
def test_intervals_out_of_range_are_refused(name: str, value: Any) -> None:
    """From 0.1 s to an hour."""
    with pytest.raises(inferspan.SettingsError, match=name):
        Settings.resolve({name: value}, environ={})


@pytest.mark.parametrize("preset", ["development", "production"])
def test_presets_have_the_tag_mode(preset: str) -> None:
    """Tags of the program stand beside it."""
    settings = Settings.resolve(preset=preset, environ={}, overrides={"session_tags": {"team": "a"}})
    assert dict(settings.session_tags or ()) == {"mode": preset, "team": "a"}


def test_single_settings_override_a_preset() -> None:
    """An argument is stronger."""
    settings = Settings.resolve(preset="development", environ={}, overrides={"live": False, "gpu_interval": 2.0})
    assert settings.live is False
    assert settings.gpu_interval == 2.0


def test_a_later_provider_counts_from_its_own_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """What readings took in the process before is no part of its sum."""
    monkeypatch.setattr(process.samplers, "spent", {"host": 7.0})
    reader, model = InMemoryMetricReader(), torch.nn.Linear(2, 2)
    meters = MeterProvider([reader], shutdown_on_exit=False)
    handle = inferspan.instrument(model, meter_provider=meters, tracer_provider=TracerProvider(), nvml=False, host=False, allocator=False)
    model(torch.ones(1, 2))

    def sums() -> list[float]:
        data = reader.get_metrics_data()
        return [
            point.value  # type: ignore[union-attr]  # of a counter
            for resource in (data.resource_metrics if data else ()) for scope in resource.scope_metrics for metric in scope.metrics
            if metric.name == semconv.M_SAMPLING_TIME for point in metric.data.data_points
        ]  # fmt: skip

    assert sums() == []
    process.samplers.spent["host"] += 0.5
    assert sums() == [0.5]
    handle.uninstrument()
