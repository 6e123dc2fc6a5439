"""The commands ``live`` and ``tail``: what runs now, in the terminal, from a session file or a receiver of their own."""

from __future__ import annotations

import argparse
import math
import queue
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .failure import Failure
from .paths import source

__all__ = ["add_live", "add_tail"]

_LISTEN = "127.0.0.1:4318"
_WAITING = 10_000
"""Messages of a receiver that wait to be counted; further senders wait."""


def add_live(commands: Any) -> None:
    """Add ``live`` to a parser's commands."""
    live = commands.add_parser(
        "live",
        help="show in the terminal what runs now",
        description="Requests that run, tokens/s, TTFT and TPOT, readings of GPUs, processor and memory, the hottest\n"
        "modules and warnings, redrawn while they change. Reads a session file that a program writes (it need\n"
        "not exist yet), or listens for OTLP/HTTP as a collector does.",
        epilog="examples:\n  inferspan live session.jsonl\n  inferspan live --listen 127.0.0.1:4318\n"
        "  inferspan live session.jsonl --plain --interval 10 >> figures.log",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_source(live)
    live.add_argument("--interval", metavar="S", type=_seconds, default=3.0, help="seconds between two pictures, 0.1 to 3600 (default: 3)")
    live.set_defaults(run=_run_live)


def add_tail(commands: Any) -> None:
    """Add ``tail`` to a parser's commands."""
    tail = commands.add_parser(
        "tail",
        help="print requests, one a line, as they end",
        description="Prints each request in a line when it has ended. Where the program captures content, its tokens\n"
        "follow, on a terminal in the colour of the model's certainty: green from a probability of 0.9 on,\n"
        "yellow from 0.5, orange from 0.2, else red.",
        epilog="examples:\n  inferspan tail session.jsonl\n  inferspan tail --from-start session.jsonl\n  inferspan tail --listen",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_source(tail)
    tail.add_argument(
        "--from-start", "--all", action="store_true", help="print the requests that are in the file already, too; without it their number"
    )
    tail.set_defaults(run=_run_tail)


def _add_source(parser: Any) -> None:
    one = parser.add_mutually_exclusive_group(required=True)
    one.add_argument("file", metavar="FILE", nargs="?", type=source, help="session file, or - for standard input")
    one.add_argument(
        "--listen", metavar="HOST:PORT", nargs="?", const=_LISTEN, help=f"receive OTLP/HTTP there instead (default: {_LISTEN})"
    )
    parser.add_argument("--plain", action="store_true", help="plain lines also on a terminal; they are used where rich is not installed")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not math.isfinite(value) or not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 3600")
    return value


def _run_live(arguments: argparse.Namespace) -> None:
    from inferspan.live.run import show

    with _source(arguments, from_start=True) as (name, lines):
        show(lines, name, interval=arguments.interval, plain=arguments.plain)


def _run_tail(arguments: argparse.Namespace) -> None:
    from inferspan.live.run import tail

    with _source(arguments, from_start=arguments.from_start) as (_, lines):
        tail(lines, plain=arguments.plain, earlier=arguments.from_start, told=_told)


def _told(text: str) -> None:
    """Print a sentence for the reader, apart from the output."""
    if sys.stderr is not None:
        print(f"inferspan: {text}", file=sys.stderr, flush=True)


class _source:
    """The name and the lines of what the arguments name; ends a receiver with the block."""

    def __init__(self, arguments: argparse.Namespace, *, from_start: bool) -> None:
        self._arguments, self._from_start = arguments, from_start
        self._receiver: Any = None

    def __enter__(self) -> tuple[str, Iterator[Mapping[str, Any] | None]]:
        from inferspan.live.follow import follow
        from inferspan.report.otlp_lines import SessionFileError

        if self._arguments.listen is None:
            path: Path = self._arguments.file
            if path.is_dir():
                raise Failure(f"{path} is a directory: give the path of a session file")

            def lines() -> Iterator[Mapping[str, Any] | None]:
                try:
                    yield from follow(path, from_start=self._from_start, told=_told)
                except SessionFileError as error:
                    raise Failure(str(error)) from None

            return str(path), lines()
        return self._listen()

    def _listen(self) -> tuple[str, Iterator[Mapping[str, Any] | None]]:
        from inferspan.live.receiver import Receiver, address

        arrived: queue.Queue[Mapping[str, Any]] = queue.Queue(_WAITING)
        try:
            self._receiver = Receiver(address(self._arguments.listen), arrived.put)
        except ValueError as error:
            raise Failure(f"--listen {error}") from None
        except OSError as error:
            raise Failure(
                f"cannot listen on {self._arguments.listen}: {error.strerror or error}. A collector may run there: give another port, and"
                " send to it with OTEL_EXPORTER_OTLP_ENDPOINT"
            ) from None
        self._receiver.__enter__()
        print(
            f"listening; send with OTEL_EXPORTER_OTLP_ENDPOINT={self._receiver.where} OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
            file=sys.stderr,
        )

        def lines() -> Iterator[Mapping[str, Any] | None]:
            while True:
                try:
                    yield arrived.get(timeout=0.2)
                except queue.Empty:
                    yield None

        return f"listening on {self._receiver.where}", lines()

    def __exit__(self, *error: object) -> None:
        if self._receiver is not None:
            self._receiver.__exit__(None, None, None)
