"""Where a signal goes and how, read from the same variables as the exporters of OpenTelemetry read them.

In come a signal, an environment and what a command line says instead; out comes an :class:`Endpoint`. Nothing raises because of the
environment; an endpoint that is no address has a ``fault``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from opentelemetry.util.re import parse_env_headers

from inferspan.export.client.headers import sendable
from inferspan.export.variables import per_signal, plain_address, read
from inferspan.setting_checks import shown

__all__ = ["PROTOCOLS", "Endpoint", "endpoint_of", "guess_protocol"]

PROTOCOLS = ("grpc", "http/protobuf")
_DEFAULTS = {"grpc": "http://localhost:4317", "http/protobuf": "http://localhost:4318"}


@dataclass(frozen=True)
class Endpoint:
    """One receiver of one signal."""

    signal: str
    protocol: str
    url: str = field(repr=False)
    """As the exporter uses it: over HTTP with the path, over gRPC host and port. May hold a secret."""
    secure: bool
    source: str
    """The variable or option that names the address; empty for the default."""
    headers: Mapping[str, str] = field(repr=False)
    timeout: float
    """Seconds."""
    compression: str
    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None
    fault: str = ""
    """Why nothing can be sent there, independent of the receiver."""

    @property
    def address(self) -> str:
        """Scheme, host and port, without secrets."""
        scheme = "https" if self.secure else "http"
        return plain_address(self.url if "://" in self.url else f"{scheme}://{self.url}") or "an address that cannot be shown"

    @property
    def place(self) -> tuple[str, int]:
        """Host and port.

        Raises:
            ValueError: the address has none.
        """
        parts = urlsplit(self.url if "://" in self.url else f"//{self.url}")
        if not parts.hostname:
            raise ValueError("it names no host")
        return parts.hostname, parts.port or (443 if self.secure else 80)


def guess_protocol(environ: Mapping[str, str], signal: str, address: str | None = None) -> str:
    """The protocol that the environment names, else the one whose usual port ``address`` has, else HTTP."""
    found = read(environ, *per_signal(signal, "PROTOCOL"))
    if found is not None:
        return "grpc" if found[1].lower().startswith("grpc") else "http/protobuf"
    try:
        port = urlsplit(address if "://" in address else f"//{address}").port if address else None
    except ValueError:
        port = None
    return "grpc" if port == 4317 else "http/protobuf"


def endpoint_of(
    signal: str, environ: Mapping[str, str], *, protocol: str | None = None, address: str | None = None, seconds: float | None = None
) -> Endpoint:
    """The receiver of a signal.

    Args:
        signal: ``traces``, ``metrics`` or ``logs``.
        environ: environment to read.
        protocol: one of ``PROTOCOLS``, instead of the environment's.
        address: base address of all signals, instead of the environment's.
        seconds: time limit of one request, instead of the environment's.
    """
    found = ("--endpoint", address) if address is not None else read(environ, *per_signal(signal, "ENDPOINT"))
    protocol = protocol or guess_protocol(environ, signal, address)
    source, text = found if found is not None else ("", _DEFAULTS[protocol])
    own = source == per_signal(signal, "ENDPOINT")[0]
    url = _grpc_target(text) if protocol == "grpc" else text if own else _with_path(text, signal)
    secure = _is_secure(text, environ, signal) if protocol == "grpc" else text.lower().startswith("https://")

    def option(name: str) -> str | None:
        value = read(environ, *per_signal(signal, name))
        return value[1] if value else None

    return Endpoint(
        signal=signal,
        protocol=protocol,
        url=url,
        secure=secure,
        source=source,
        headers=parse_env_headers(sendable(option("HEADERS") or "", (protocol,)).text, liberal=True),
        timeout=seconds if seconds is not None else _seconds(option("TIMEOUT")),
        compression=_compression(option("COMPRESSION"), text),
        certificate=option("CERTIFICATE"),
        client_certificate=option("CLIENT_CERTIFICATE"),
        client_key=option("CLIENT_KEY"),
        fault=_fault(text, protocol),
    )


def _grpc_target(text: str) -> str:
    """Host and port, as the exporter takes them out of an address; anything without a scheme is passed as it is."""
    parts = urlsplit(text)
    return parts.netloc.rpartition("@")[2] or text


def _with_path(text: str, signal: str) -> str:
    text = text.rstrip("/")
    return text if text.endswith(f"/v1/{signal}") else f"{text}/v1/{signal}"


def _is_secure(text: str, environ: Mapping[str, str], signal: str) -> bool:
    """As the gRPC exporter decides: by the scheme, then by the variable; an address without a scheme is one with TLS."""
    scheme = urlsplit(text).scheme
    said = read(environ, *per_signal(signal, "INSECURE"))
    if scheme == "https":
        return True
    return said[1].lower() != "true" if said is not None else scheme != "http"


def _seconds(text: str | None) -> float:
    try:
        value = float(text or 10)
    except ValueError:
        return 10.0
    if not 0 < value < 86_400_000:
        return 10.0
    return value / 1000 if value >= 1000 else value


def _compression(text: str | None, address: str) -> str:
    if text is not None and text.lower() in ("none", "gzip", "deflate"):
        return text.lower()
    return "none" if any(host in address for host in ("localhost", "127.0.0.1", "[::1]")) else "gzip"


def _fault(text: str, protocol: str) -> str:
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return f"{shown(text)} is no address"
    if protocol != "grpc" and not text.lower().startswith(("http://", "https://")):
        return "over HTTP an address needs http:// or https:// in front"
    if not host or port == 0:
        return "the address names no host and port"
    return ""
