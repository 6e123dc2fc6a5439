"""``python -m benchmarks.scenarios``: record what is emitted in every scenario, compare two recordings, list the scenarios.

Ends with 1 if a scenario failed or two recordings differ, with 2 if a file cannot be read.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.scenarios import compare, record
from benchmarks.scenarios.cases import SCENARIOS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scenarios", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run the scenarios and write what they emit")
    recording.add_argument("target", type=Path, metavar="OUT.json")
    recording.add_argument("--processes", metavar="LIST", help="only the scenarios of these processes, see `list`")
    comparing = commands.add_parser("compare", help="list what differs between two recordings")
    comparing.add_argument("before", type=Path, metavar="A.json")
    comparing.add_argument("after", type=Path, metavar="B.json")
    comparing.add_argument("--most", type=int, default=200, metavar="LINES", help="longest list (default: %(default)s)")
    commands.add_parser("list", help="names of the scenarios and of their processes")
    playing = commands.add_parser("play", help="run the scenarios of one process in this one; what `record` starts")
    playing.add_argument("process")
    playing.add_argument("target", type=Path)
    return parser


def _record(options: argparse.Namespace) -> int:
    began = time.monotonic()
    failed = record.record(options.target, options.processes.split(",") if options.processes else None)
    for name, reason in failed.items():
        print(f"{name} FAILED: {reason}")
    print(f"{len(record.read(options.target)['scenarios'])} scenarios in {time.monotonic() - began:.0f} s, {len(failed)} failed: {options.target}")
    return 1 if failed else 0


def _compare(options: argparse.Namespace) -> int:
    try:
        before, after = record.read(options.before), record.read(options.after)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if before["versions"] != after["versions"]:
        print(f"recorded with other versions: {before['versions']} and {after['versions']}", file=sys.stderr)
    found = compare.differences(before["scenarios"], after["scenarios"])
    for line in compare.lines(found, most=options.most):
        print(line)
    scenarios = len({one.scenario for one in found})
    print(f"{len(found)} differences in {scenarios} of {len(before['scenarios'])} scenarios" if found else "equal")
    return 1 if found else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    if options.command == "play":
        record.play_process(options.process, options.target)
        sys.stdout.flush()
        # Receivers are gone by now: pipelines that scenarios have set up would try to reach them until their deadline.
        os._exit(0)
    if options.command == "list":
        for scenario in SCENARIOS.values():
            print(scenario.process, scenario.name)
        return 0
    return _record(options) if options.command == "record" else _compare(options)


if __name__ == "__main__":
    sys.exit(main())
