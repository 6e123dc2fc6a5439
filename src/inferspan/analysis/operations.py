"""Ends of operations, one after the other -> figures for each: count, total, average, extremes, percentiles, own time, memory.

An operation is a stage, a method, a request, a phase, a step or a module, under its name. In come durations by the host's clock and, where
it was measured, by the device's; out come ``OperationRow``s. Memory is bounded: further operations than ``MOST_OPERATIONS`` are counted
together, and percentiles are kept as ``Quantiles``. Used for session files and inside the program that is observed alike; threads may
share an accumulator.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from inferspan.analysis.quantiles import Quantiles

__all__ = ["KINDS", "MOST_OPERATIONS", "OTHERS", "OperationRow", "Operations"]

KINDS = ("session", "stage", "method", "load", "request", "batch", "phase", "step", "module", "kernel")
"""Kinds of operations, from the outside to the inside."""
MOST_OPERATIONS = 20_000
OTHERS = "(others)"
"""Name under which operations over the bound are counted, for each kind."""
HOST, DEVICE, MIXED = "host", "device", "mixed"


@dataclass(frozen=True, slots=True)
class OperationRow:
    """The figures of one operation: seconds, and bytes of memory; a figure that nothing measured is ``None``.

    Durations include what runs inside; operations that are nested each count in full. ``self_duration`` is without the recorded operations
    inside. Of steps of which only some have recorded modules it is the sum over these, and ``self_count`` is their number; else that is
    ``None``. ``clock`` says whose seconds these are: ``device`` where every call has a device time, ``host`` where none has, ``mixed``
    where some have, which then count with it.
    """

    kind: str
    name: str
    count: int
    total_duration: float
    avg_duration: float
    min_duration: float
    max_duration: float
    p50: float
    p95: float
    self_duration: float
    clock: str
    total_memory_delta: int | None
    avg_memory_delta: float | None
    self_count: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The figures under their names, without those that are ``None``."""
        return {key: value for key, value in asdict(self).items() if value is not None}


class Sums(Protocol):
    """Calls of an operation that were added up elsewhere: see ``summaries.calls.ModuleSums``."""

    @property
    def timed(self) -> int: ...
    @property
    def measured(self) -> int: ...
    @property
    def host(self) -> float: ...
    @property
    def device(self) -> float: ...
    @property
    def inside(self) -> float: ...
    @property
    def device_inside(self) -> float: ...
    @property
    def least(self) -> float: ...
    @property
    def greatest(self) -> float: ...
    @property
    def values(self) -> bytes: ...
    @property
    def zeros(self) -> int: ...
    @property
    def buckets(self) -> Mapping[int, int] | None: ...


class _Operation:
    """The sums of one operation."""

    __slots__ = (
        "device", "device_count", "device_inside", "host", "inside", "largest", "memory", "memory_count", "open", "open_device",
        "open_host", "quantiles", "smallest",
    )  # fmt: skip

    def __init__(self) -> None:
        self.quantiles = Quantiles()
        self.host = self.device = self.inside = self.device_inside = self.largest = 0.0
        self.smallest = float("inf")
        self.device_count = self.memory = self.memory_count = self.open = 0
        self.open_host = self.open_device = 0.0

    def add(self, seconds: float, device_seconds: float | None, memory_delta: int | None) -> None:
        self.host += seconds
        measured = seconds
        if device_seconds is not None:
            measured = device_seconds
            self.device += device_seconds
            self.device_count += 1
        else:
            self.device += seconds
        self.quantiles.add(measured)
        self.smallest = min(self.smallest, measured)
        self.largest = max(self.largest, measured)
        if memory_delta is not None:
            self.memory += memory_delta
            self.memory_count += 1

    def join(self, sums: Sums) -> None:
        self.host += sums.host
        self.device += sums.device
        self.device_count += sums.measured
        self.inside += sums.inside
        self.device_inside += sums.device_inside
        self.quantiles.join(sums.timed, sums.values, sums.zeros, sums.buckets)
        self.smallest = min(self.smallest, sums.least)
        self.largest = max(self.largest, sums.greatest)

    def row(self, kind: str, name: str) -> OperationRow:
        count = self.quantiles.count
        clock = HOST if not self.device_count else DEVICE if self.device_count == count else MIXED
        total, inside = (self.host, self.inside) if clock == HOST else (self.device, self.device_inside)
        some = 0 < self.open < count
        whole = (self.open_host if clock == HOST else self.open_device) if some else total
        return OperationRow(
            kind=kind,
            name=name,
            count=count,
            total_duration=total,
            avg_duration=total / count,
            min_duration=self.smallest,
            max_duration=self.largest,
            p50=self._within(0.5),
            p95=self._within(0.95),
            # Calls inside that ran at the same time add up to more than the time around them; less than a billionth is rounding.
            self_duration=whole - inside if whole - inside > whole * 1e-9 else 0.0,
            clock=clock,
            total_memory_delta=self.memory if self.memory_count else None,
            avg_memory_delta=self.memory / self.memory_count if self.memory_count else None,
            self_count=self.open if some else None,
        )

    def _within(self, share: float) -> float:
        return min(max(self.quantiles.at(share) or 0.0, self.smallest), self.largest)


