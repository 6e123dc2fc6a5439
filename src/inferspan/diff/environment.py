"""Two recordings -> in which facts of the machine, the versions, the model and the settings they differ.

Facts come from resources, from the record of the system in session files, from the requests and from readings of the GPUs. What one side
does not know is absent there. Facts of the hardware decide whether times can be compared at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from inferspan import semconv
from inferspan.report.figures.system import systems_of
from inferspan.report.metric_series import Series
from inferspan.report.session import Session

__all__ = ["Fact", "environment", "other_hardware"]

_SYSTEM = (
    "torch", "transformers", "cuda", "cudnn", "python", "inferspan", "os", "architecture", "cpu", "cores", "cores_available", "memory",
    "world_size", "host",
)  # fmt: skip
_MODEL = {
    "dtype": semconv.MODEL_DTYPE,
    "attention implementation": semconv.MODEL_ATTENTION,
    "architecture of the model": semconv.MODEL_ARCHITECTURE,
    "revision": semconv.MODEL_REVISION,
    "parameters": semconv.MODEL_PARAMETERS,
    "quantization": semconv.MODEL_QUANTIZATION_METHOD,
    "quantization bits": semconv.MODEL_QUANTIZATION_BITS,
    "compiled": semconv.MODEL_COMPILE_MODE,
    "cache": semconv.MODEL_CACHE,
    "adapters": semconv.ADAPTER,
    "device": semconv.DEVICE,
    "sampling": semconv.DO_SAMPLE,
    "beams": semconv.NUM_BEAMS,
}
_HARDWARE = ("GPU", "cpu", "architecture", "cores_available", "device")
_NOT_SETTINGS = ("session_file", "report_dir", "report", "session_tags")
_CLOCK_STEP = 0.03
"""Share by which clocks must differ to be named: they move with the temperature."""
_MOST_TEXT = 120


class Fact(NamedTuple):
    """A fact that differs; ``None`` where a side does not know it."""

    name: str
    a: str | None
    b: str | None


def environment(a: Session, b: Session) -> list[Fact]:
    """The facts that differ, in the order in which they explain most."""
    known_a, known_b = dict(_facts(a)), dict(_facts(b))
    names = [*known_a, *(name for name in known_b if name not in known_a)]
    found = [Fact(name, known_a.get(name), known_b.get(name)) for name in names if known_a.get(name) != known_b.get(name)]
    return [*found, *_clocks(a, b)]


def other_hardware(facts: list[Fact]) -> list[Fact]:
    """Those of the facts that make times of the two sides incomparable: both sides know them, and they differ."""
    return [fact for fact in facts if fact.name in _HARDWARE and fact.a is not None and fact.b is not None]


def _facts(session: Session) -> Iterator[tuple[str, str]]:
    systems = systems_of(session)
    for name in _SYSTEM:
        yield from _one(name, [system.get(name) for system in systems])
    gpus: list[Mapping[str, Any]] = [gpu for system in systems for gpu in system.get("gpus", ())]
    yield from _one("GPU", [gpu.get("name") or gpu.get("model") for gpu in gpus])
    for name in ("driver", "power_limit"):
        yield from _one(name.replace("_", " "), [gpu.get(name) for gpu in gpus])
    for name, key in _MODEL.items():
        yield from _one(name, [request.span.attributes.get(key) for request in session.requests])
    settings: dict[str, list[Any]] = {}
    for system in systems:
        for row in system.get("settings", ()):
            if row["source"] != "default" and row["name"] not in _NOT_SETTINGS:
                settings.setdefault(row["name"], []).append(row["value"])
    for name, values in sorted(settings.items()):
        yield from _one(f"setting {name}", values)


def _one(name: str, values: list[Any]) -> Iterator[tuple[str, str]]:
    told = sorted({str(value) for value in values if value is not None and value != ""})
    if told:
        text = ", ".join(told)
        yield name, text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 3] + "..."


def _clocks(a: Session, b: Session) -> Iterator[Fact]:
    """Mean clocks by domain where they differ, and throttling that one side alone has."""
    means = [_means(session, semconv.M_CLOCK, semconv.CLOCK_DOMAIN) for session in (a, b)]
    for domain in sorted(means[0].keys() & means[1].keys()):
        one, other = means[0][domain], means[1][domain]
        if abs(one - other) > _CLOCK_STEP * max(one, other):
            yield Fact(f"{domain} clock, mean", f"{one / 1e6:.0f} MHz", f"{other / 1e6:.0f} MHz")
    held = [sorted(_held(session)) for session in (a, b)]
    if held[0] != held[1]:
        yield Fact("clocks held down by", ", ".join(held[0]) or None, ", ".join(held[1]) or None)


def _means(session: Session, metric: str, by: str) -> dict[str, float]:
    sums: dict[str, tuple[float, int]] = {}
    for series in _series(session, metric):
        domain = str(series.attributes.get(by, ""))
        if series.average is not None:
            total, count = sums.get(domain, (0.0, 0))
            sums[domain] = total + series.average * series.count, count + series.count
    return {domain: total / count for domain, (total, count) in sums.items() if count}


def _held(session: Session) -> set[str]:
    return {
        str(series.attributes.get(semconv.THROTTLE_REASON, ""))
        for series in _series(session, semconv.M_THROTTLE_ACTIVE)
        if series.maximum and series.attributes.get(semconv.THROTTLE_REASON) != "idle"
    }


def _series(session: Session, name: str) -> Iterator[Series]:
    return (series for series in session.series if series.name == name)
