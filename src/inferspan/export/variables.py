"""The standard ``OTEL_*`` variables that decide what is set up, one signal at a time; nothing of the SDK is loaded here.

In comes an environment, out come names of exporters and checked numbers. An empty variable counts as not set. An unknown exporter
or protocol raises ``SettingsError``; any other wrong value is a warning and the default, as everywhere in OpenTelemetry.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from ipaddress import ip_address
from urllib.parse import urlsplit

from inferspan.settings import SettingsError

__all__ = [
    "SIGNALS",
    "check_endpoints",
    "choose_exporters",
    "destination",
    "names_destination",
    "per_signal",
    "positive_number",
    "read",
    "stays_here",
]

_log = logging.getLogger("inferspan")

SIGNALS = ("traces", "metrics", "logs")
_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


def read(environ: Mapping[str, str], *names: str) -> tuple[str, str] | None:
    """The first variable that is set to something, with its value; an empty one counts as not set."""
    return next(((name, value) for name in names if (value := environ.get(name, "").strip())), None)


def positive_number(environ: Mapping[str, str], default: float, *names: str) -> float:
    """A variable that must be a number above zero; a wrong one is a warning and the default."""
    found = read(environ, *names)
    if found is None:
        return default
    name, text = found
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        _log.warning("%s=%s is ignored, %g is used: it must be a number above zero", name, text, default)
        return default
    return value


def per_signal(signal: str, name: str) -> tuple[str, str]:
    """The variables of an exporter option: that of the signal, which comes first, and that of all signals."""
    return f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", f"OTEL_EXPORTER_OTLP_{name}"


def destination(environ: Mapping[str, str], signal: str) -> str | None:
    """The variable that says where a signal goes, or ``None`` if there is none."""
    found = read(environ, f"OTEL_{signal.upper()}_EXPORTER")
    if found is not None:
        return found[0] if any(name != "none" for name in _split(found[1])) else None
    found = read(environ, *per_signal(signal, "ENDPOINT"))
    return found[0] if found else None


def stays_here(environ: Mapping[str, str], signal: str) -> bool:
    """Whether the endpoint of a signal is on this machine, as the standard's default is."""
    found = read(environ, *per_signal(signal, "ENDPOINT"))
    if found is None:
        return True
    text = found[1] if "://" in found[1] else f"//{found[1]}"
    try:
        host = urlsplit(text).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def names_destination(environ: Mapping[str, str]) -> bool:
    """Whether any standard variable says where telemetry goes."""
    return read(environ, "OTEL_CONFIG_FILE") is not None or any(destination(environ, signal) for signal in SIGNALS)


def check_endpoints(environ: Mapping[str, str], signals: Sequence[str]) -> None:
    """Warn of endpoints that no exporter can use: over HTTP they need a scheme, and the base one gets its path from the exporter."""
    told = set()
    for signal in signals:
        own, base = per_signal(signal, "ENDPOINT")
        found = read(environ, own, base)
        if found is None or found in told or "otlp_proto_http" not in choose_exporters(environ, signal):
            continue
        told.add(found)
        name, text = found
        if not text.lower().startswith(("http://", "https://")):
            _log.warning("%s=%s cannot be reached: it needs http:// or https:// in front", name, text)
        elif name == base and text.rstrip("/").endswith(("/v1/traces", "/v1/metrics", "/v1/logs")):
            _log.warning("%s=%s: /v1/%s is added to this variable, so leave the path away or set %s", name, text, signal, own)


def _split(text: str) -> list[str]:
    return [part.strip().lower() for part in text.split(",") if part.strip()]


def choose_exporters(environ: Mapping[str, str], signal: str) -> tuple[str, ...]:
    """Entry-point names of the exporters of a signal, without ``none``.

    Raises:
        SettingsError: the exporter or the protocol is unknown.
    """
    variable, text = read(environ, f"OTEL_{signal.upper()}_EXPORTER") or ("", "otlp")
    chosen: list[str] = []
    for name in _split(text):
        if name == "none":
            continue
        if name == "otlp":
            name = _protocol(environ, signal)
        elif name not in _PROTOCOLS.values() and not entry_points(group=f"opentelemetry_{signal}_exporter", name=name):
            raise SettingsError(f"{variable} cannot be {text!r}: use otlp, console, none, or a list of them")
        if name not in chosen:
            chosen.append(name)
    return tuple(chosen)


def _protocol(environ: Mapping[str, str], signal: str) -> str:
    variable, text = read(environ, *per_signal(signal, "PROTOCOL")) or ("", "http/protobuf")
    if text.lower() not in _PROTOCOLS:
        raise SettingsError(f"{variable} cannot be {text!r}: use {' or '.join(_PROTOCOLS)}")
    return _PROTOCOLS[text.lower()]
