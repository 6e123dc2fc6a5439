"""The command ``replay``: sends recordings to a receiver of OTLP."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .failure import Failure

if TYPE_CHECKING:
    from inferspan.export.client.sending import Client
    from inferspan.replay.run import Outcome
    from inferspan.replay.sending import Totals

__all__ = ["add_replay"]

_NAMED = 20
"""Damaged lines of a file that are named; the others are counted."""
_EVERY = (0.5, 10.0)
"""Seconds between two lines of progress, on a terminal and elsewhere."""
_UNITS = {"traces": ("span", "spans"), "metrics": ("data point", "data points"), "logs": ("log record", "log records")}
_END = """\
files: session files of inferspan and files of a collector's file exporter (format: json or proto), plain or gzipped; - is standard input

headers (tokens), certificates, time limit and compression come from OTEL_EXPORTER_OTLP_HEADERS, ..._CERTIFICATE, ..._TIMEOUT and
..._COMPRESSION, as of every exporter

exit codes: 0 everything was accepted; 1 lines were damaged, or the receiver refused a part; 2 nothing could be sent

examples:
  inferspan replay session.jsonl --endpoint http://localhost:4318          over HTTP
  inferspan replay *.jsonl --endpoint http://localhost:4317 --now          over gRPC, as if it had just happened
