"""Measure whole requests with export, in parts of a few minutes; all parts go into one JSON file, of which one table is made.

Spans and metrics go to a receiver of OTLP in a process of its own on the loopback. A block of requests runs under each setting, between two blocks
without; A/A is a block without between two others. With --turns a model that stays instrumented and a twin that never is run some 30 ms each in
turns. What a request takes more is stated as CPU time of the thread that runs the model, as CPU time of the process until everything has been sent,
and on the wall clock, with the 95 % interval of the median.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.arguments import leave_out_variables, positive
from benchmarks.receiver import receiver
from benchmarks.requests import blocks, costs, floors, loads, turns
from benchmarks.rounds import note

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    names = "\n".join(f"  {part.name:24}{part.about}" for part in loads.PARTS.values())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.requests",
        description=__doc__,
        epilog=f"parts:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", metavar="NAMES", help="parts as a comma list (default: those that this machine can run)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add what was measured to this file; a part replaces its last run")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table of the file's parts")
    parser.add_argument("--seconds", type=float, default=300, help="for each part, without loading and compiling (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, help="most blocks of each setting (default: 40), or pairs of turns (200)")
    parser.add_argument("--turns", action="store_true", help="short turns of a model and a twin without, in place of blocks: resolves more")
    parser.add_argument("--tokens", default=",".join(map(str, loads.TOKENS)), help="new tokens of the requests (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="measure nothing, print the table of the file")
    return parser


def _read(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["parts"]
    return found


def _keep(run: dict[str, Any], path: Path | None, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of the file with this one; written at once, so that a later part that is ended from outside costs itself only."""
    order = list(loads.PARTS)
    runs = sorted([one for one in runs if one["part"] != run["part"]] + [run], key=lambda one: order.index(one["part"]))
    if path is not None:
        path.write_text(json.dumps({"parts": runs}, indent=1) + "\n", encoding="utf-8")
    return runs


def _measure(part: loads.Part, tokens: Sequence[int], options: argparse.Namespace, flush: Callable[[], Any], providers: dict[str, Any]) -> Any:
    found: list[blocks.Measured] = []
    measure, most = (turns.measure, turns.MOST_PAIRS) if options.turns else (blocks.measure, 40)
    expected = len(tokens) if part.loads is loads.PARTS["cpu-generate"].loads else 3
    deadline = time.monotonic() + options.seconds
    for number, load in enumerate(loads.loads_of(part, tokens)):
        if not number:
            # Loading is not counted.
            deadline = time.monotonic() + options.seconds
        load.work.providers.update(providers)
        share = max(0.0, deadline - time.monotonic()) / max(1, expected - number)
        found += measure(load, flush, seconds=share, rounds=options.rounds or most, say=note)
    return costs.lines_of(found)


def _run(part: loads.Part, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one part in this process."""
    import torch

    import inferspan

    run: dict[str, Any] = {"part": part.name, "about": part.about, "lines": [], "sums": [], "logits": []}
    tokens = [positive(word) for word in options.tokens.split(",")]
    if part.sleeping:
        loads.let_waits_sleep()
    # The thread that runs the model then does all of the model's work, and two cores are enough for it and ours.
    torch.set_num_threads(1)
    run["machine"] = machine.describe()
    if warning := machine.busy():
        note(f"WARNING: {warning}")
        run["machine"]["warning"] = warning
    note(f"{part.name}: {part.about}")
    run["sdk_span_ms"] = floors.sdk_span_ms()
    providers: dict[str, Any] = {}

    def flush() -> None:
        inferspan.flush(60)

    if part.host:
        providers, flush_host = loads.host_providers()

        def flush() -> None:
            inferspan.flush(60)
            flush_host()
    else:
        inferspan.configure()
    if part.after_compilation:
        loads.compile_something()
    try:
        run["lines"] = _measure(part, tokens, options, flush, providers)
    finally:
        for provider in providers.values():
            provider.shutdown()
    run["sums"] = costs.fitted(run["lines"])
    run["logits"] = floors.logit_lines(run["lines"], cuda=part.gpu)
    return run


def _chosen(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[loads.Part]:
    if options.part:
        names = options.part.split(",")
        for name in names:
            if name not in loads.PARTS:
                parser.error(f"no part {name!r}: there are {', '.join(loads.PARTS)}")
        parts = [loads.PARTS[name] for name in names]
        if any(part.gpu for part in parts) and not machine.has_gpu():
            parser.error("a part whose name begins with gpu needs an NVIDIA GPU")
        return parts
    return [part for part in loads.PARTS.values() if part.gpu is machine.has_gpu()]


def _each_in_a_process(parts: Sequence[loads.Part], options: argparse.Namespace) -> int:
    """Run parts one after the other, each in a process of its own; the number of those that failed."""
    more = ["--seconds", str(options.seconds), "--tokens", options.tokens, "--json", str(options.json)]
    more += ["--rounds", str(options.rounds)] if options.rounds else []
    more += ["--turns"] if options.turns else []
    failed = 0
    for part in parts:
        command = [sys.executable, "-m", "benchmarks.requests", "--part", part.name, *more]
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            note(f"FAILED: {part.name}")
            failed += 1
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    runs, failed = _read(options.json), 0
    if not options.table:
        parts = _chosen(options, parser)
        if len(parts) > 1:
            if options.json is None:
                parser.error("several parts need --json, where each adds what it has measured")
            failed = _each_in_a_process(parts, options)
            runs = _read(options.json)
        else:
            with receiver() as address:
                leave_out_variables(note)
                os.environ.update(
                    OTEL_EXPORTER_OTLP_ENDPOINT=address, OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf", OTEL_METRIC_EXPORT_INTERVAL="3600000"
                )
                run = _run(parts[0], options)
                from inferspan.export import otlp

                # Before the receiver goes: what is sent at the exit would be retried.
                otlp.shutdown(30)
            runs = _keep(run, options.json, runs)
            failed = sum("problem" in line for line in run["lines"])
    text = costs.render(runs)
    if options.markdown is not None:
        options.markdown.write_text(text, encoding="utf-8")
    print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
