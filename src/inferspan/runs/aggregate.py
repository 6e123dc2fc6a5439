"""Session files of the ranks of a job -> one comparison: figures of each rank, spread across ranks, who is slow, and how busy all are.

In come paths; out come an ``Aggregate``, and on request one file with all lines of the others. Damaged files are named, and the rest is
used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferspan.metrics.summary import percentile
from inferspan.report.otlp_lines import LineCounts, read_lines
from inferspan.report.output.writing import write_text
from inferspan.report.session import Session, SessionFileError, read_sessions

from .clocks import Offset, offsets
from .ranks import METRICS, Figure, Rank, ranks_of

__all__ = ["SCHEMA", "STRAGGLER", "Aggregate", "Spread", "aggregate", "merged"]

SCHEMA = 1
"""Number of the JSON form: raised when a key changes its meaning or goes."""
STRAGGLER = 0.1
"""A rank whose median is longer than that of all ranks by more than this share is a straggler."""


@dataclass(slots=True)
class Spread:
    """One figure across ranks: smallest, largest, mean and median of the ranks' values, and the ranks of both ends."""

    name: str
    unit: str
    values: dict[int, float]

    @property
    def minimum(self) -> tuple[int, float]:
        """Rank and value."""
        return min(self.values.items(), key=lambda item: item[1])

    @property
    def maximum(self) -> tuple[int, float]:
        """Rank and value."""
        return max(self.values.items(), key=lambda item: item[1])

    @property
    def average(self) -> float:
        """Of the ranks' values."""
        return sum(self.values.values()) / len(self.values)

    @property
    def median(self) -> float:
        """Of the ranks' values."""
        return percentile(list(self.values.values()), 0.5) or 0.0

    def stragglers(self, share: float) -> list[int]:
        """Ranks above the median by more than a share of it."""
        return [rank for rank, value in sorted(self.values.items()) if value > self.median * (1 + share)] if self.unit == "s" else []

    def as_dict(self, straggler: float) -> dict[str, Any]:
        """For JSON."""
        found = {
            "name": self.name, "unit": self.unit, "min": self.minimum[1], "min_rank": self.minimum[0], "max": self.maximum[1],
            "max_rank": self.maximum[0], "average": self.average, "median": self.median,
            "ranks": {str(rank): value for rank, value in sorted(self.values.items())},
            "difference_to_median": {str(rank): value - self.median for rank, value in sorted(self.values.items())},
        }  # fmt: skip
        return {**found, "stragglers": self.stragglers(straggler)} if self.unit == "s" else found


@dataclass(slots=True)
class Aggregate:
    """The ranks of a job side by side.

    Attributes:
        session: everything that was read.
        ranks: in order.
        missing: ranks below the size of the job of which nothing was read.
        clocks: offset of each rank's clock.
        spreads: figures across ranks, of those that at least one rank has.
        straggler: share above the median from which a rank is a straggler.
    """

    session: Session
    ranks: list[Rank]
    missing: list[int]
    clocks: list[Offset]
    spreads: list[Spread]
    straggler: float = STRAGGLER

    @property
    def efficiency(self) -> float | None:
        """Busy seconds of all ranks / (ranks x seconds between first start and last end); ``None`` without requests.

        Busy is device time where all requests of a rank have it, else the time in which at least one request ran. Times are corrected by
        the clocks' offsets as far as they are known.
        """
        timed = [(rank, clock.seconds or 0.0) for rank, clock in zip(self.ranks, self.clocks, strict=True) if rank.last_ns]
        if not timed:
            return None
        first = min(rank.first_ns / 1e9 - offset for rank, offset in timed)
        last = max(rank.last_ns / 1e9 - offset for rank, offset in timed)
        return sum(rank.busy for rank, _ in timed) / (len(self.ranks) * (last - first)) if last > first else None

    @property
    def notes(self) -> list[str]:
        """One sentence for each thing that the reader should know."""
        found = list(self.session.notes)
        if self.missing:
            found.append(f"Ranks of which no file was given: {', '.join(map(str, self.missing))}.")
        unknown = [rank.label for rank, clock in zip(self.ranks, self.clocks, strict=True) if clock.seconds is None]
        if unknown:
            found.append(f"Clocks whose offset is not known, taken as right: {', '.join(unknown)}.")
        if len({rank.device for rank in self.ranks if rank.requests}) > 1:
            found.append("Some ranks have device times and others not: their busy seconds cannot be compared.")
        return found

    def as_dict(self) -> dict[str, Any]:
        """The JSON form, documented in ``docs/looking/ranks.md``."""
        return {
            "schema": SCHEMA,
            "files": [{"name": file.path.name, "lines": file.lines.read, "refused": file.refused} for file in self.session.files],
            "ranks": [_rank(rank, clock) for rank, clock in zip(self.ranks, self.clocks, strict=True)],
            "missing": self.missing,
            "spreads": [spread.as_dict(self.straggler) for spread in self.spreads],
            "efficiency": self.efficiency,
            "notes": self.notes,
        }


