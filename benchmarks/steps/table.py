"""The table of settings compared step by step: one line for each, as Markdown's cells and as plain data for JSON.

In: compared rows. Out: dictionaries, the first of which is plain against plain. A row that was not measured has its reason as its verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.models import Workload
from benchmarks.ratios import Ratio, judge, quantile
from benchmarks.steps.pairs import AGAIN, PLAIN, RECORDED, Compared, Timed, compare

__all__ = ["COLUMNS", "WITHOUT_EXPORT", "lines_of"]

WITHOUT_EXPORT = "Export is not in these ratios: what is recorded is dropped where it would be handed over to be written and sent."
"""What stands below the table."""
COLUMNS = (
    ("model", "model"),
    ("mode", "mode"),
    ("setting", "setting"),
    ("spans", "spans of a step"),
    ("plain", "plain, ms a step"),
    ("ratio", "ratio to neighbouring steps, without export"),
    ("sure", "95 % of the median"),
    ("again", "A/A of the same requests"),
    ("steps", "steps"),
    ("target", "target"),
    ("verdict", "verdict"),
)
"""Key and heading of each column of the table."""


def lines_of(work: Workload, found: Sequence[Compared]) -> list[dict[str, Any]]:
    """One line of the table for plain against plain in all requests, and one for each row."""
    aa = {"model": work.name, "mode": work.mode, "key": "a/a", "setting": "A/A: plain against plain, all requests"}
    return [_figures(aa, [step for one in found for step in one.steps], AGAIN), *(_line(work, one) for one in found)]


def _line(work: Workload, one: Compared) -> dict[str, Any]:
    line: dict[str, Any] = {"model": work.name, "mode": work.mode, "key": one.row.key, "setting": one.row.name}
    target = work.targets.get(one.row.key)
    if target is not None:
        line["target"] = f"<= {target:.3f}"
    if one.failed:
        return {**line, "verdict": f"FAILED: {one.problem}", "failed": True}
    line = _figures(line, one.steps, RECORDED)
    if "figures" not in line:
        return {**line, "verdict": one.problem or "not measured"}
    line["spans"] = " or ".join(f"{spans:,}" for spans, _ in one.spans.most_common()) or "0"
    again = _figures({}, one.steps, AGAIN)
    if "ratio" in again:
        line["again"] = f"{again['ratio']} ({again['sure']})"
    if target is not None:
        line["verdict"] = judge(Ratio(**line["figures"]["alone"]), target) + (", without export" if one.row.exported else "")
    line["timed"] = one.steps
    return line


def _figures(line: dict[str, Any], steps: Sequence[Timed], variant: str) -> dict[str, Any]:
    """The line with what the steps say, if there are any that can be compared."""
    try:
        ratio = compare(steps, variant)
    except ValueError:
        return line
    return {
        **line,
        "plain": f"{quantile([step.seconds for step in steps if step.variant == PLAIN], 0.5) * 1000:.3f}",
        "ratio": f"{ratio.median:.4f}",
        "sure": f"{ratio.sure_low:.4f} to {ratio.sure_high:.4f}",
        "steps": f"{sum(step.variant == variant for step in steps):,}",
        "figures": {"alone": vars(ratio)},
    }
