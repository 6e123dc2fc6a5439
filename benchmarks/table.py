"""The table: one line for each setting, model and mode, as Markdown and as plain data for JSON.

In: measured rows. Out: dictionaries with figures, and a Markdown table of them. A row that was not measured has its reason where the figures would be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.models import Workload
from benchmarks.ratios import Ratio, judge, quantile, ratio_of
from benchmarks.rounds import Measured, times

__all__ = ["COLUMNS", "lines_of", "markdown", "noise"]

COLUMNS = (
    ("model", "model"),
    ("mode", "mode"),
    ("plain", "plain, ms a token"),
    ("setting", "setting"),
    ("ratio", "ratio"),
    ("quartiles", "quartiles"),
    ("sure", "95 % of the median"),
    ("fastest", "fastest"),
    ("exported", "with export"),
    ("pairs", "pairs"),
    ("target", "target"),
    ("verdict", "verdict"),
    ("spans", "spans"),
    ("bytes", "bytes sent"),
    ("memory", "peak memory, MiB"),
    ("gets", "what you get"),
)
"""Key and heading of each column of the main table."""


def lines_of(work: Workload, found: Sequence[Measured]) -> list[dict[str, Any]]:
    """One line of the table for each measured row."""
    bases = {
        piped: [seconds for one in found if one.row.piped is piped for seconds in times(one.plain, "alone")] for piped in (False, True)
    }
    return [_line(work, one, bases[one.row.piped]) for one in found]


def _line(work: Workload, one: Measured, base: Sequence[float]) -> dict[str, Any]:
    line: dict[str, Any] = {"model": work.name, "mode": work.mode, "key": one.row.key, "setting": one.row.name, "gets": one.row.gets}
    target = work.targets.get(one.row.key)
    if target is not None:
        line["target"] = f"<= {target:.3f}"
    if one.failed:
        return {**line, "verdict": f"FAILED: {one.problem}", "failed": True}
    if not one.runs:
        return {**line, "verdict": one.problem or "not measured"}
    plain = times(one.plain, "alone")
    alone, exported = ratio_of(times(one.runs, "alone"), plain), ratio_of(times(one.runs, "exported"), plain)
    judged = exported if one.row.exported else alone
    line.update(
        plain=f"{quantile(base, 0.5) / work.tokens * 1000:.3f}",
        ratio=f"{alone.median:.3f}",
        quartiles=f"{alone.low:.3f} to {alone.high:.3f}",
        sure=f"{alone.sure_low:.3f} to {alone.sure_high:.3f}",
        fastest=f"{alone.fastest:.3f}",
        exported=f"{exported.median:.3f} ({exported.sure_low:.3f} to {exported.sure_high:.3f})",
        pairs=str(alone.pairs),
        verdict=judge(judged, target) + (", with export" if one.row.exported else "") if target is not None else "",
        spans=f"{one.runs[-1].arrived.total:,}",
        bytes=f"{one.runs[-1].arrived.bytes:,}",
        memory=_memory(one),
        seconds={"alone": times(one.runs, "alone"), "exported": times(one.runs, "exported"), "plain": plain},
        figures={"alone": vars(alone), "exported": vars(exported)},
    )
    return line


def _memory(one: Measured) -> str:
    """Peak over that of the plain partner, medians: of the process, and of the device where there is one."""
    told = []
    for place, label in ((0, ""), (1, " on the device")):
        pairs = [(run.peak[place], plain.peak[place]) for run, plain in zip(one.runs, one.plain, strict=True)]
        added = [ours - base for ours, base in pairs if ours is not None and base is not None]
        if added:
            told.append(f"{quantile(added, 0.5) / 2**20:+.1f}{label}")
    return ", ".join(told)


def markdown(columns: Sequence[tuple[str, str]], lines: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; columns that are empty in every line are left out."""
    used = [(key, heading) for key, heading in columns if any(line.get(key) for line in lines)]
    rows = [[heading for _, heading in used], ["---"] * len(used)]
    rows += [[str(line.get(key, "")).replace("|", "\\|") for key, _ in used] for line in lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def noise(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the A/A rows say: which targets this run cannot resolve."""
    told = []
    for line in lines:
        if line.get("key") != "a/a" or "figures" not in line:
            continue
        ratio = Ratio(**line["figures"]["alone"])
        width = max(abs(ratio.sure_high - 1), abs(1 - ratio.sure_low))
        where = f"{line['model']} {line['mode']}"
        beside = [other for other in lines if other.get("target") and (other["model"], other["mode"]) == (line["model"], line["mode"])]
        finer = sorted({other["target"] for other in beside if float(other["target"].split()[-1]) - 1 < width})
        text = f"{where}: plain against plain is {ratio.median:.3f}, 95 % {ratio.sure_low:.3f} to {ratio.sure_high:.3f}"
        if math.isfinite(width) and finer:
            text += f"; the noise exceeds what the targets {', '.join(finer)} allow, so this run cannot show them"
        told.append(text)
    return told
