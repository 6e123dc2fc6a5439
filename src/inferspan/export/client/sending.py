"""One OTLP request and its answer: accepted, refused in part, to be sent again, or in vain.

In come bytes of an ``ExportTraceServiceRequest`` (or of metrics, logs) and an endpoint; out comes an :class:`Answer`. Failures of the
network are answers too. A package that the protocol needs and that is not installed raises ``ImportError``.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from inferspan.export.client.answers import LONGEST_BODY, SERVICES, Taken, cleaned, response_type, taken_by, taken_over_http
from inferspan.export.client.endpoints import Endpoint
from inferspan.export.reasons import likely_reason

__all__ = ["Answer", "Client", "connect"]

ACCEPTED, AGAIN, REFUSED, IN_VAIN = "accepted", "again", "refused", "in vain"
_HTTP_AGAIN = (408, 429, 502, 503, 504)
_HTTP_REFUSED = (400, 413, 422)
_GRPC_AGAIN = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED", "OUT_OF_RANGE", "DATA_LOSS")
_GRPC_REFUSED = ("INVALID_ARGUMENT", "INTERNAL", "FAILED_PRECONDITION", "UNKNOWN")


@dataclass(frozen=True)
class Answer:
    """What became of a request.

    ``state`` is ``accepted`` (``rejected`` items of it were not), ``again`` (it may be accepted later), ``refused`` (this request, not
    the next) or ``in vain`` (every request will fare like it).
    """

    state: str
    reason: str = ""
    rejected: int = 0
    wait: float | None = None
    """Seconds after which the receiver asks for a retry, if it states them."""
    reached: bool = True
    """Whether anything answered."""


class Client(Protocol):
    """Sends requests to one endpoint."""

    endpoint: Endpoint

    def send(self, data: bytes) -> Answer:
        """Send one request and wait for its answer."""

    def close(self) -> None:
        """Close the connection."""


def connect(endpoint: Endpoint) -> Client:
    """A client for an endpoint; nothing is sent yet.

    Raises:
        ImportError: the package of the protocol is not installed; the text says which.
        OSError: a certificate or key cannot be read.
    """
    return _Grpc(endpoint) if endpoint.protocol == "grpc" else _Http(endpoint)


def _is_final(reason: str) -> bool:
    """Whether a failure of the connection will be the same next time."""
    return any(word in reason for word in ("certificate", "TLS", "HTTP", "gRPC", "host name"))


def _is_reached(reason: str) -> bool:
    return not any(word in reason for word in ("nothing listens", "host name", "no route", "no answer", "cannot be reached"))


def _accepted(taken: Taken) -> Answer:
    return Answer(IN_VAIN, taken.failure) if taken.failure else Answer(ACCEPTED, taken.message, rejected=taken.rejected)


class _Http:
    """OTLP over HTTP, by the library that the exporter uses, so that proxies and certificates are found as there."""

    def __init__(self, endpoint: Endpoint) -> None:
        try:
            import requests
        except ImportError:
            raise ImportError("sending over HTTP needs another package: pip install opentelemetry-exporter-otlp-proto-http") from None
        for path in (endpoint.certificate, endpoint.client_certificate, endpoint.client_key):
            if path and not os.path.isdir(path):
                open(path, "rb").close()
        self.endpoint = endpoint
        self._failures = requests.exceptions.RequestException
        self._session = requests.Session()
        self._session.headers.update({"Content-Type": "application/x-protobuf", **endpoint.headers})
        # Given with each request, as the exporter does it: what a session has is less than REQUESTS_CA_BUNDLE.
        self._verify = endpoint.certificate or True
        if endpoint.client_certificate:
            self._session.cert = (endpoint.client_certificate, endpoint.client_key) if endpoint.client_key else endpoint.client_certificate
        if endpoint.compression != "none":
            self._session.headers["Content-Encoding"] = endpoint.compression
        self._pack: Callable[[bytes], bytes] = {"gzip": lambda data: gzip.compress(data, 1), "deflate": zlib.compress}.get(
            endpoint.compression, lambda data: data
        )

    def send(self, data: bytes) -> Answer:
        """POST the request."""
        try:
            answer = self._session.post(
                self.endpoint.url, self._pack(data), timeout=self.endpoint.timeout, allow_redirects=False, stream=True, verify=self._verify
            )
            with answer:
                return self._read(answer)
        except self._failures as error:
            reason = likely_reason(self.endpoint.address, (), error)
            return Answer(IN_VAIN if _is_final(reason) else AGAIN, reason, reached=_is_reached(reason))

    def _read(self, answer: Any) -> Answer:
        status, body = answer.status_code, answer.raw.read(LONGEST_BODY, decode_content=True)
        if status in (200, 202, 204):
            return _accepted(taken_over_http(self.endpoint.signal, answer.headers.get("Content-Type", ""), body))
        reason = likely_reason(self.endpoint.address, [f"code: {status}"])
        if status == 400 and b"HTTPS server" in body:
            return Answer(IN_VAIN, "it speaks TLS: write https:// in front of the address")
        if status in _HTTP_AGAIN:
            return Answer(AGAIN, reason, wait=_number(answer.headers.get("Retry-After")))
        if status in _HTTP_REFUSED:
            text = _status_text(body)
            return Answer(REFUSED, f"{reason} ({text})" if text else reason)
        return Answer(IN_VAIN, reason)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()


def _status_text(body: bytes) -> str:
    """The message of a ``google.rpc.Status``: a receiver's own words, from field 2; empty if there is none."""
    found = re.search(rb"\x12[\x00-\x7f\x80-\xff]{1,2}([\x20-\x7e]{8,300})", body)
    return cleaned(found[1].decode("ascii")) if found else ""