def aggregate(paths: Sequence[Path], *, straggler: float = STRAGGLER) -> Aggregate:
    """Read the files and compare their ranks.

    Args:
        paths: session files of all ranks.
        straggler: share above the median from which a rank is a straggler.

    Raises:
        SessionFileError: none of the files can be used.
    """
    session = read_sessions(paths)
    ranks = ranks_of(session)
    size = max((rank.size or 0 for rank in ranks), default=0)
    present = {rank.number for rank in ranks}
    return Aggregate(
        session=session,
        ranks=ranks,
        missing=[number for number in range(min(size, 1_000_000)) if number not in present],
        clocks=offsets(ranks),
        spreads=[spread for spread in _spreads(ranks) if spread.values],
        straggler=straggler,
    )


def _spreads(ranks: Sequence[Rank]) -> Iterator[Spread]:
    phases = dict.fromkeys(name for rank in ranks for name in rank.phases)
    figures: list[tuple[str, str, Callable[[Rank], float | None]]] = [
        ("request, median", "s", lambda rank: rank.request),
        ("decode step, median", "s", lambda rank: rank.step),
        *((f"{name}, median", "s", lambda rank, name=name: rank.phase(name)) for name in phases),
        ("tokens per second", "{token}/s", lambda rank: rank.tokens_per_second),
        ("busy", "s", lambda rank: rank.busy if rank.requests else None),
        ("in collectives", "1", lambda rank: rank.collectives),
    ]
    for name, unit, value_of in figures:
        yield Spread(name, unit, {rank.number: value for rank in ranks if (value := value_of(rank)) is not None})
    for name, (_, unit) in METRICS.items():
        yield Spread(name, unit, {rank.number: rank.readings[name].average for rank in ranks if name in rank.readings})


def _rank(rank: Rank, clock: Offset) -> dict[str, Any]:
    return {
        "rank": rank.number,
        "label": rank.label,
        "host": rank.host or None,
        "requests": rank.requests,
        "failed": rank.failed,
        "output_tokens": rank.output_tokens,
        "tokens_per_second": rank.tokens_per_second,
        "start_ns": str(rank.first_ns) if rank.first_ns else None,
        "end_ns": str(rank.last_ns) if rank.last_ns else None,
        "busy": rank.busy if rank.requests else None,
        "busy_on_device": rank.device,
        "clock_offset": clock.seconds,
        "clock_offset_from": clock.source,
        "collectives": rank.collectives,
        "request": _figure(Figure.of(rank.durations)),
        "step": _figure(Figure.of(rank.steps)),
        "phases": {name: _figure(Figure.of(values)) for name, values in rank.phases.items()},
        "readings": {name: figure.as_dict() for name, figure in rank.readings.items()},
    }


def _figure(figure: Figure | None) -> dict[str, float | int] | None:
    return None if figure is None else figure.as_dict()


def merged(paths: Sequence[Path], output: Path) -> int:
    """Write all lines of the files into one session file, file after file; returns their number.

    Raises:
        OSError: it cannot be written.
        SessionFileError: none of the files can be used.
    """
    count, errors = 0, []

    def lines() -> Iterator[str]:
        nonlocal count
        for path in paths:
            try:
                for line, _ in read_lines(path, LineCounts()):
                    count += 1
                    yield json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n"
            except SessionFileError as error:
                errors.append(error)
        if not count:
            raise errors[0]

    write_text(output, lines())
    return count
