"""From measured blocks to figures: what each setting adds, and what of that is for a request, for a step and for a module call.

In: ``Measured`` of a part. Out: plain dictionaries, which are kept in the JSON file, and Markdown of all that the file has.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.ratios import quantile, ratio_of
from benchmarks.requests.blocks import CLOCKS, Measured
from benchmarks.requests.loads import SETTINGS
from benchmarks.table import markdown

__all__ = ["fitted", "interval", "lines_of", "render"]

RESAMPLES = 1000
NAMES = {"thread": "model's thread, CPU", "process": "process, CPU", "wall": "wall clock"}


def interval(values: Sequence[float], *, seed: int = 0) -> tuple[float, float, float]:
    """The median of some values, and the ends of its 95 % interval."""
    generator = random.Random(seed)
    medians = [statistics.median(generator.choices(values, k=len(values))) for _ in range(RESAMPLES)]
    return statistics.median(values), quantile(medians, 0.025), quantile(medians, 0.975)


def lines_of(found: Sequence[Measured]) -> list[dict[str, Any]]:
    """One line for each setting and load; times in milliseconds a request."""
    lines = []
    for one in found:
        work = one.load.work
        line: dict[str, Any] = {
            "model": work.name,
            "mode": work.mode,
            "size": one.load.size,
            "steps": one.load.steps,
            "setting": one.setting,
            "calls": SETTINGS[one.setting].calls(work),
        }
        if not one.with_it:
            lines.append({**line, "problem": one.problem or "not measured"})
            continue
        for number, clock in enumerate(CLOCKS):
            with_it, plain = one.ratios(number)
            ratio = ratio_of(with_it, plain)
            median, low, high = interval(one.added(number))
            line[clock] = {
                "plain": statistics.median(plain),
                "added": median,
                "low": low,
                "high": high,
                "ratio": ratio.median,
                "ratio_low": ratio.sure_low,
                "ratio_high": ratio.sure_high,
            }
        lines.append({**line, "blocks": len(one.with_it)})
    return lines


def fitted(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Costs as a sum, by least squares over the settings without statistics of logits: ms a request + us a step + us a module call.

    Long requests have large errors, so that each line counts by the inverse of its plain time, which the errors grow with. Model, mode and clock
    have a line each; a model without steps has none.
    """
    import torch

    found = []
    kinds = {(line["model"], line["mode"]): None for line in lines if line["steps"]}
    for model, mode in kinds:
        some = [
            line for line in lines
            if (line["model"], line["mode"]) == (model, mode) and "problem" not in line and SETTINGS[line["setting"]].fitted
        ]  # fmt: skip
        for clock in CLOCKS:
            weights = torch.tensor([1 / line[clock]["plain"] for line in some], dtype=torch.float64)
            facts = torch.tensor([[1, line["steps"], line["calls"]] for line in some], dtype=torch.float64)
            if len(some) < 3 or int(torch.linalg.matrix_rank(facts)) < 3:
                continue
            added = torch.tensor([line[clock]["added"] for line in some], dtype=torch.float64)
            answer = torch.linalg.lstsq(facts * weights[:, None], (added * weights)[:, None]).solution.flatten().tolist()
            request, step, call = answer
            found.append({"model": model, "mode": mode, "clock": clock, "request_ms": request, "step_us": step * 1000, "call_us": call * 1000})
    return found


def _added(figures: Mapping[str, float]) -> str:
    return f"{figures['added']:.3f} ({figures['low']:.3f} to {figures['high']:.3f})"


def _ratio(figures: Mapping[str, float], noise: float | None) -> str:
    text = f"{figures['ratio']:.3f} ({figures['ratio_low']:.3f} to {figures['ratio_high']:.3f})"
    return text if noise is None or abs(figures["ratio"] - 1) > noise else f"{text}, not resolved"


def _table(run: Mapping[str, Any]) -> str:
    columns = [("size", "request"), ("setting", "setting"), ("plain", "plain, ms"), *((clock, f"added, ms: {NAMES[clock]}") for clock in CLOCKS)]
    columns += [("ratio", "ratio on the wall clock"), ("blocks", "blocks")]
    noise = {
        (line["model"], line["size"]): max(abs(line["wall"]["ratio_low"] - 1), abs(line["wall"]["ratio_high"] - 1))
        for line in run["lines"]
        if line["setting"] == "A/A" and "problem" not in line
    }
    rows = []
    for line in run["lines"]:
        row = {"size": f"{line['model']}, {line['mode']}, {line['size']}", "setting": line["setting"]}
        if "problem" in line:
            rows.append({**row, "ratio": line["problem"]})
            continue
        apart = None if line["setting"] == "A/A" else noise.get((line["model"], line["size"]))
        row |= {"plain": f"{line['wall']['plain']:.3f}", "ratio": _ratio(line["wall"], apart), "blocks": str(line["blocks"])}
        rows.append(row | {clock: _added(line[clock]) for clock in CLOCKS})
    return markdown(columns, rows)


def _sums(runs: Sequence[Mapping[str, Any]]) -> str:
    columns = [("part", "part"), ("model", "model"), ("clock", "clock")]
    columns += [("request_ms", "ms a request"), ("step_us", "us a step"), ("call_us", "us a module call")]
    rows = [
        {"part": run["part"], "model": f"{line['model']}, {line['mode']}", "clock": NAMES[line["clock"]]}
        | {key: f"{line[key]:.{digits}f}" for key, digits in (("request_ms", 3), ("step_us", 1), ("call_us", 2))}
        for run in runs
        for line in run["sums"]
    ]
    return markdown(columns, rows)


def _logits(runs: Sequence[Mapping[str, Any]]) -> str:
    columns = [("model", "vocabulary"), ("step", "us a step, model's thread"), ("logsumexp", "torch.logsumexp of the row, us"), ("times", "times")]
    rows = [line for run in runs for line in run["logits"]]
    return markdown(columns, [{key: value if isinstance(value, str) else f"{value:.1f}" for key, value in line.items()} for line in rows])


def render(runs: Sequence[Mapping[str, Any]]) -> str:
    """All runs as Markdown: the sums first, then each part."""
    parts = []
    if any(run["sums"] for run in runs):
        parts += ["### Cost of a request, without statistics of logits", _sums(runs)]
    if any(run["logits"] for run in runs):
        parts += ["### Statistics of logits", _logits(runs)]
    for run in runs:
        parts.append(f"### {run['part']}: {run['about']}")
        told = [f"{name}: {value}" for name, value in run["machine"].items()]
        told.append(f"start and end of a span of the SDK after a pass of 10 ms: {run['sdk_span_ms']:.3f} ms of the model's thread")
        parts += ["\n".join(f"- {line}" for line in told), run["problem"] if run.get("problem") else _table(run)]
    return "\n\n".join(parts) + "\n"