def _number(text: str | None) -> float | None:
    try:
        return min(max(float(text), 0.0), 60.0) if text else None
    except ValueError:
        return None  # a date


class _Grpc:
    """OTLP over gRPC."""

    def __init__(self, endpoint: Endpoint) -> None:
        try:
            import grpc  # type: ignore[import-untyped, unused-ignore]  # it publishes no types
        except ImportError:
            raise ImportError("sending over gRPC needs another package: pip install opentelemetry-exporter-otlp-proto-grpc") from None
        self.endpoint = endpoint
        self._failure = grpc.RpcError
        names = {"gzip": "Gzip", "deflate": "Deflate", "none": "NoCompression"}
        packing = getattr(grpc.Compression, names[endpoint.compression])
        if endpoint.secure:
            trusted, chain, key = map(_content, (endpoint.certificate, endpoint.client_certificate, endpoint.client_key))
            self._channel = grpc.secure_channel(endpoint.url, grpc.ssl_channel_credentials(trusted, key, chain), compression=packing)
        else:
            self._channel = grpc.insecure_channel(endpoint.url, compression=packing)
        module, name = SERVICES[endpoint.signal]
        self._call = self._channel.unary_unary(
            f"/opentelemetry.proto.collector.{module}.v1.{name}Service/Export",
            response_deserializer=response_type(endpoint.signal).FromString,
        )
        self._headers = tuple((key.lower(), value) for key, value in endpoint.headers.items())

    def send(self, data: bytes) -> Answer:
        """Call ``Export`` of the signal's service."""
        try:
            response = self._call(data, timeout=self.endpoint.timeout, metadata=self._headers)
        except self._failure as error:
            return self._failed(error)
        return _accepted(taken_by(response))

    def _failed(self, error: Any) -> Answer:
        code, details = error.code().name, error.details() or ""
        said = f"StatusCode.{code} {details} {getattr(error, 'debug_error_string', lambda: '')()}"
        reason = likely_reason(self.endpoint.address, [said])
        if code == "RESOURCE_EXHAUSTED":
            if "larger than max" in details:
                return Answer(REFUSED, "the request was too large for it")
            return Answer(AGAIN, reason)
        if code in _GRPC_REFUSED and not _is_final(reason):
            return Answer(REFUSED, f"{reason} ({cleaned(details)})")
        again = code in _GRPC_AGAIN and not _is_final(reason)
        return Answer(AGAIN if again else IN_VAIN, reason, reached=_is_reached(reason))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def _content(path: str | None) -> bytes | None:
    if not path:
        return None
    with open(path, "rb") as file:
        return file.read()
