"""``python -m benchmarks.report``: how long a report of many spans takes, how much memory, and how fast its page opens.

A session file with as many spans as asked for is written first: requests of 32 layers with attention and MLP, every step recorded, in
lines of 2,000 spans, with the attributes that inferspan gives them. The report is then made by the command, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LAYERS, STEPS, PER_LINE = 32, 64, 2_000
START = 1_800_000_000_000_000_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(part) for part in value]}}
    return {"doubleValue": value} if isinstance(value, float) else {"intValue": str(value)}


def _span(name: str, trace: int, number: int, parent: int, start: int, length: int, attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        "traceId": f"{trace:032x}", "spanId": f"{number:016x}", "parentSpanId": f"{parent:016x}" if parent else "", "flags": 256,
        "name": name, "kind": 1, "startTimeUnixNano": str(START + start), "endTimeUnixNano": str(START + start + length),
        "attributes": [{"key": key, "value": _value(value)} for key, value in attributes.items()], "status": {},
    }  # fmt: skip


def _module(layer: int, kind: str, phase: str, step: int) -> tuple[str, dict[str, Any]]:
    part = {"LlamaAttention": " self_attn", "LlamaMLP": " mlp"}.get(kind, "")
    shapes = {f"inferspan.{side}.shapes": ["1x1x4096", "1x1x4096"] for side in ("input", "output")}
    dtypes = {f"inferspan.{side}.dtypes": ["bfloat16", "bfloat16"] for side in ("input", "output")}
    path = f"model.layers.{layer}{part.replace(' ', '.')}"
    own = {"inferspan.step.index": step, "inferspan.module.layer.index": layer, "inferspan.module.type": kind, "inferspan.phase": phase}
    return f"layer {layer}{part}", {**shapes, **dtypes, **own, "inferspan.module.name": path}


def _request(trace: int, at: int) -> Iterator[dict[str, Any]]:
    """The spans of one request; children first, as they are exported."""
    number = trace << 20
    request, phases = number + 1, {"prefill": number + 2, "decode": number + 3}
    number += 3
    each = 25_000_000
    for step in range(STEPS):
        phase = "prefill" if step == 0 else "decode"
        number += 1
        step_id, begin, piece = number, at + step * each, each // (LAYERS + 1)
        for layer in range(LAYERS):
            number += 1
            layer_id, first = number, begin + layer * piece
            for place, kind in enumerate(("LlamaAttention", "LlamaMLP")):
                number += 1
                name, attributes = _module(layer, kind, phase, step)
                yield _span(name, trace, number, layer_id, first + place * piece // 2, piece // 2, attributes)
            name, attributes = _module(layer, "LlamaDecoderLayer", phase, step)
            yield _span(name, trace, layer_id, step_id, first, piece, attributes)
        logits = {f"inferspan.logits.{name}": 0.5 for name in ("entropy", "max", "min", "mean", "std", "margin", "top1_probability")}
        facts = {"inferspan.step.index": step, "inferspan.phase": phase, "inferspan.logits.chosen_logprob": -0.25}
        yield _span(f"{phase}_step", trace, step_id, phases[phase], begin, each, {**facts, **logits})
    for phase, first, steps in (("prefill", 0, 1), ("decode", 1, STEPS - 1)):
        yield _span(phase, trace, phases[phase], request, at + first * each, steps * each, {"inferspan.phase": phase})
    model = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "example/8b", "gen_ai.usage.output_tokens": STEPS}
    yield _span("chat example/8b", trace, request, 0, at, STEPS * each, {**model, "inferspan.decode.steps": STEPS - 1})


def write(path: Path, spans: int) -> int:
    """Write a session file of at least as many spans; returns how many."""
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "benchmark"}}]}
    written, trace = 0, 0
    batch: list[dict[str, Any]] = []
    with path.open("w") as file:
        while written < spans:
            trace += 1
            batch.extend(_request(trace, trace * 2_000_000_000))
            while len(batch) >= PER_LINE or (batch and written + len(batch) >= spans):
                some, batch = batch[:PER_LINE], batch[PER_LINE:]
                scope = {"scope": {"name": "inferspan"}, "spans": some}
                file.write(json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}, separators=(",", ":")) + "\n")
                written += len(some)
    return written


def command(arguments: list[str]) -> tuple[float, float, int]:
    """Run ``inferspan`` with arguments; returns seconds, seconds of CPU, and the most memory in bytes."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "inferspan", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"inferspan {' '.join(arguments)} ended with {status}")
    scale = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * scale


def opened(page: Path, folder: Path) -> float | None:
    """Seconds from the start of navigation until the page has drawn itself; ``None`` without a browser."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        return None
    probe = (
        "<script>requestAnimationFrame(() => setTimeout(() => { document.title = 'opened ' + performance.now().toFixed(0); }, 0));</script>"
    )
    copy = folder / "probe.html"
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", probe + "</body>"), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder / 'profile'}"]
    drawn = subprocess.run(
        [browser, *flags, "--virtual-time-budget=20000", "--dump-dom", copy.as_uri()], capture_output=True, text=True, timeout=300, check=True
    ).stdout
    found = re.search(r"<title>opened (\d+)", drawn)
    return int(found[1]) / 1000 if found else None


def main() -> None:
    """Measure, and print one line for each figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where the files are kept; default: a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        session, page, figures = folder / "session.jsonl", folder / "report.html", folder / "report.json"
        number = write(session, arguments.spans)
        print(f"session file: {number:,} spans, {session.stat().st_size / 1e6:,.0f} MB")
        seconds, cpu, memory = command(["report", str(session), "-o", str(page), "--json", str(figures)])
        print(f"report: {seconds:.1f} s, {cpu:.1f} s of CPU, at most {memory / 2**20:,.0f} MiB")
        print(f"page: {page.stat().st_size / 1e6:.1f} MB, JSON: {figures.stat().st_size / 1e6:.1f} MB")
        ready = opened(page, folder)
        print("page: no browser on this machine" if ready is None else f"page: drawn {ready:.2f} s after navigation")


if __name__ == "__main__":
    main()
