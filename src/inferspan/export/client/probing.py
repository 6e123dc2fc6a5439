"""What listens at a port: nothing, TLS, gRPC, HTTP, or something else; found out by asking, without any library of either protocol.

In come host and port; out comes a :class:`Listener`. Nothing raises. Two connections are opened at most for each question, and nothing is
sent but the beginnings of the protocols.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass

__all__ = ["Listener", "listener_at"]

_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_SETTINGS = 4
"""The type of the frame by which a server of HTTP/2 answers."""


@dataclass(frozen=True)
class Listener:
    """What was found at a port."""

    reason: str = ""
    """Why there is no connection; empty if there is one."""
    grpc: bool = False
    http: bool = False
    tls: bool = False
    """Whether it wants TLS; then the protocols are those inside."""

    @property
    def words(self) -> str:
        """What it speaks, in a few words."""
        spoken = " and ".join(name for name, yes in (("gRPC", self.grpc), ("HTTP", self.http)) if yes) or "neither gRPC nor HTTP"
        return self.reason or (f"{spoken} over TLS" if self.tls else spoken)


def listener_at(host: str, port: int, seconds: float = 3.0) -> Listener:
    """Ask what listens at a port.

    Args:
        host: name or address.
        port: its number.
        seconds: time limit of each connection and of each answer.
    """
    try:
        socket.create_connection((host, port), seconds).close()
    except socket.gaierror:
        return Listener("its host name is not known")
    except ConnectionRefusedError:
        return Listener("nothing listens there")
    except (TimeoutError, socket.timeout):  # noqa: UP041 - two classes in Python 3.10 where a connection times out
        return Listener("no answer came in time: a firewall, or a wrong address")
    except (OSError, ValueError, OverflowError) as error:
        return Listener(str(getattr(error, "strerror", None) or error))
    grpc, http = _spoken(host, port, seconds, tls=False)
    if grpc or http:
        # Servers of TLS answer a plain question in plain words; that is not what they speak.
        return Listener(grpc=grpc, http=http) if not _has_tls(host, port, seconds) else _inside_tls(host, port, seconds)
    return _inside_tls(host, port, seconds) if _has_tls(host, port, seconds) else Listener()


def _inside_tls(host: str, port: int, seconds: float) -> Listener:
    grpc, http = _spoken(host, port, seconds, tls=True)
    return Listener(grpc=grpc, http=http, tls=True)


def _spoken(host: str, port: int, seconds: float, *, tls: bool) -> tuple[bool, bool]:
    """Whether it answers HTTP/2 as gRPC needs it, and HTTP/1.1."""
    answer = _ask(host, port, seconds, _HTTP2, "h2" if tls else None, tls=tls)
    grpc = len(answer) >= 9 and answer[3] == _SETTINGS and answer[:2] == b"\0\0"
    question = f"OPTIONS /v1/traces HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode("ascii", "replace")
    http = _ask(host, port, seconds, question, "http/1.1" if tls else None, tls=tls).startswith(b"HTTP/1.")
    return grpc, http


def _ask(host: str, port: int, seconds: float, question: bytes, name: str | None, *, tls: bool) -> bytes:
    try:
        with socket.create_connection((host, port), seconds) as plain:
            plain.settimeout(seconds)
            stream: socket.socket = _open(plain, host, name) if tls else plain
            with stream:
                stream.sendall(question)
                return stream.recv(64)
    except (OSError, ValueError):
        return b""


def _has_tls(host: str, port: int, seconds: float) -> bool:
    try:
        with socket.create_connection((host, port), seconds) as plain:
            plain.settimeout(seconds)
            with _open(plain, host, None):
                return True
    except ssl.SSLError as error:
        # A server that wants a certificate of ours speaks TLS, too.
        return "CERTIFICATE_REQUIRED" in str(error) or "ALERT" in str(error).upper()
    except (OSError, ValueError):
        return False


def _open(plain: socket.socket, host: str, name: str | None) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # who it is matters to the exporter, not here
    if name is not None:
        context.set_alpn_protocols([name])
    return context.wrap_socket(plain, server_hostname=host)
