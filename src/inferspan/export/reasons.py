"""Why a request of an OTLP exporter failed, in words for the log: messages of the libraries below it, sorted into causes.

In come the texts that the exporter's libraries would have logged and the exception, if any; out comes a clause without addresses and
headers. Statuses of HTTP and gRPC, and the errors of sockets, TLS and name servers are recognised by their words, which have been the
same for years; of an error that is not recognised, only the exception's type is shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus

__all__ = ["SPEAKS_GRPC", "likely_reason", "wrong_protocol"]

_GRPC = "set OTEL_EXPORTER_OTLP_PROTOCOL=grpc, or use the port for HTTP, often 4318"
_HTTP = "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or use the port for gRPC, often 4317"
SPEAKS_GRPC = f"it speaks gRPC: {_GRPC}"
_STATUSES = {
    400: "400: it could not read the request",
    401: "401: the token in OTEL_EXPORTER_OTLP_HEADERS is missing or not accepted",
    403: "403: the token in OTEL_EXPORTER_OTLP_HEADERS may not write here",
    404: "404: it has no receiver for OTLP at this path",
    413: "413: the request was too large for it",
    429: "429: it takes no more at the moment",
}
_GRPC_STATUSES = {
    "UNAUTHENTICATED": _STATUSES[401],
    "PERMISSION_DENIED": _STATUSES[403],
    "UNIMPLEMENTED": "it speaks gRPC, but has no receiver for this signal",
    "RESOURCE_EXHAUSTED": _STATUSES[429],
    "INVALID_ARGUMENT": _STATUSES[400],
}
_CAUSES = (  # the first that is found counts, so the exact ones come first
    (r"http1\.x|Received http2 header with status: [0-9]|Expected SETTINGS frame", f"it does not speak gRPC: {_HTTP}"),
    (r"BadStatusLine\('\\x00", SPEAKS_GRPC),
    (r"Connection refused|actively refused|ECONNREFUSED", "nothing listens there"),
    (
        r"Name or service not known|nodename nor servname|getaddrinfo|NameResolutionError|DNS resolution failed|name resolution"
        r"|Name does not resolve|No address associated|hostname lookup error|Domain name not found",
        "its host name is not known",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed",
        "its certificate is not trusted: name the one that is with OTEL_EXPORTER_OTLP_CERTIFICATE",
    ),
    (
        r"WRONG_VERSION_NUMBER|wrong version number|SSLError|SSL_ERROR|SSLV3|TLSV1|handshake",
        "no TLS connection came about: does it speak TLS?",
    ),
    (r"No route to host|[Nn]etwork is unreachable|EHOSTUNREACH", "there is no route to it"),
    (r"DEADLINE_EXCEEDED|Deadline Exceeded|[Tt]imed out|Timeout", "no answer came in time"),
    (r"ProxyError|Unable to connect to proxy", "the proxy cannot be reached"),
)
_NO_HTTP = r"BadStatusLine|RemoteDisconnected|Connection aborted|ConnectionReset|reset by peer|InvalidChunkLength|IncompleteRead"
_CODE = re.compile(r"\bcode: ([1-5][0-9]{2})\b|\bstatus(?: code)?[:=]? ?([1-5][0-9]{2})\b")


def likely_reason(address: str, lines: Sequence[str], error: Exception | None = None) -> str:
    """The likely reason of a failed request.

    Args:
        address: where it went; its port tells a protocol.
        lines: texts of the libraries below the exporter.
        error: what the exporter raised.
    """
    said = "\n".join([*lines, *([f"{type(error).__name__}: {error}"] if error is not None else [])])
    status = _status(said)
    if status is not None:
        return status
    for pattern, words in _CAUSES:
        if re.search(pattern, said):
            return words
    if re.search(_NO_HTTP, said):
        return f"4317 speaks gRPC: {_GRPC}" if address.endswith(":4317") else "it closed the connection: does it speak OTLP over HTTP?"
    if "due to timeout" in said:
        return "no answer came in time"
    if "UNAVAILABLE" in said:
        return "it cannot be reached"
    return f"the exporter raised {type(error).__name__}" if error is not None else "the exporter gave no reason that is known here"


def wrong_protocol(said: str) -> str | None:
    """What a text of a library says about a receiver that speaks the other protocol, and the fix.

    Empty if that is possible, because the receiver has closed the connection; ``None`` if the text says nothing of it.
    """
    found = next((words for pattern, words in _CAUSES[:2] if re.search(pattern, said)), None)
    return "" if found is None and re.search(_NO_HTTP, said) else found


def _status(said: str) -> str | None:
    found = _CODE.search(said)
    if found is not None:
        code = int(found[1] or found[2])
        if 300 <= code < 400:
            return f"it redirects to another address ({code}{_phrase(code)}), name that one"
        return _STATUSES.get(code, f"it answers {code}{_phrase(code)}")
    for name, words in _GRPC_STATUSES.items():
        if f"StatusCode.{name}" in said:
            return words
    # Of a request that is tried again, the exporter tells no number.
    for code in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT):
        if f"error {code.phrase} encountered" in said:
            return _STATUSES.get(code.value, f"it answers {code.value}{_phrase(code.value)}")
    return None


def _phrase(code: int) -> str:
    try:
        return f" {HTTPStatus(code).phrase}"
    except ValueError:
        return ""
