"""``python -m benchmarks``: measure, print tables, write Markdown and JSON. Progress goes to standard error.

Ends with 1 if a row failed: spans were missing at the receiver, or something raised. A missed target is no failure: it is a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import limits, machine, micro, scale, stages, table
from benchmarks.arguments import leave_out_variables, positive
from benchmarks.models import MODELS, Workload
from benchmarks.receiver import receiver
from benchmarks.rounds import measure, note
from benchmarks.rows import ROWS, chosen
from benchmarks.steps import plans

TITLES = {
    "table": ("What it costs", table.COLUMNS),
    "export": ("Rate of export, every module of every step", limits.EXPORT_COLUMNS),
    "memory": ("Memory of a long request", limits.MEMORY_COLUMNS),
    "scale": ("How the cost grows", scale.COLUMNS),
    "micro": ("What a module call costs", micro.COLUMNS),
    "stages": ("What a stage of the program costs", stages.COLUMNS),
}
EPILOG = """
examples:
  python -m benchmarks                                  the plan for a CPU: all parts, ten minutes on two cores
  python -m benchmarks gpu --json gpu.json              the plan for one NVIDIA GPU, about ten minutes
  python -m benchmarks --models smollm2 --rows a/a,def,all --rounds 20
  python -m benchmarks --parts micro,scale
  python -m benchmarks --models llama-8b --mode compiled --tokens 64 --prompt 64

