"""Paired measurements: a round runs every row once, each right beside a plain request, in an order that rotates.

In: a workload, its rows and the address of a receiver. Out: for each row the times of its pairs and what arrived. The plain request stands before and
behind its partner in turn, so that what drifts cancels. A row whose spans do not all arrive fails; one that raises says what it raised.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import machine
from benchmarks.models import Workload
from benchmarks.receiver import Arrived, count
from benchmarks.rows import PLAIN, Row

__all__ = ["Measured", "RowResult", "Run", "measure", "note", "problem_of", "settle", "times", "why_not"]

MINIMUM = 3
"""Rounds that are made even if the time is over."""
SELDOM = 3
"""Where some rows have targets, the others are measured in every third round."""


def note(text: str) -> None:
    """Say on standard error what is being done."""
    print(f"[bench] {text}", file=sys.stderr, flush=True)


@dataclass
class Run:
    """One request: its seconds, those until everything had arrived, and what arrived."""

    alone: float
    exported: float
    arrived: Arrived
    peak: tuple[int | None, int | None]


@dataclass
class RowResult:
    """A row, and why it was not measured or what is wrong with what was; subclasses have the measurements."""

    row: Row
    problem: str | None = field(default=None, kw_only=True)
    failed: bool = field(default=False, kw_only=True)
    """Whether the problem came up in a request; else the row cannot be measured here."""

    def fail(self, problem: str) -> None:
        """A request has shown a problem: no more of this row."""
        self.problem, self.failed = problem, True


@dataclass
class Measured(RowResult):
    """A row's runs and the plain ones beside them."""

    runs: list[Run] = field(default_factory=list)
    plain: list[Run] = field(default_factory=list)


SETTLE = 0.1
SETTLE_CUDA = 0.3
"""Seconds between attaching and the request; NVML is asked what a card can tell, which takes its time."""


def settle(work: Workload) -> None:
    """Wait after attaching: the first reading of the machine, on its own thread, belongs to ``instrument()``, not to a request."""
    time.sleep(SETTLE_CUDA if work.cuda else SETTLE)


def once(work: Workload, row: Row, address: str, *, piped: bool) -> Run:
    """Run one request under one row; the time begins when everything is attached, and ends before anything is taken off."""
    import inferspan

    request = work.piped if piped and work.piped is not None else work.request
    # What the last run left behind is not this one's to collect.
    gc.collect()
    undo = row.attach(work)
    if row is not PLAIN:
        settle(work)
    try:
        machine.reset_peak()
        wall, begun = time.monotonic(), time.perf_counter()
        request()
        alone = time.perf_counter() - begun
        peak = machine.peak()
    finally:
        if row.key == "profiler":
            undo()
            undo = _done
        closed = time.monotonic() - wall
        if row is not PLAIN:
            inferspan.flush(60)
        undo()
    if row is PLAIN:
        return Run(alone, alone, Arrived(), peak)
    # Metrics may come later: what counts is when the last span was there.
    inferspan.flush(60)
    arrived = count(address)
    exported = arrived.last - wall if arrived.last is not None else closed
    return Run(alone, max(alone, exported), arrived, peak)


def _done() -> None:
    """Undo of what is undone."""


def measure(
    work: Workload, rows: Sequence[Row], address: str, *, rounds: int, seconds: float, clock: Callable[[], float] = time.monotonic
) -> list[Measured]:
    """Measure rows in ``rounds`` rounds, fewer if ``seconds`` are over before.

    Args:
        work: what to run.
        rows: what to compare with the plain model.
        address: the receiver's.
        rounds: pairs of every row.
        seconds: time for all of it, warm-up included.
        clock: seconds; monotonic.
    """
    deadline = clock() + seconds
    found = [Measured(row, problem=why_not(work, row)) for row in rows]
    pending = [one for one in found if one.problem is None]
    title = f"{work.name} {work.mode}"
    for _ in range(3 if work.compiled else 1):
        once(work, PLAIN, address, piped=False)
    for one in pending:
        note(f"{title}: warming up {one.row.name}")
        _guarded(work, one, address, keep=False, first_plain=True)
    for turn in range(rounds):
        pending = [one for one in pending if one.problem is None]
        if not pending or (turn >= MINIMUM and clock() > deadline):
            break
        for one in pending[turn % len(pending) :] + pending[: turn % len(pending)]:
            if turn % SELDOM and not _is_often(work, one.row):
                continue
            _guarded(work, one, address, keep=True, first_plain=turn % 2 == 0)
        note(f"{title}: round {turn + 1} of {rounds}, {max(0, deadline - clock()):.0f} s left")
    return found


def _is_often(work: Workload, row: Row) -> bool:
    """Whether a row has a target, or shows how fine the measurement is: such rows get most of the time."""
    return row.key == "a/a" or row.key in work.targets or not work.targets


def why_not(work: Workload, row: Row) -> str | None:
    """Why a row cannot be measured here, if so."""
    if work.compiled and not row.compiled:
        return "not on a compiled model: hooks inside would break its graphs"
    return row.missing(work)


def problem_of(error: Exception) -> str:
    """One short line about what was raised."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]


def _guarded(work: Workload, one: Measured, address: str, *, keep: bool, first_plain: bool) -> None:
    """Run one pair; an exception ends this row, not the others."""
    row = one.row
    try:
        plain = once(work, PLAIN, address, piped=row.piped) if first_plain else None
        run = once(work, row, address, piped=row.piped)
        plain = plain or once(work, PLAIN, address, piped=row.piped)
    except Exception as error:  # a peer, or a setting, that cannot run here
        one.fail(problem_of(error))
        note(f"FAILED {work.name} {work.mode}, {row.name}: {one.problem}")
        return
    expected = row.expected(work)
    if expected is not None and run.arrived.total != expected:
        one.fail(f"{run.arrived.total:,} spans arrived, not {expected:,}")
        note(f"FAILED {work.name} {work.mode}, {row.name}: {one.problem}")
    if keep:
        one.runs.append(run)
        one.plain.append(plain)


def times(runs: Sequence[Run], what: str) -> list[float]:
    """Seconds of runs: ``alone`` or ``exported``."""
    values: list[Any] = [getattr(run, what) for run in runs]
    return values
