"""The command ``doctor``: what works here, what does not, and the fix."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from .failure import Failure

__all__ = ["add_doctor"]

_END = """\
Without a command, doctor looks at this Python and this environment. With one, it starts the same launcher and the same Python with the
same variables, and looks from there: the program itself is not run, but its text is read for inferspan.instrument() and providers of
its own.

It sends one span named "inferspan doctor" to the endpoint, and empty requests for metrics and logs; --no-send sends nothing. Tokens
and keys are never shown.

exit codes: 0 no problem (there may be warnings), 1 problems, each with its fix, 2 it cannot look

examples:
  inferspan doctor
  inferspan doctor -- python app.py
  inferspan doctor -- inferspan run --include 'my_app.*' app.py
  inferspan doctor --json -- opentelemetry-instrument python app.py
"""


def add_doctor(commands: Any) -> None:
    """Add ``doctor`` to a parser's commands."""
    doctor = commands.add_parser(
        "doctor",
        help="find out why nothing arrives, and the fix",
        usage="inferspan doctor [--json] [--no-send] [--timeout S] [-- command ...]",
        description="Look at versions, environment, endpoints, permissions, and say what to fix.",
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("--json", action="store_true", help="as JSON, for programs and bug reports")
    doctor.add_argument("--no-send", action="store_true", help="send no test span; endpoints are still looked at")
    doctor.add_argument(
        "--timeout", metavar="S", type=float, default=5.0, help="seconds for each connection and request; default: %(default)g"
    )
    doctor.add_argument("words", metavar="command", nargs=argparse.REMAINDER, help="the command that starts a program, after --")
    doctor.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from inferspan.doctor.command import NotUnderstood, here, understand
    from inferspan.doctor.examine import examine
    from inferspan.doctor.output import as_json, show

    if not 0 < arguments.timeout <= 60:
        raise Failure("--timeout takes a number of seconds, more than 0 and at most 60")
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    try:
        command = understand(words, os.environ) if words else here(os.environ)
    except NotUnderstood as error:
        raise Failure(str(error)) from None
    waiting = "looking ..." if sys.stderr is not None and sys.stderr.isatty() and not arguments.json else ""
    if waiting:
        print(waiting, end="", file=sys.stderr, flush=True)
    result = examine(command, os.environ, has_command=bool(words), send=not arguments.no_send, seconds=arguments.timeout)
    if waiting:
        print("\r" + " " * len(waiting) + "\r", end="", file=sys.stderr, flush=True)
    if arguments.json:
        print(as_json(result, words))
    else:
        show(result, sys.stdout)
    return 1 if result.problems else 0
