"""The ``inferspan`` command: the parser of its commands, and how it ends.

In come the arguments; out come text on standard output and an exit code: 0, or 2 with a text on standard error that names the fix.
Nothing here imports torch; the demo does, when it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from inferspan.stack.errors import StackError
from inferspan.version import version as own_version

from .bundle import add_bundle
from .demo import add_demo
from .diff import add_diff
from .doctor import add_doctor
from .explain import add_explain
from .failure import Failure
from .graph import add_graph
from .live import add_live, add_tail
from .machine.peaks import add_peaks
from .parser import Parser
from .replay import add_replay
from .report import add_report
from .run import add_run
from .runs import add_aggregate, add_baseline, add_trend
from .settings import add_settings
from .stack import add_stack
from .trace_graph import add_trace_graph
from .version import add_version

__all__ = ["main"]

_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO) if hasattr(errno, "EDQUOT") else (errno.ENOSPC, errno.EIO)

_EXAMPLES = """\
examples:
  inferspan run --trace-output session.jsonl app.py    record a program, unchanged: every model that it builds and calls
  INFERSPAN_SESSION_FILE=session.jsonl python app.py   record a program that calls inferspan.instrument(model)
  inferspan report session.jsonl -o report.html        look at it in a browser, with no server
  inferspan report session.jsonl --text                look at it in the terminal
  inferspan explain session.jsonl                      why it takes its time, and what to change next
  inferspan replay session.jsonl --endpoint URL --now  send it to a collector afterwards
  inferspan diff base.jsonl new.jsonl --gate 3%        what became slower, with an exit code for CI
  inferspan live session.jsonl                         what runs now, while the program writes the file
  inferspan demo                                       a small real model from PyPI, recorded and reported
  inferspan stack up                                   collector, Jaeger and Prometheus on this machine, no containers
  inferspan settings                                   everything that can be set, with values and environment variables
  inferspan doctor -- python app.py                    why does nothing arrive, and what to do
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: arguments without the program's name; default those of the process.

    Returns:
        The exit code: 0, 2 after an error, 130 after Ctrl-C; 1 of ``stack status`` if not all is well, of
        ``diff`` if there is a regression.
    """
    with _any_encoding(sys.stdout), _any_encoding(sys.stderr):
        return _run(argv)


def _run(argv: Sequence[str] | None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.run is None:
        arguments.run = lambda _: parser.print_help()
    run: Callable[[argparse.Namespace], int | None] = arguments.run
    code = 0
    try:
        code = run(arguments) or 0
        if sys.stdout is not None:
            sys.stdout.flush()
    except (Failure, StackError) as failure:
        print(f"inferspan: {_visible(str(failure))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("inferspan: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (`head`, a pager) has seen enough.
        _discard_output()
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        print(f"inferspan: cannot write to standard output: {error.strerror}", file=sys.stderr)
        _discard_output()
        return 2
    return code


def _visible(text: str) -> str:
    """A message without characters that steer a terminal: names in it come from files and servers."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)


def _discard_output() -> None:
    """Send the rest of standard output nowhere: Python must not fail again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _any_encoding(stream: TextIO | None) -> Iterator[None]:
    """Escape characters that the encoding of a terminal or pipe lacks, such as names of models where it is ASCII."""
    reconfigure = getattr(stream, "reconfigure", None)
    errors = getattr(stream, "errors", None)
    if reconfigure is None or errors is None:
        yield
        return
    reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):  # closed, or full
            reconfigure(errors=errors)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="inferspan",
        description="OpenTelemetry traces and metrics of PyTorch and transformers inference.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"inferspan {own_version()}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(metavar="command")

    for add in (
        add_run, add_report, add_explain, add_live, add_tail, add_replay, add_aggregate, add_trend, add_baseline, add_diff, add_doctor,
        add_settings, add_version, add_demo, add_stack, add_bundle, add_trace_graph, add_graph, add_peaks,
    ):  # fmt: skip
        add(commands)
    return parser