class Operations:
    """Adds up ends of operations.

    Args:
        most: operations that are told apart; further ones count as ``OTHERS``.
    """

    def __init__(self, most: int = MOST_OPERATIONS) -> None:
        self._most = most
        self._found: dict[tuple[str, str], _Operation] = {}
        # Reentrant: a collected generator may end its stage at any instruction.
        self._lock = threading.RLock()

    def add(
        self, kind: str, name: str, seconds: float, *, device_seconds: float | None = None, memory_delta: int | None = None
    ) -> None:
        """Count one call that has ended.

        Args:
            kind: one of ``KINDS``.
            name: of the operation; of a module its path.
            seconds: duration by the host's clock.
            device_seconds: the same by the device's clock, if it was measured.
            memory_delta: bytes allocated at the end minus at the start, if that was measured.
        """
        with self._lock:
            self._operation(kind, name).add(seconds, device_seconds, memory_delta)

    def add_inside(self, kind: str, name: str, seconds: float, *, device_seconds: float | None = None) -> None:
        """Count time of a recorded call directly inside this operation, which is not its own time; before or after ``add``."""
        with self._lock:
            operation = self._operation(kind, name)
            operation.inside += seconds
            operation.device_inside += seconds if device_seconds is None else device_seconds

    def add_open(self, kind: str, name: str, seconds: float, *, device_seconds: float | None = None) -> None:
        """Count a call that has recorded calls inside, where others of the operation may have none: own time is of such calls only."""
        with self._lock:
            operation = self._operation(kind, name)
            operation.open += 1
            operation.open_host += seconds
            operation.open_device += seconds if device_seconds is None else device_seconds

    def add_nested(self, calls: Iterable[tuple[tuple[str, str], tuple[str, str], float, float | None]]) -> None:
        """Count calls together with the time that they are inside another operation: see ``add`` and ``add_inside``.

        Args:
            calls: kind and name of each, those of the operation around it, seconds by the host's clock, and by the device's.
        """
        with self._lock:
            for operation, around, seconds, device_seconds in calls:
                self._operation(*operation).add(seconds, device_seconds, None)
                outer = self._operation(*around)
                outer.inside += seconds
                outer.device_inside += seconds if device_seconds is None else device_seconds

    def join(self, kind: str, name: str, sums: Sums) -> None:
        """Count calls that were added up elsewhere, with the time of what is inside them."""
        with self._lock:
            self._operation(kind, name).join(sums)

    def rows(self, kinds: Iterable[str] = KINDS) -> list[OperationRow]:
        """One row for each operation that has ended: by kind from the outside to the inside, then the longest in total first."""
        with self._lock:
            made = [found.row(kind, name) for (kind, name), found in self._found.items() if found.quantiles.count]
        order = {kind: place for place, kind in enumerate(kinds)}
        return sorted((row for row in made if row.kind in order), key=lambda row: (order[row.kind], -row.total_duration, row.name))

    def as_dict(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Kind -> name -> figures, in the order of ``rows``; kinds without a row are absent."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for row in self.rows():
            figures = row.as_dict()
            found.setdefault(figures.pop("kind"), {})[figures.pop("name")] = figures
        return found

    def renew_lock(self) -> None:
        """Called in a forked child, where no thread is left to release it."""
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._found)

    def _operation(self, kind: str, name: str) -> _Operation:
        found = self._found.get((kind, name))
        if found is None:
            if len(self._found) >= self._most and name != OTHERS:
                return self._operation(kind, OTHERS)
            found = self._found[kind, name] = _Operation()
        return found
