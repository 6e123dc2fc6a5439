"""The standard ``OTEL_*`` variables that decide what is set up, one signal at a time; nothing of the SDK is loaded here.

In comes an environment, out come names of exporters and checked numbers. An empty variable counts as not set. A value that cannot be
used is a warning, and the default or the nearest thing that works, as everywhere in OpenTelemetry; nothing raises.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from ipaddress import ip_address
from urllib.parse import urlsplit

from inferspan.setting_checks import shown, warn_once, without_secrets

__all__ = [
    "LONGEST_WAIT",
    "SHORTEST_WAIT",
    "SIGNALS",
    "choose_exporters",
    "destination",
    "is_provided",
    "names_destination",
    "per_signal",
    "plain_address",
    "positive_number",
    "read",
    "stays_here",
    "switched_off",
    "unreachable",
    "without_values",
]

SIGNALS = ("traces", "metrics", "logs")
LONGEST_WAIT = threading.TIMEOUT_MAX * 1000 / 2
"""Milliseconds that a thread can be asked to wait."""
SHORTEST_WAIT = 10.0
"""Milliseconds between two batches: a thread that waits for less does nothing else."""
_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_NEAREST = {"http/json": "http/protobuf", "http": "http/protobuf", "protobuf": "http/protobuf", "grpc/protobuf": "grpc"}
"""Protocols of OpenTelemetry that no Python exporter speaks, and other names, with the protocol that comes nearest."""
_NO_SECRETS = ("http", "https", "grpc", "localhost", "traces", "metrics", "logs")
_HOST = re.compile(r"[\w.-]+|\[[0-9A-Fa-f:.]+\]")


def read(environ: Mapping[str, str], *names: str) -> tuple[str, str] | None:
    """The first variable that is set to something, with its value; an empty one counts as not set."""
    return next(((name, value) for name in names if (value := environ.get(name, "").strip())), None)


def positive_number(
    environ: Mapping[str, str], default: float, *names: str, most: float = float("inf"), least: float = 0.0
) -> float:
    """A variable that must be a number above zero, from ``least`` to ``most``; a wrong one is a warning and the default."""
    found = read(environ, *names)
    if found is None:
        return default
    name, text = found
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if 0 < value < float("inf") and least <= value <= most:
        return value
    too_large = f", at most {most:g}" if most < value < float("inf") else ""
    too_small = f", at least {least:g}" if value < least and least > 0 else ""
    warn_once("%s=%s is ignored, %g is used: it must be a number above zero%s", name, shown(text), default, too_large or too_small)
    return default


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


def switched_off(environ: Mapping[str, str], signal: str) -> bool:
    """Whether ``OTEL_{SIGNAL}_EXPORTER`` switches a signal off."""
    found = read(environ, f"OTEL_{signal.upper()}_EXPORTER")
    return found is not None and all(name == "none" for name in _split(found[1]))


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


def plain_address(endpoint: str) -> str | None:
    """Scheme, host and port of an endpoint; ``None`` if it has none, or if it cannot be told which part of it is a secret."""
    scheme, mark, rest = endpoint.rpartition("://") if "://" in endpoint else ("", "", endpoint)
    # A password may have any character, so what follows the last @ of the whole text counts, unless a path or query comes before that.
    before, _, place = rest.rpartition("@")
    place = re.split(r"[/?#]", place, maxsplit=1)[0]
    if re.search(r"[/?#]", before) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*|", scheme):
        return None
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}{mark}{host}{f':{port}' if port is not None else ''}" if _HOST.fullmatch(host) else None


def without_values(text: str, environ: Mapping[str, str]) -> str:
    """A text of an exporter without any word of the endpoints and headers in the environment: they may be secrets."""
    text = without_secrets(text)
    for name, value in environ.items():
        if name.startswith("OTEL_") and name.endswith(("ENDPOINT", "HEADERS")):
            for word in re.split(r"[^\w.+-]+", value):
                if len(word) > 2 and word.lower() not in _NO_SECRETS:
                    text = text.replace(word, "...")
    return text


def unreachable(environ: Mapping[str, str], signals: Iterable[str]) -> dict[str, list[str]]:
    """OTLP exporters of each signal that can never send, because of their endpoint; a warning says what to write instead.

    Over HTTP an endpoint needs a scheme, and the one for all signals gets its path from the exporter, of which a warning tells, too.
    """
    never: dict[str, list[str]] = {}
    told_of_path = set()
    for signal in signals:
        own, base = per_signal(signal, "ENDPOINT")
        found = read(environ, own, base)
        for exporter in choose_exporters(environ, signal) if found else ():
            if found is None or exporter not in _PROTOCOLS.values():
                continue
            name, text = found
            address = plain_address(text)
            label = name if address is None else f"{name}={shown(address)}"
            reason = _malformed(text, http=exporter == "otlp_proto_http")
            if reason is not None:
                warn_once("%s cannot be reached: %s", label, reason)
                never.setdefault(signal, []).append(exporter)
            elif exporter == "otlp_proto_http" and name == base and text not in told_of_path and _has_path_of_a_signal(text):
                told_of_path.add(text)
                warn_once("%s: /v1/%s is added to this variable, so leave the path away or set %s", label, signal, own)
    return never


def _has_path_of_a_signal(endpoint: str) -> bool:
    return endpoint.rstrip("/").endswith(tuple(f"/v1/{signal}" for signal in SIGNALS))


def _malformed(endpoint: str, *, http: bool) -> str | None:
    """Why no exporter can send to an endpoint, if so."""
    try:
        parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
        port, host = parts.port, parts.hostname
    except ValueError:
        return "it is no address"
    if http and (not endpoint.lower().startswith(("http://", "https://"))):
        return "it needs http:// or https:// in front"
    if port == 0 or (not host and (http or parts.scheme in ("http", "https"))):
        return "it names no host and port"
    return None


def _split(text: str) -> list[str]:
    return [part.strip().lower() for part in text.split(",") if part.strip()]


def choose_exporters(environ: Mapping[str, str], signal: str) -> tuple[str, ...]:
    """Entry-point names of the exporters of a signal, without ``none`` and those that no installed package provides."""
    variable, text = read(environ, f"OTEL_{signal.upper()}_EXPORTER") or ("", "otlp")
    chosen: list[str] = []
    for name in _split(text):
        if name == "none":
            continue
        if name == "otlp":
            name = _protocol(environ, signal)
        elif name == "logging":  # its former name in the specification
            name = "console"
        elif name not in _PROTOCOLS.values() and not is_provided(f"opentelemetry_{signal}_exporter", name):
            warn_once("%s=%s: %s is not used: use otlp, console, none, or a list of them", variable, shown(text), shown(name))
            continue
        if name not in chosen:
            chosen.append(name)
    return tuple(chosen)


@functools.cache
def is_provided(group: str, name: str) -> bool:
    """Whether an installed package has an entry point of this name."""
    return bool(tuple(entry_points(group=group, name=name)))


def _protocol(environ: Mapping[str, str], signal: str) -> str:
    variable, text = read(environ, *per_signal(signal, "PROTOCOL")) or ("", "http/protobuf")
    word = text.lower()
    if word not in _PROTOCOLS:
        word = _NEAREST.get(word, "http/protobuf")
        warn_once("%s=%s is ignored, %s is used: use %s", variable, shown(text), word, " or ".join(_PROTOCOLS))
    return _PROTOCOLS[word]