"""


def add_replay(commands: Any) -> None:
    """Add ``replay`` to a parser's commands."""
    parser = commands.add_parser(
        "replay",
        help="send session files to a collector, Jaeger or another receiver",
        description="Send recordings by OTLP. Lines that cannot be read are named, and the rest is sent.",
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="files to send, one after the other")
    parser.add_argument(
        "--endpoint", metavar="URL", help="address of the receiver, without /v1/traces; default: OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    parser.add_argument(
        "--protocol",
        choices=("grpc", "http/protobuf", "http"),
        help="default: OTEL_EXPORTER_OTLP_PROTOCOL, else grpc for port 4317, else http/protobuf",
    )
    parser.add_argument("--now", action="store_true", help="move all times so that the recording ends now")
    parser.add_argument(
        "--retry", metavar="S", type=float, default=30.0, help="seconds for which a request is tried again; default: %(default)g"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before gRPC is loaded: it writes about failures to standard error
    from inferspan.export.client.endpoints import guess_protocol
    from inferspan.report.stream import SessionFileError

    if not 0 <= arguments.retry < 86_400:
        raise Failure("--retry takes a number of seconds from 0 to 86400")
    files = [Path("/dev/stdin" if name == "-" else name) for name in arguments.files]
    protocol = {"http": "http/protobuf"}.get(arguments.protocol, arguments.protocol)
    for file in files:
        if not file.exists():
            raise Failure(f"cannot read {file}: No such file or directory. Check the path")
        if arguments.now and not file.is_file():
            raise Failure(f"--now reads {file} twice, which a pipe cannot be: save it to a file first")
    if protocol is None and arguments.endpoint is not None:
        protocol = guess_protocol(os.environ, "traces", arguments.endpoint)
    clients = _clients(arguments.endpoint, protocol)
    try:
        outcome = _replay(arguments, files, clients)
    except SessionFileError as error:
        raise Failure(str(error)) from None
    finally:
        for client in clients.values():
            client.close()
    code = _tell(outcome, clients)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return code


def _clients(address: str | None, protocol: str | None) -> dict[str, Client]:
    from inferspan.export.client.endpoints import endpoint_of
    from inferspan.export.client.sending import connect

    if address is not None and address.rstrip("/").endswith(("/v1/traces", "/v1/metrics", "/v1/logs")):
        address = address.rstrip("/").rpartition("/v1/")[0]
    if address is not None and "://" not in address:
        address = f"http://{address}"
    clients = {}
    for signal in _UNITS:
        endpoint = endpoint_of(signal, os.environ, protocol=protocol, address=address)
        if not endpoint.source:
            raise Failure("replay needs a receiver: give --endpoint http://localhost:4318, or set OTEL_EXPORTER_OTLP_ENDPOINT")
        if endpoint.fault:
            raise Failure(f"cannot send to {endpoint.source}: {endpoint.fault}")
        try:
            clients[signal] = connect(endpoint)
        except ImportError as error:
            raise Failure(str(error)) from None
        except OSError as error:
            raise Failure(f"cannot read {error.filename}, named by OTEL_EXPORTER_OTLP_*CERTIFICATE or KEY: {error.strerror}") from None
    return clients


def _replay(arguments: argparse.Namespace, files: list[Path], clients: dict[str, Client]) -> Outcome:
    from inferspan.replay.run import end_of, replay

    by = 0
    if arguments.now:
        latest = end_of(files)
        by = time.time_ns() - latest if latest else 0
    shown = _Progress(files, quiet=arguments.quiet)
    named: dict[Path, int] = {}

    def damage(file: Path, place: int, why: str) -> None:
        named[file] = named.get(file, 0) + 1
        if named[file] <= _NAMED:
            shown.line(f"{file}:{place}: {why}")
        elif named[file] == _NAMED + 1:
            shown.line(f"{file}: further damaged lines are counted")

    address = clients["traces"].endpoint.address
    try:
        return replay(
            files, clients, by=by, patience=arguments.retry, damage=damage, tell=lambda text: shown.line(f"{address}: {text}"),
            progress=shown.show,
        )  # fmt: skip
    finally:
        shown.clear()


def _tell(outcome: Outcome, clients: dict[str, Client]) -> int:
    """Print what has become of the items, and give the exit code."""
    from inferspan.text.numbers import counted

    totals = outcome.totals
    endpoint = clients["traces"].endpoint
    print(f"{endpoint.address} ({endpoint.protocol}) accepted {_counted(totals.accepted)}")
    if totals.rejected:
        print(f"refused: {_counted(totals.rejected)}")
    for file, number in outcome.files.items():
        print(f"damaged: {counted(number, 'line')} or parts of lines of {file}")
    if outcome.stopped:
        rest = "; the rest was not sent" if totals.accepted else ""
        print(f"inferspan: stopped{rest}: {endpoint.address}: {outcome.stopped}", file=sys.stderr)
        return 1 if totals.accepted else 2
    if not totals.accepted and (totals.rejected or outcome.damaged):
        return 2
    if not totals.accepted and not outcome.interrupted:
        print("inferspan: the files hold no telemetry", file=sys.stderr)
        return 2
    return 1 if totals.rejected or outcome.damaged else 0


def _counted(counts: dict[str, int]) -> str:
    parts = [f"{counts[signal]:,} {words[counts[signal] != 1]}" for signal, words in _UNITS.items() if signal in counts]
    return ", ".join(parts) or "nothing"


class _Progress:
    """How far a replay is, on standard error: one line that changes on a terminal, lines now and then elsewhere."""

    def __init__(self, files: list[Path], *, quiet: bool) -> None:
        self._sizes = {file: file.stat().st_size if file.is_file() else 0 for file in files}
        self._quiet = quiet
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._next = time.monotonic() + (_EVERY[0] if self._terminal else _EVERY[1])
        self._shown = 0

    def show(self, file: Path, position: int, totals: Totals) -> None:
        """Show how far it is, if it is time to."""
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + (_EVERY[0] if self._terminal else _EVERY[1])
        size = self._sizes[file]
        share = f"{min(100, 100 * position // size)} %" if size else f"{position / 1e6:,.0f} MB"
        text = f"{file.name}: {share}, accepted {_counted(totals.accepted)}"
        if self._terminal:
            self._write("\r" + text.ljust(self._shown))
            self._shown = len(text)
        else:
            self._write(text + "\n")

    def line(self, text: str) -> None:
        """Write a line that stays."""
        self.clear()
        self._write(text + "\n")

    def clear(self) -> None:
        """Remove the changing line."""
        if self._shown:
            self._write("\r" + " " * self._shown + "\r")
            self._shown = 0

    def _write(self, text: str) -> None:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
