"""Memory of a run by module, and its peak: what ``handle.memory()`` and the report show.

In: sums of readings by module, of the program or of a session file. Out: figures, three rankings of modules, text and plain values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["NO_ALLOCATOR", "RANKINGS", "MemoryCall", "MemoryFigures", "ModuleMemory", "memory_figures"]

GIBIBYTE, MEBIBYTE = 1 << 30, 1 << 20
TOP = 5
NO_ALLOCATOR = "modules: no allocator to ask on a CPU model"
RANKINGS = {
    "after": "allocated after the module, on average: mostly tells when a module runs",
    "difference": "difference after - before, on average: what a module leaves allocated",
    "rise": "rise of the peak inside the module, in total: where the peak comes from",
}
"""What modules are ranked by."""


class ModuleMemory(NamedTuple):
    """Memory before and after the calls of one module, bytes.

    ``after`` and ``difference`` are means, ``rise`` is the sum over the calls by how much the allocator's peak has risen inside.
    """

    module: str
    readings: int
    after: float
    difference: float
    rise: int

    def __str__(self) -> str:
        shown = f"{_size(self.after)} after, {_size(self.difference, sign=True)}, peak {_size(self.rise, sign=True)}"
        return f"{self.module}: {shown}, {self.readings:,} reading{'' if self.readings == 1 else 's'}"


class MemoryCall(NamedTuple):
    """One call of a module; ``time_ns`` is its end, nanoseconds since the epoch, ``step`` that of its request, ``None`` outside of one.

    ``before`` and ``after`` are bytes allocated, reserved, and the most that was allocated so far.
    """

    module: str
    step: int | None
    time_ns: int
    before: tuple[int | None, int | None, int | None]
    after: tuple[int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Memory of a run.

    Attributes:
        device: where the model is, such as ``cuda:0`` or ``cpu``; ``None`` if nothing was read.
        peak: bytes, the most that was allocated since the process began or the program reset torch's peak; on a CPU model the most that
            was resident.
        steps: steps with readings before and after.
        readings: calls of modules with such readings.
        modules: one entry for each of them, in the order in which they first ended.
        shortages: out-of-memory errors, the latest 16, in words.
        calls: the latest 10,000 calls with readings, the newest last; of a session file none.
    """

    device: str | None = None
    peak: int | None = None
    steps: int = 0
    modules: Sequence[ModuleMemory] = ()
    shortages: Sequence[str] = ()
    calls: Sequence[MemoryCall] = field(default=(), repr=False)

    @property
    def readings(self) -> int:
        """Calls of modules with readings."""
        return sum(one.readings for one in self.modules)

    @property
    def peak_gib(self) -> float | None:
        """The peak in GiB."""
        return None if self.peak is None else self.peak / GIBIBYTE

    @property
    def note(self) -> str | None:
        """Why modules have no figures, if there is no allocator."""
        return NO_ALLOCATOR if self.device is not None and not self.device.startswith("cuda") else None

    def top(self, by: str = "after", most: int = TOP) -> list[ModuleMemory]:
        """The highest modules.

        Args:
            by: one of ``RANKINGS``: ``after``, ``difference`` or ``rise``.
            most: how many.

        Raises:
            ValueError: there is no such ranking.
        """
        if by not in RANKINGS:
            raise ValueError(f"{by!r} is no ranking; use one of {', '.join(RANKINGS)}")
        return sorted(self.modules, key=lambda one: (-getattr(one, by), one.module))[:most]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; empty if nothing was read."""
        if self.device is None:
            return {}
        found: dict[str, Any] = {
            "device": self.device, "peak": self.peak, "steps": self.steps, "readings": self.readings,
            "modules": [one._asdict() for one in self.modules],
            "top": {by: [one.module for one in self.top(by)] for by in RANKINGS},
        }  # fmt: skip
        return found if self.note is None else {**found, "note": self.note}

    def __str__(self) -> str:
        lines = [self._first(), *(f"  out of memory: {one}" for one in self.shortages)]
        for by, meaning in RANKINGS.items() if self.modules else ():
            lines.append(f"  by {meaning}")
            lines += [f"    {one}" for one in self.top(by)]
        return "\n".join(lines)

    def _first(self) -> str:
        if self.device is None:
            return 'memory: nothing was read; set memory="steps" or to modules'
        kind = f"allocated on {self.device}" if self.note is None else "resident"
        peak = "unknown" if self.peak_gib is None else f"{self.peak_gib:.2f} GiB"
        steps = f"{self.steps:,} step{'' if self.steps == 1 else 's'}"
        modules = self.note or f"{self.readings:,} readings of {len(self.modules):,} modules"
        return f"memory: peak {peak} {kind}; {steps}; {modules}"


def memory_figures(
    device: str | None, peak: int | None, steps: int, sums: Iterable[tuple[str, int, float, float, int]], shortages: Sequence[str] = ()
) -> MemoryFigures:
    """Figures from sums.

    Args:
        device: where the model is.
        peak: bytes.
        steps: with readings.
        sums: path of a module, number of readings, sums of bytes after them and of the differences, rise of the peak.
        shortages: out-of-memory errors, in words.
    """
    modules = tuple(ModuleMemory(name, number, after / number, gap / number, rise) for name, number, after, gap, rise in sums if number)
    return MemoryFigures(device, peak, steps, modules, tuple(shortages))


def _size(value: float, *, sign: bool = False) -> str:
    """Bytes in MiB with two decimals, from 1 GiB on in GiB."""
    unit, name = (GIBIBYTE, "GiB") if abs(value) >= GIBIBYTE else (MEBIBYTE, "MiB")
    return f"{value / unit:{'+' if sign else ''}.2f} {name}"
