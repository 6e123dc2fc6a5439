"""A trace of a running Jaeger -> a file of OTLP JSON lines that the session reader takes.

In come the address of Jaeger and the id of a trace; out comes a file. Anything that goes wrong is one ``SessionFileError`` that names the
fix. Nothing but the trace is asked for.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from inferspan.report.otlp_lines import objects
from inferspan.report.stream import LONGEST_LINE, SessionFileError

__all__ = ["ADDRESS", "trace_id_of", "write_trace"]

ADDRESS = "http://localhost:16686"
"""Where ``inferspan stack`` has Jaeger."""
_MOST_BYTES = 256 * 1024**2
_MOST_CONTAINERS = 12_000_000
"""Objects and arrays of an answer: an empty one is two bytes of text and 60 bytes or more of memory."""
_PIECE = 1024**2
_SECONDS = 30.0
"""For one operation on the connection."""
_WHOLE = 120.0
"""For all of it: a server that sends a byte now and then keeps each operation short."""
_TRACE = re.compile(r"(?:[0-9a-f]{2}-)?([0-9a-f]{16}|[0-9a-f]{32})(?:-[0-9a-f]{16}-[0-9a-f]{2})?")


class _Address(NamedTuple):
    """Where Jaeger is, without credentials, as messages show it, and the value of the header with these, if any."""

    url: str
    authorization: str | None


_HANDLERS = (
    urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler, urllib.request.HTTPDefaultErrorHandler,
    urllib.request.HTTPErrorProcessor,
)  # fmt: skip
"""All but redirects: credentials and the id of a trace are for the address that was given."""


def trace_id_of(text: str) -> str:
    """The id of a trace as 32 hexadecimal digits; a whole ``traceparent`` is taken, too.

    Raises:
        ValueError: the text is no id of a trace.
    """
    found = _TRACE.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no id of a trace: 32 hexadecimal digits")
    return found[1].rjust(32, "0")


def write_trace(address: str, trace: str, folder: Path, *, seconds: float = _WHOLE, most: int = _MOST_BYTES) -> Path:
    """Ask Jaeger for a trace and write it to a file.

    Args:
        address: of Jaeger's page and API, such as ``http://localhost:16686``, with its base path if it has one. A user and password in
            it are sent as basic authentication and appear in no message.
        trace: as ``trace_id_of`` returns it.
        folder: where the file is made.
        seconds: in which the whole answer has to be there.
        most: bytes of it.

    Raises:
        SessionFileError: the address is none, Jaeger does not answer, does not know the trace, or answers something else.
    """
    found = _address(address)
    blocks = _blocks(_answer(found, trace, seconds, most), found.url)
    if not blocks:
        raise SessionFileError(_unknown(found.url, trace))
    path = folder / f"trace-{trace}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for block in blocks:
            for one in _divided(block):
                file.write(json.dumps({"resourceSpans": [one]}) + "\n")
    return path


def _address(text: str) -> _Address:
    """The parts of an address; what is none is not repeated, for it may hold a password."""
    try:
        parts = urllib.parse.urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not text.isprintable() or not text.isascii() or " " in text:
        raise SessionFileError("what --jaeger gives is no address of Jaeger: one is like http://localhost:16686, without a query")
    user, separator, place = parts.netloc.rpartition("@")
    secret = base64.b64encode(urllib.parse.unquote_to_bytes(user)).decode("ascii") if separator else None
    return _Address(f"{parts.scheme}://{place}{parts.path.rstrip('/')}", secret and f"Basic {secret}")


def _answer(address: _Address, trace: str, seconds: float, most: int) -> Any:
    """The decoded answer; it is read on a thread, because names are looked up and headers read without a limit of time."""
    found: list[bytes | Exception] = []

    def read() -> None:
        try:
            found.append(_read(address, trace, time.monotonic() + seconds, most))
        except Exception as error:
            found.append(error)

    reader = threading.Thread(target=read, name="inferspan-jaeger", daemon=True)
    reader.start()
    reader.join(seconds)
    text: bytes | Exception = found[0] if found else TimeoutError()
    if isinstance(text, Exception):
        raise _failure(text, address.url, trace, seconds) from None
    if len(text) > most or text.count(b"{") + text.count(b"[") > _MOST_CONTAINERS:
        raise SessionFileError(f"the trace {trace} is larger than {most >> 20} MiB: explain a session file instead")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise SessionFileError(_other(address.url)) from None


def _read(address: _Address, trace: str, until: float, most: int) -> bytes:
    """The bytes of the answer, at most one piece more than ``most``."""
    headers = {} if address.authorization is None else {"Authorization": address.authorization}
    request = urllib.request.Request(f"{address.url}/api/v3/traces/{trace}", headers=headers)
    read = bytearray()
    opener = urllib.request.OpenerDirector()
    for handler in _HANDLERS:
        opener.add_handler(handler())
    with opener.open(request, timeout=_SECONDS) as answer:
        while len(read) <= most and (piece := answer.read1(_PIECE)):
            read += piece
            if time.monotonic() > until:
                raise TimeoutError
    return bytes(read)


def _failure(error: Exception, address: str, trace: str, seconds: float) -> SessionFileError:
    """The sentence for what went wrong on the way."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        if error.code in (400, 404):
            return SessionFileError(_unknown(address, trace))
        advice = "give the address that it leads to" if 300 <= error.code < 400 else "check the address"
        return SessionFileError(f"Jaeger at {address} answers {error.code} {_one_line(error.reason)}: {advice} with --jaeger")
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, http.client.HTTPException) and not isinstance(reason, OSError):
        return SessionFileError(_other(address))
    if isinstance(reason, TimeoutError):
        reason = f"the answer is not complete after {seconds:g} s"
    return SessionFileError(
        f"no Jaeger answers at {address}: {_one_line(reason)}. Start one with 'inferspan stack up', give its address with --jaeger, or give"
        " session files"
    )


def _one_line(reason: object) -> str:
    """What a server or the system tells, without what steers a terminal."""
    told = " ".join(str(reason).split())[:200]
    return "".join(sign if sign.isprintable() else "?" for sign in told)


def _blocks(answer: Any, address: str) -> list[dict[str, Any]]:
    result = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(result, dict):
        raise SessionFileError(_other(address))
    blocks = result.get("resourceSpans")
    return [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []


def _divided(block: dict[str, Any]) -> list[dict[str, Any]]:
    """A block in parts whose lines a reader takes."""
    if len(json.dumps(block)) <= LONGEST_LINE // 2:
        return [block]
    return [
        {**block, "scopeSpans": [{**scope, "spans": spans[start : start + 1_000]}]}
        for scope in objects(block, "scopeSpans")
        if isinstance(spans := scope.get("spans"), list)
        for start in range(0, len(spans), 1_000)
    ]


def _other(address: str) -> str:
    return f"what answers at {address} is no Jaeger with the API v3: check the address with --jaeger"


def _unknown(address: str, trace: str) -> str:
    return f"Jaeger at {address} has no trace {trace}: it may be too old, not sampled, or not sent yet"
