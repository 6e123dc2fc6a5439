"""Aggregates and trends as tables of plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from inferspan.report.terminal import clean
from inferspan.text.numbers import counted
from inferspan.text.quantities import ABSENT, count_text, real_text, seconds_text

from .aggregate import Aggregate, Spread
from .trend import FIGURES, Group, Trend

__all__ = ["aggregate_lines", "table", "trend_lines"]

MIB = 2**20
_LISTED = 10


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> Iterator[str]:
    """Columns as wide as they need to be; the first ``left`` of them begin at the left, the others end at the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        padded = zip(row, widths, strict=True)
        yield "  ".join(cell.ljust(width) if place < left else cell.rjust(width) for place, (cell, width) in enumerate(padded)).rstrip()


def aggregate_lines(found: Aggregate) -> Iterator[str]:
    """Files, ranks, the comparison, and what the reader should know."""
    read = sum(not file.refused for file in found.session.files)
    given = len(found.session.files)
    yield f"{read} of {counted(given, 'file')} read; ranks {_numbers([rank.number for rank in found.ranks])}" + (
        f"; missing {_numbers(found.missing)}" if found.missing else ""
    )
    if found.efficiency is not None:
        yield f"efficiency {100 * found.efficiency:.1f} % (busy seconds of all ranks / ranks x time from first start to last end)"
    yield ""
    seen = any(rank.collectives is not None for rank in found.ranks)
    yield from table(
        ("rank", "host", "requests", "failed", "tokens", "tok/s", "busy", *(("in collectives",) if seen else ()), "clock"),
        [
            (
                clean(rank.label), clean(rank.host) or ABSENT, count_text(rank.requests), count_text(rank.failed),
                count_text(rank.output_tokens), real_text(rank.tokens_per_second), seconds_text(rank.busy if rank.requests else None),
                *((ABSENT if rank.collectives is None else _value(rank.collectives, "1"),) if seen else ()),
                ABSENT if clock.seconds is None else f"{clock.seconds * 1e3:+.3f} ms ({clock.source})",
            )
            for rank, clock in zip(found.ranks, found.clocks, strict=True)
        ],
        left=2,
    )  # fmt: skip
    if found.spreads:
        yield ""
        yield from table(
            ("across ranks", "min", "rank", "median", "average", "max", "rank", "stragglers"),
            [_spread(spread, found.straggler) for spread in found.spreads],
        )
    for note in found.notes:
        yield f"note: {clean(note)}"


def _spread(spread: Spread, straggler: float) -> tuple[str, ...]:
    (least_rank, least), (most_rank, most) = spread.minimum, spread.maximum
    shown = [_value(value, spread.unit) for value in (least, spread.median, spread.average, most)]
    late = spread.stragglers(straggler)
    return (clean(spread.name), shown[0], str(least_rank), *shown[1:], str(most_rank), _numbers(late) if late else ABSENT)


def _value(value: float, unit: str) -> str:
    if unit == "s":
        return seconds_text(value)
    if unit == "By":
        return f"{value / MIB:,.1f} MiB"
    if unit == "1":
        return f"{100 * value:.1f} %"
    return real_text(value, {"{token}/s": "tok/s", "Cel": "°C", "J/{token}": "J"}.get(unit, unit))


def _numbers(numbers: Sequence[int]) -> str:
    """``0, 1, 2``; of many, the first ones and how many more."""
    shown = ", ".join(map(str, numbers[:_LISTED]))
    return shown + (f" and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else "")


def trend_lines(found: Trend) -> Iterator[str]:
    """A table for each group: a line a run with its figures, the change to the run before and to the median, and a bar chart of one."""
    for group in found.groups:
        yield "; ".join(f"{name}: {clean(text)}" for name, text in group.key if text) or "recordings"
        names = [name for name in FIGURES if any(name in run.figures for run in group.runs)]
        header = ["begun (UTC)", "file", "requests", *(_HEADINGS[name] for name in names)]
        yield from table(header, [_row(group, index, names) for index in range(len(group.runs))], left=2)
        for index, run in enumerate(group.runs):
            changed = group.new_versions(index)
            if changed:
                told = ", ".join(f"{name} {before or ABSENT} -> {now or ABSENT}" for name, (before, now) in changed.items())
                yield f"versions of {clean(run.path.name)} differ from those of the run before: {clean(told)}"
        if len(group.runs) < 2:
            yield "one run: there is nothing to compare it with"
        yield from _chart(group, names)
        yield ""
    for path, reason in found.refused:
        yield f"note: {clean(str(path))} was left out: {clean(reason)}"


_HEADINGS = {
    "ttft": "TTFT", "tpot": "TPOT", "tokens_per_second": "tok/s", "peak_memory": "peak memory", "utilization": "GPU busy",
    "joules_per_token": "J/token",
}  # fmt: skip
_LONGEST_BAR = 40


def _row(group: Group, index: int, names: Sequence[str]) -> tuple[str, ...]:
    run = group.runs[index]
    cells = [_begun(run.start_ns), clean(run.path.name), count_text(run.requests)]
    for name in names:
        value = run.figures.get(name)
        if value is None:
            cells.append(ABSENT)
            continue
        shares = [group.change(index, name), group.to_median(index, name)]
        if len(group.runs) < 2:
            cells.append(_value(value, FIGURES[name].unit))
            continue
        told = "/".join(ABSENT if share is None else f"{100 * share:+.1f} %" for share in shares)
        cells.append(f"{_value(value, FIGURES[name].unit)} ({told})")
    return tuple(cells)


def _chart(group: Group, names: Sequence[str]) -> Iterator[str]:
    """Bars of the time per token, else of the first figure that the runs have."""
    name = "tpot" if "tpot" in names else next(iter(names), None)
    values = [run.figures.get(name) for run in group.runs] if name else []
    largest = max((value for value in values if value is not None), default=0.0)
    if name is None or len(values) < 2 or not largest > 0:
        return
    yield f"{_HEADINGS[name]}, from zero; change to the run before/to the median in the table"
    for run, value in zip(group.runs, values, strict=True):
        bar = "#" * round(_LONGEST_BAR * value / largest) if value is not None else ""
        yield f"{_begun(run.start_ns)}  {bar} {ABSENT if value is None else _value(value, FIGURES[name].unit)}"


def _begun(nanoseconds: int) -> str:
    try:
        return datetime.fromtimestamp(nanoseconds / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M") if nanoseconds else ABSENT
    except (ValueError, OverflowError, OSError):
        return ABSENT
