"""Facts of the hardware and the program that differ, and stages of the program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from inferspan.diff.compare import Comparison, compare
from inferspan.report.session import read_session
from tests.diff.recordings import BEGIN, noise, write

COUNT = 20
CLOCK = {semconv.CLOCK_DOMAIN: "sm"}


def texts(found: Mapping[str, str]) -> list[dict[str, Any]]:
    """Attributes as OTLP has them."""
    return [{"key": key, "value": {"stringValue": value}} for key, value in found.items()]


def gpu(path: Path, *, driver: str = "570.1", name: str = "H200", clock: float = 1.98e9, throttle: str | None = None) -> Path:
    """Add readings of a GPU to a recording."""
    own = {semconv.HW_ID: "GPU-1", semconv.HW_NAME: name, semconv.HW_DRIVER_VERSION: driver}
    readings = [(semconv.M_CLOCK, clock, CLOCK), (semconv.M_THROTTLE_ACTIVE, 1.0, {semconv.THROTTLE_REASON: throttle or "idle"})]
    metrics = []
    for metric, value, more in readings:
        point = {"timeUnixNano": str(BEGIN * 10**9), "asDouble": value, "attributes": texts({**own, **more})}
        metrics.append({"name": metric, "gauge": {"dataPoints": [point]}})
    process = {"attributes": texts({"service.name": "svc", "service.instance.id": f"{path.name} 1"})}
    with path.open("a") as file:
        file.write(json.dumps({"resourceMetrics": [{"resource": process, "scopeMetrics": [{"metrics": metrics}]}]}) + "\n")
    return path


def stage(path: Path, name: str, seconds: list[float]) -> Path:
    """Add runs of a stage of the program to a recording."""
    spans = [
        {
            "traceId": f"{number + 1:032x}", "spanId": f"{number + 1:016x}", "name": name, "startTimeUnixNano": str((BEGIN + number) * 10**9),
            "endTimeUnixNano": str((BEGIN + number) * 10**9 + round(length * 1e9)),
            "attributes": [*texts({semconv.STAGE_NAME: name}), {"key": semconv.STAGE_SELF_TIME, "value": {"doubleValue": length}}],
        }
        for number, length in enumerate(seconds)
    ]  # fmt: skip
    with path.open("a") as file:
        file.write(json.dumps({"resourceSpans": [{"scopeSpans": [{"scope": {"name": semconv.SCOPE}, "spans": spans}]}]}) + "\n")
    return path


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two recordings without a difference but noise."""
    a, b = (write(tmp_path / f"{name}.jsonl", [0.1 * value for value in noise(COUNT, seed)]) for name, seed in (("a", 1), ("b", 2)))
    return a, b


def compared(a: Path, b: Path, gate: float | None = None) -> Comparison:
    """The comparison of two files."""
    return compare(read_session(a), read_session(b), gate=gate)


def test_equal_gpus_are_no_difference(pair: tuple[Path, Path]) -> None:
    """Clocks that differ by a percent move with the temperature."""
    assert compared(gpu(pair[0]), gpu(pair[1], clock=1.97e9)).facts == []


def test_driver_clocks_and_throttling_are_named(pair: tuple[Path, Path]) -> None:
    """They explain times, and a comparison is possible all the same."""
    found = compared(gpu(pair[0]), gpu(pair[1], driver="580.2", clock=1.5e9, throttle="sw_thermal"), 0.5)
    assert [tuple(fact) for fact in found.facts] == [
        ("driver", "570.1", "580.2"), ("sm clock, mean", "1980 MHz", "1500 MHz"), ("clocks held down by", None, "sw_thermal"),
    ]  # fmt: skip
    assert found.verdict == "fine"


def test_another_gpu_cannot_be_judged(pair: tuple[Path, Path]) -> None:
    """Its name is the reason."""
    found = compared(gpu(pair[0]), gpu(pair[1], name="H100"), 0.5)
    assert (found.verdict, found.reasons) == ("undecided", ["recorded on different hardware: GPU H200 and H100"])


def test_stages_of_the_program_are_compared(pair: tuple[Path, Path]) -> None:
    """A slower one is a regression, though the model is as fast as before."""
    a, b = stage(pair[0], "rerank", [0.2 * value for value in noise(COUNT, 5)]), stage(pair[1], "rerank", [0.3 * value for value in noise(COUNT, 6)])
    found = compared(a, b, 0.2)
    assert [diff.title for diff in found.groups] == ["stage rerank", "text_completion tiny, batch 1, 24 input tokens"]
    assert found.verdict == "regression"
    assert [reason.partition(":")[0] for reason in found.reasons] == ["duration of stage rerank"]
