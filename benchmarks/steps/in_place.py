"""The time of the wrappers of a decode step, where they run: each wrapper without the method that it wraps.

What a wrapper costs is some ten microseconds of a step of milliseconds, which differ from process to process by more than that. Measured in
place, with the caches as a real step leaves them, it is resolved to a microsecond. In: a workload and rows of the main table. Out: quartiles.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.models import Workload
from benchmarks.ratios import quantile
from benchmarks.rounds import RowResult, problem_of, why_not
from benchmarks.rows import PLAIN, Row

__all__ = ["COLUMNS", "Timings", "lines_of", "time_in_place"]

METHODS = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation")
CRITERIA = "stopping criteria"
STEP = "step"
FIRST = 8
"""Steps of a request before those that count."""
COLUMNS = (
    ("model", "model"),
    ("mode", "mode"),
    ("setting", "setting"),
    ("steps", "steps"),
    ("step", "step, ms"),
    ("prepare", "before a pass, us"),
    ("update", "after a pass, us"),
    ("choose", "after the choice, us"),
    ("sum", "sum without the measurement, us a step"),
)
"""Columns of the table; each cell has the lower quartile, and the median in brackets."""


@dataclass
class Timings(RowResult):
    """Nanoseconds of the wrappers of a setting, by name; of the plain model, the time that measuring takes."""

    values: dict[str, list[int]] = field(default_factory=dict)

    def of(self, name: str, share: float) -> float:
        """A quantile, in microseconds; 0 if that wrapper was never there."""
        values = self.values.get(name)
        return quantile(values, share) / 1e3 if values else 0.0


class _Stopwatch:
    """Times of the steps of one request. A stopping criterion, so called once a step."""

    def __init__(self, kind: Any, last: int, device: Any) -> None:
        import torch

        self._kind, self._last = kind, last
        self._answers = [torch.full((1,), answer, dtype=torch.bool, device=device) for answer in (False, True)]
        self._seen = self._inner = self._before = 0
        self._outer: dict[str, Any] = {}
        self.found: dict[str, list[int]] = {}

    def note(self, name: str, nanoseconds: int) -> None:
        """Keep a time, if the step counts."""
        if self._seen >= FIRST:
            self.found.setdefault(name, []).append(nanoseconds)

    def inner(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The model's own method, whose time is not the wrapper's."""

        @functools.wraps(method)
        def timed(model: Any, *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter_ns()
            result = method(model, *args, **kwargs)
            self._inner += time.perf_counter_ns() - began
            return result

        return timed

    def _around(self, name: str, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrapper)
        def timed(model: Any, *args: Any, **kwargs: Any) -> Any:
            self._inner = 0
            began = time.perf_counter_ns()
            result = wrapper(model, *args, **kwargs)
            self.note(name, time.perf_counter_ns() - began - self._inner)
            return result

        return timed

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        now = time.perf_counter_ns()
        self._seen += 1
        if self._seen == FIRST - 1:
            # By now everything that is put on the class for a request is there.
            self._outer = {name: vars(self._kind)[name] for name in METHODS}
            for name, wrapper in self._outer.items():
                setattr(self._kind, name, self._around(name, wrapper))
        elif self._seen > FIRST:
            self.note(STEP, now - self._before)
        ends = self._seen >= self._last
        if ends:
            self.restore()
        self._before = time.perf_counter_ns()
        return self._answers[ends]

    def restore(self) -> None:
        """Take the stopwatch off the wrappers."""
        for name, wrapper in self._outer.items():
            setattr(self._kind, name, wrapper)
        self._outer = {}


@contextmanager
def _watched(kind: Any, stopwatch: _Stopwatch) -> Iterator[None]:
    """The model's methods, and what reports a choice, are timed; afterwards all is as it was."""
    from unittest import mock

    from inferspan.capture.generate.call import GenerateCall

    choose = GenerateCall.choose

    def timed(call: Any, loop: Any, input_ids: Any, done: Any) -> None:
        began = time.perf_counter_ns()
        choose(call, loop, input_ids, done)
        stopwatch.note(CRITERIA, time.perf_counter_ns() - began)

    own = {name: vars(kind).get(name) for name in METHODS}
    try:
        for name in METHODS:
            setattr(kind, name, stopwatch.inner(getattr(kind, name)))
        with mock.patch.object(GenerateCall, "choose", timed):
            yield
    finally:
        for name, method in own.items():
            if method is None:
                delattr(kind, name)
            else:
                setattr(kind, name, method)


def time_in_place(
    work: Workload,
    rows: Sequence[Row],
    *,
    requests: int | None = None,
    seconds: float = math.inf,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Timings]:
    """Time the wrappers in requests of each row, in turn with requests of the plain model.

    Args:
        work: what to run, with a batch of one.
        rows: settings to attach.
        requests: of each row; without, ``seconds`` end it.
        seconds: time for all of it.
        say: receives the progress.
        clock: seconds; monotonic.

    Returns:
        The plain model first, then the rows; a row that failed has its reason.
    """
    from opentelemetry.sdk.trace import TracerProvider

    deadline = clock() + seconds
    work = replace(work, providers={"tracer_provider": TracerProvider(shutdown_on_exit=False)})
    kind, device = type(work.model), next(work.model.parameters()).device
    found = [Timings(PLAIN), *(Timings(row, problem=why_not(work, row)) for row in rows)]
    for _ in range(3 if work.compiled else 1):
        work.request()
    made = -1
    while (requests is None or made < requests) and clock() < deadline:
        for one in found:
            if one.problem is not None:
                continue
            stopwatch = _Stopwatch(kind, work.tokens, device)
            try:
                with _watched(kind, stopwatch):
                    undo = one.row.attach(work)
                    try:
                        work.request(stopping_criteria=[stopwatch])
                    finally:
                        stopwatch.restore()
                        undo()
            except Exception as error:
                one.fail(problem_of(error))
            # The first request of each warms up.
            for name, values in stopwatch.found.items() if made >= 0 else ():
                one.values.setdefault(name, []).extend(values)
        made += 1
        say(f"{made} requests of each setting")
    return found


def _name_of(one: Timings) -> str:
    return "plain: what the measurement takes" if one.row is PLAIN else one.row.name


def lines_of(work: Workload, found: Sequence[Timings]) -> list[dict[str, Any]]:
    """Lines of the table, the plain model first."""
    names = {"prepare": METHODS[0], "update": METHODS[1], "choose": CRITERIA}

    def cell(one: Timings, name: str, unit: float = 1.0) -> str:
        return f"{one.of(name, 0.25) / unit:.1f} ({one.of(name, 0.5) / unit:.1f})" if one.values.get(name) else ""

    lines = []
    for one in found:
        sums = [sum(part.of(name, share) for name in names.values()) for part in (one, found[0]) for share in (0.25, 0.5)]
        line = {"model": work.name, "mode": work.mode, "setting": _name_of(one), "steps": len(one.values.get(STEP, [])), "step": cell(one, STEP, 1e3)}
        line |= {key: cell(one, name) for key, name in names.items()}
        line["sum"] = "" if one is found[0] else one.problem or f"{sums[0] - sums[2]:.1f} ({sums[1] - sums[3]:.1f})"
        line["failed"] = one.problem is not None
        lines.append(line)
    return lines
