"""A trace of a running Jaeger -> a file of OTLP JSON lines that the session reader takes.

In come the address of Jaeger and the id of a trace; out comes a file. Anything that goes wrong is one ``SessionFileError`` that names the
fix. Nothing but the trace is asked for.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from inferspan.report.stream import LONGEST_LINE, SessionFileError

__all__ = ["ADDRESS", "trace_id_of", "write_trace"]

ADDRESS = "http://localhost:16686"
"""Where ``inferspan stack`` has Jaeger."""
_MOST_BYTES = 512 * 1024**2
_SECONDS = 30.0
_TRACE = re.compile(r"(?:[0-9a-f]{2}-)?([0-9a-f]{16}|[0-9a-f]{32})(?:-[0-9a-f]{16}-[0-9a-f]{2})?")


def trace_id_of(text: str) -> str:
    """The id of a trace as 32 hexadecimal digits; a whole ``traceparent`` is taken, too.

    Raises:
        ValueError: the text is no id of a trace.
    """
    found = _TRACE.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no id of a trace: 32 hexadecimal digits")
    return found[1].rjust(32, "0")


def write_trace(address: str, trace: str, folder: Path) -> Path:
    """Ask Jaeger for a trace and write it to a file.

    Args:
        address: of Jaeger's page and API, such as ``http://localhost:16686``, with its base path if it has one.
        trace: as ``trace_id_of`` returns it.
        folder: where the file is made.

    Raises:
        SessionFileError: the address is none, Jaeger does not answer, does not know the trace, or answers something else.
    """
    if not address.startswith(("http://", "https://")):
        raise SessionFileError(f"{address!r} is no address of Jaeger: it begins with http:// or https://")
    blocks = _blocks(_answer(f"{address.rstrip('/')}/api/v3/traces/{trace}", address, trace), address)
    if not blocks:
        raise SessionFileError(_unknown(address, trace))
    path = folder / f"trace-{trace}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for block in blocks:
            for one in _divided(block):
                file.write(json.dumps({"resourceSpans": [one]}) + "\n")
    return path


def _answer(url: str, address: str, trace: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            text = answer.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        if error.code in (400, 404):
            raise SessionFileError(_unknown(address, trace)) from None
        raise SessionFileError(f"Jaeger at {address} answers {error.code} {error.reason}: check the address with --jaeger") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise SessionFileError(
            f"no Jaeger answers at {address}: {reason}. Start one with 'inferspan stack up', give its address with --jaeger, or give"
            " session files"
        ) from None
    if len(text) > _MOST_BYTES:
        raise SessionFileError(f"the trace {trace} is larger than {_MOST_BYTES >> 20} MiB: explain a session file instead")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise SessionFileError(f"what answers at {address} is no Jaeger with the API v3: check the address with --jaeger") from None


def _blocks(answer: Any, address: str) -> list[dict[str, Any]]:
    result = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(result, dict):
        raise SessionFileError(f"what answers at {address} is no Jaeger with the API v3: check the address with --jaeger")
    blocks = result.get("resourceSpans")
    return [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []


def _divided(block: dict[str, Any]) -> list[dict[str, Any]]:
    """A block in parts whose lines a reader takes."""
    if len(json.dumps(block)) <= LONGEST_LINE // 2:
        return [block]
    scopes = [scope for scope in block.get("scopeSpans", ()) if isinstance(scope, dict)]
    return [
        {**block, "scopeSpans": [{**scope, "spans": spans[start : start + 1_000]}]}
        for scope in scopes
        for spans in [scope.get("spans") or []]
        for start in range(0, len(spans), 1_000)
    ]


def _unknown(address: str, trace: str) -> str:
    return f"Jaeger at {address} has no trace {trace}: it may be too old, not sampled, or not sent yet"