Peers that are not installed are listed as such: pip install -r benchmarks/peers/requirements.txt
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="What inferspan costs: paired ratios against the plain model of the same round, and what stands beside it.",
        epilog=EPILOG + "\nrows: " + ", ".join(row.key for row in ROWS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("plan", nargs="?", choices=[*plans.PLANS], default="cpu", help="default: %(default)s")
    parser.add_argument("--models", metavar="LIST", help=f"measure these instead of the plan's: {', '.join(MODELS)}")
    parser.add_argument("--rows", metavar="LIST", help="only rows whose key begins with one of these words")
    parser.add_argument(
        "--parts", metavar="LIST", help=f"{', '.join(plans.PARTS)}; default: all of the plan, the table alone with --models or --rows"
    )
    parser.add_argument("--rounds", type=positive, help="pairs of every row (default: 40 on a CPU, 60 on a GPU, or what the time allows)")
    parser.add_argument(
        "--mode",
        choices=["eager", "compiled", "prefill"],
        default="eager",
        help="with --models: compiled is a static cache, for which generate() compiles the decode step; prefill names a request of "
        "one token, such as --tokens 1 --prompt 2048 --batch 32",
    )
    parser.add_argument("--tokens", type=positive, default=32, help="with --models: new tokens of a request (default: %(default)s)")
    parser.add_argument("--prompt", type=positive, default=16, help="with --models: tokens of the prompt (default: %(default)s)")
    parser.add_argument("--batch", type=positive, default=1, help="with --models: rows of the prompt (default: %(default)s)")
    parser.add_argument("--threads", type=positive, help="threads of torch; 1 leaves the other core to whatever else runs")
    parser.add_argument(
        "--longest", type=positive, default=100_000, help="tokens of the request whose memory is measured (default: %(default)s)"
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="for all of it (default: 600 on a CPU, 480 on a GPU); loading and compiling may exceed it",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, those of single runs included")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    return parser


def _choose(options: argparse.Namespace, parser: argparse.ArgumentParser) -> tuple[tuple[plans.Case, ...], list[str]]:
    """Cases and parts; a wrong word ends the program with a sentence."""
    plan = plans.PLANS[options.plan]
    some = options.models or options.rows
    parts = options.parts.split(",") if options.parts else ["table"] if some else [*plan.parts]
    for part in parts:
        if part not in plans.PARTS:
            parser.error(f"no part {part!r}: there are {', '.join(plans.PARTS)}")
    try:
        chosen(options.rows)
    except ValueError as error:
        parser.error(str(error))
    cases = plan.cases
    if options.models:
        cases = plans.custom(
            options.models, mode=options.mode, tokens=options.tokens, prompt=options.prompt, batch=options.batch, rows=options.rows
        )
        for case in cases:
            if case.model not in MODELS:
                parser.error(f"no model {case.model!r}: there are {', '.join(MODELS)}")
    if any(case.mode == "compiled" for case in cases) and not machine.has_gpu():
        parser.error("compiled decode needs an NVIDIA GPU: generate() compiles nowhere else")
    return cases, [part for part in plans.PARTS if part in parts]


def _table(
    lines: list[dict[str, Any]],
    cases: Sequence[plans.Case],
    options: argparse.Namespace,
    address: str,
    seconds: float,
    keep: Callable[[], None],
) -> Workload | None:
    """Add the lines of the main table; returns the first workload, for the part after it."""
    first = None
    deadline = time.monotonic() + seconds
    left = sum(case.share for case in cases)
    for case, work in plans.workloads(tuple(cases)):
        note(f"{case.model} {case.mode}: {case.tokens} tokens, prompt {case.prompt}, batch {case.batch}")
        limit = max(0.0, deadline - time.monotonic()) * case.share / left
        left -= case.share
        rows = [row for row in chosen(options.rows) if row in chosen(case.rows)]
        lines += table.lines_of(
            work, measure(work, rows, address, rounds=options.rounds or plans.PLANS[options.plan].rounds, seconds=limit)
        )
        keep()
        first = first or work
        # The next model is loaded before this name would be bound anew.
        del work
    return first


def _run(options: argparse.Namespace, parser: argparse.ArgumentParser, address: str) -> dict[str, Any]:
    import torch

    import inferspan
    from inferspan.export import otlp

    cases, parts = _choose(options, parser)
    if options.threads:
        torch.set_num_threads(options.threads)
    plan = plans.PLANS[options.plan]
    found: dict[str, Any] = {"machine": machine.describe(), "warning": machine.busy(), "command": " ".join(sys.argv[1:])}
    if found["warning"]:
        note(f"WARNING: {found['warning']}")
    inferspan.configure()
    deadline = time.monotonic() + (options.time_limit or plan.seconds)
    shares = {part: plan.parts.get(part, 0.2) for part in parts}
    work: Workload | None = None
    for part in parts:
        seconds = max(0.0, deadline - time.monotonic()) * shares[part] / sum(shares[one] for one in parts[parts.index(part) :])
        found[part] = []
        try:
            if part == "table":
                work = _table(found[part], cases, options, address, seconds, lambda: _write(found, options))
            elif part == "export":
                found[part] = limits.export_rate(work, address, seconds=seconds)
            else:
                with machine.one_thread():
                    found[part] = _SMALL[part](address, seconds, options)
        except Exception as error:  # what was measured before is worth its minutes
            traceback.print_exc()
            found[part].append({"setting": part, "verdict": f"FAILED: {type(error).__name__}: {error}", "failed": True})
        _write(found, options)
    # Before the receiver goes: what is sent at the exit would be retried.
    otlp.shutdown(30)
    return found


_SMALL: dict[str, Callable[[str, float, argparse.Namespace], list[dict[str, Any]]]] = {
    "memory": lambda address, seconds, options: limits.long_request(address, tokens=options.longest),
    "scale": lambda address, seconds, options: scale.scale(address, seconds=seconds),
    "micro": lambda address, seconds, options: micro.micro(address, seconds=seconds),
    "stages": lambda address, seconds, options: stages.stages(address, seconds=seconds),
}
"""Parts whose models are too small for more than one thread."""


def _write(found: dict[str, Any], options: argparse.Namespace) -> None:
    """Write what there is so far: a run that is ended from outside, at a limit of time, keeps what it has measured."""
    if options.markdown:
        options.markdown.write_text(render(found), encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def render(found: dict[str, Any]) -> str:
    """The whole run as Markdown."""
    told = [f"{name}: {value}" for name, value in found["machine"].items()]
    if found["warning"]:
        told.append(f"warning: {found['warning']}")
    parts = ["\n".join(f"- {line}" for line in told)]
    for part, (title, columns) in TITLES.items():
        if part in found:
            parts += [f"### {title}", table.markdown(columns, found[part])]
    if remarks := table.noise(found.get("table", [])):
        parts.append("\n".join(f"- {remark}" for remark in remarks))
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    _choose(options, parser)
    with receiver() as address:
        leave_out_variables(note)
        os.environ.update(
            OTEL_EXPORTER_OTLP_ENDPOINT=address, OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf", OTEL_METRIC_EXPORT_INTERVAL="3600000"
        )
        found = _run(options, parser, address)
    print(render(found))
    failed = [line for part in TITLES for line in found.get(part, []) if line.get("failed")]
    for line in failed:
        note(f"FAILED: {line.get('model')} {line.get('setting', '')}: {line['verdict']}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
