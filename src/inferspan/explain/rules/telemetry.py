"""inferspan itself: recording on the model's threads, and readings of the machine, where they cost more than they should."""

from __future__ import annotations

from collections.abc import Iterator

from inferspan import semconv
from inferspan.text.quantities import seconds_text

from ..cause import LIKELY, SURE, Cause, Part, shown_by
from ..figures import Figures
from ..spans import SeriesLike
from ..tree import MACHINE
from ..wording import percent

__all__ = ["samplers", "telemetry"]

_DEAR = 0.1
"""Share of the time of requests."""
_DEAR_WITH = 0.03
"""The same with settings that record more."""
_LEAST = 0.1
"""Seconds of a process: the first request and the first readings of a process take some, which says nothing about the others."""
_SAMPLERS = 0.03
"""Share of the seconds of the recording."""
_COSTLY = (
    "every_step", "modules", "output_stats", "input_stats", "numerics", "memory", "gradients", "control_flow", "data_flow", "attention",
    "attention_maps", "routing", "top_k_positions", "module_metric", "activation_metric", "profile_steps", "logits",
)  # fmt: skip
_LESS = (("modules", "none"), ("steps", "sampled"))
_OFF = ("none", False, 0, "layers", "last", None, "")


def telemetry(figures: Figures) -> Iterator[Cause]:
    """Time of ours on the threads of the model."""
    # It runs inside of requests, so no more than their time is of this recording.
    seconds = sum(figures.metrics.counted(series, figures.total) for series in figures.metrics.series(semconv.M_OVERHEAD))
    if figures.total <= 0 or seconds < _LEAST * _processes(figures):
        return
    on = [
        name for name in _COSTLY
        if name in figures.settings and figures.settings[name][0] not in _OFF and figures.settings[name][1] != "default"
    ]  # fmt: skip
    # What observers do inside of the model is not in this figure, so with settings that make them do more it is a lower bound.
    if seconds < (_DEAR_WITH if on else _DEAR) * figures.total:
        return
    less = [f'{name}="{value}"' for name, value in _LESS if figures.settings.get(name, (None, ""))[0] != value]
    if on:
        advice = "Turn these settings off, or look at fewer modules."
    elif less:
        advice = "Passes are short against what is recorded of them: record modules of no step, or steps that are sampled."
    else:
        advice = "Requests are short against what is recorded of them: put more rows into one, or leave this model out."
    shown = ", ".join(f"{name}={figures.settings[name][0]}" for name in on)
    yield Cause(
        rule="telemetry",
        title=f"recording takes {'at least ' if on else ''}{percent(seconds / figures.total)} of the time"
        + (f", with {shown}" if shown else ""),
        place=MACHINE,
        seconds=seconds,
        gain=seconds,
        sure=SURE,
        figures={"overhead_seconds": seconds, "settings": on or None},
        spans=shown_by(request.span for request in figures.requests),
        advice=advice,
        setting="; ".join(f"{name}={_default(name)}" for name in on) if on else ", ".join(less) or None,
    )  # fmt: skip


def _processes(figures: Figures) -> int:
    return len({request.span.resource for request in figures.requests})


_DEFAULTS = {"modules": '"layers"', "top_k_positions": '"last"', "profile_steps": "0"}
_PATTERNS = ("numerics", "memory", "gradients", "control_flow", "data_flow", "attention")


def _default(name: str) -> str:
    return _DEFAULTS.get(name, '"none"' if name in _PATTERNS else "False")


def _before_first_point(figures: Figures, series: SeriesLike) -> float:
    """Seconds from the first request of the process of a series to its first point; one thread takes readings, one after the other."""
    starts = [request.span.start_ns for request in figures.requests if request.span.resource == series.resource]
    return (series.points[0][0] - min(starts, default=0)) / 1e9 if series.points else 0.0


def samplers(figures: Figures) -> Iterator[Cause]:
    """Readings of the machine, on a thread that competes with the model for the interpreter."""
    found = [
        (str(series.attributes.get(semconv.SAMPLER, "")), cost)
        for series in figures.metrics.series(semconv.M_SAMPLING_TIME)
        if (cost := figures.metrics.counted(series, _before_first_point(figures, series)))
    ]
    seconds = sum(cost for _, cost in found)
    if figures.wall <= 0 or seconds < max(_LEAST * _processes(figures), _SAMPLERS * figures.wall):
        return
    found.sort(key=lambda one: -one[1])
    interval = figures.settings.get("sampler_interval", (None, ""))[0]
    intervals = ("gpu_interval", "host_interval", "sampler_interval")
    short = [name for name in intervals if figures.settings.get(name, (None, "default"))[1] != "default"]
    yield Cause(
        rule="samplers",
        title=f"reading the machine takes {seconds_text(seconds)}, {percent(seconds / figures.wall)} of the recording,"
        f" most of it {found[0][0] or 'one sampler'}",
        place=MACHINE,
        seconds=min(seconds, figures.total),
        gain=min(seconds, figures.total),
        basis="at most",
        sure=LIKELY,
        figures={"sampling_seconds": seconds, "share": seconds / figures.wall, "sampler_interval": interval},
        spans=shown_by(request.span for request in figures.requests),
        parts=[Part(name, cost) for name, cost in found],
        advice="Read less often, or leave out readings that take long.",
        setting=", ".join(f"{name}=5.0" for name in short) or "sampler_interval=30.0",
    )
