"""``python -m benchmarks.steps``: what recording adds to a decode step, by changing from step to step what is done.

Neighbouring steps meet the same machine, so tenths of a percent show where whole requests drift by ten. In: a model's name, and settings.
Out: without settings, recording taken apart (``parts``); with settings, each of them against the plain model (``pairs``).
Progress goes to standard error. Ends with 1 if a setting failed; a missed target is no failure.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

from benchmarks import machine
from benchmarks.arguments import leave_out_variables, positive
from benchmarks.models import MODELS, load, prepare
from benchmarks.rows import Row
from benchmarks.steps import in_place
from benchmarks.steps.pairs import SETTINGS, measure
from benchmarks.steps.parts import TOKENS, take_apart
from benchmarks.steps.plans import Case, workload
from benchmarks.steps.table import COLUMNS as TABLE
from benchmarks.steps.table import WITHOUT_EXPORT, lines_of
from benchmarks.table import markdown, noise

__all__ = ["COLUMNS", "main"]

COLUMNS = (
    ("part", "what a step does"),
    ("ratio", "ratio"),
    ("added", "more, ms a step"),
    ("error", "standard error"),
    ("each", "us for each module call"),
    ("steps", "steps"),
)
LENGTHS = {"eager": 96, "compiled": 160}
"""Steps of a request whose settings are compared, by mode."""
PROMPT = 64
REQUESTS = 20
EPILOG = """
examples:
  python -m benchmarks.steps --model smollm2
  python -m benchmarks.steps --settings all,default --seconds 300
  python -m benchmarks.steps --model llama-1b --mode compiled --settings unsampled,default --seconds 60 --in-place
  python -m benchmarks.steps --model llama-8b --settings all,all-device,layers-device,default --seconds 240 --json eager.json
  python -m benchmarks.steps --model llama-8b --mode compiled --settings default,top-k,unsampled --seconds 220

settings:
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steps",
        description="What recording adds to a decode step, by changing what is done from step to step. Without --settings: every module's "
        "recording taken apart, with the wrappers of a step left on. With it: whole settings against steps in which nothing of inferspan "
        "is in the way, by the ratio of neighbouring blocks of steps. Export is in neither.",
        epilog=EPILOG + "\n".join(f"  {key:14} {row.name}: {row.gets}" for key, row in SETTINGS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, default="smollm2", help="default: %(default)s")
    parser.add_argument("--requests", type=positive, help=f"requests of {TOKENS} steps each (default: 20); with --settings of each setting")
    parser.add_argument("--settings", metavar="LIST", help="compare these settings, named below")
    parser.add_argument(
        "--mode",
        choices=[*LENGTHS],
        help="with --settings: compiled is a static cache, for which generate() compiles the decode step, on an NVIDIA GPU only "
        f"(default: eager); requests have {' and '.join(f'{steps} ({mode})' for mode, steps in LENGTHS.items())} steps",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="with --settings: end after so many seconds from the start, loading included, with --requests or without; "
        "only loading and the first request, which compiles, are not cut short",
    )
    parser.add_argument("--in-place", action="store_true", help="with --settings: the time of the wrappers of a step, where they run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="with --settings: write all figures, those of single steps included")
    return parser


def _chosen(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Row]:
    """The settings to be compared; a wrong word ends the program with a sentence."""
    keys = [key.strip() for key in (options.settings or "").split(",") if key.strip()]
    for key in keys:
        if key not in SETTINGS:
            parser.error(f"no setting {key!r}: there are {', '.join(SETTINGS)}")
    if not keys and (options.mode or options.seconds is not None or options.json or options.in_place):
        parser.error("--mode, --seconds, --in-place and --json go with --settings")
    if options.mode == "compiled" and not machine.has_gpu():
        parser.error("compiled decode needs an NVIDIA GPU: generate() compiles nowhere else")
    return [SETTINGS[key] for key in keys]


def _say(text: str) -> None:
    print(f"[steps] {text}", file=sys.stderr, flush=True)


def _told(facts: dict[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def _compare(options: argparse.Namespace, rows: list[Row], started: float) -> int:
    """Print the table of settings; 1 if one of them failed."""
    mode = options.mode or "eager"
    facts = machine.describe()
    work = workload(Case(model=options.model, mode=mode, tokens=LENGTHS[mode], prompt=PROMPT), *load(options.model))
    _say(f"{options.model} {mode} is loaded")
    requests = options.requests or (REQUESTS if options.seconds is None else None)
    seconds = math.inf if options.seconds is None else options.seconds - (time.monotonic() - started)
    columns: tuple[tuple[str, str], ...] = TABLE
    remarks = [WITHOUT_EXPORT]
    if options.in_place:
        lines = in_place.lines_of(work, in_place.time_in_place(work, rows, requests=requests, seconds=seconds, say=_say))
        columns = in_place.COLUMNS
    else:
        lines = lines_of(work, measure(work, rows, requests=requests, seconds=seconds, say=_say))
        remarks += noise(lines)
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "command": " ".join(sys.argv[1:]), "table": lines}) + "\n", encoding="utf-8")
    below = "\n".join(f"- {remark}" for remark in remarks)
    print(f"{_told(facts)}\n\n{markdown(columns, lines)}\n\n{below}")
    for line in lines:
        if line.get("failed"):
            _say(f"{line['setting']}: {line['sum' if options.in_place else 'verdict']}")
    return int(any(line.get("failed") for line in lines))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    started = time.monotonic()
    parser = _parser()
    options = parser.parse_args(arguments)
    rows = _chosen(options, parser)
    leave_out_variables(_say)
    if rows:
        return _compare(options, rows, started)
    model, _ = load(options.model)
    calls = prepare(options.model, model).modules
    found = take_apart(model, requests=options.requests or REQUESTS, say=_say)
    lines = [
        {
            "part": one.part,
            "ratio": f"{one.ratio:.3f}",
            "added": f"{one.seconds * 1e3:+.2f}",
            "error": f"{one.error * 1e3:.2f}",
            "each": f"{one.seconds / calls * 1e6:.1f}",
            "steps": one.steps,
        }
        for one in found
    ]
    print(f"{_told(machine.describe())}\n\n{markdown(COLUMNS, lines)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
