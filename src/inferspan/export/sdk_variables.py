"""Variables that the SDK and its exporters read themselves: those that they would fail on are hidden from them.

The SDK raises ``ValueError`` for a wrong limit, also while it is imported, and OTLP exporters fail at each request on a certificate that
is not there. ``hidden()`` warns once of each such variable and takes it out of ``os.environ`` while the SDK reads it, so that the
SDK's default counts. What can be used is never touched.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from inferspan.export.client.headers import sendable
from inferspan.export.variables import SIGNALS, is_provided, per_signal, read
from inferspan.setting_checks import shown, warn_once

__all__ = ["PROVIDERS", "Unusable", "hidden", "import_sdk", "unusable"]

_LIMITS = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT",
)
_SAMPLERS = ("always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio")
_EXEMPLARS = ("trace_based", "always_on", "always_off")
_DETECTORS = "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS"
_RESOURCE = "OTEL_RESOURCE_ATTRIBUTES"
_INTERNAL = "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED"
_CONTEXT = "OTEL_PYTHON_CONTEXT"
_READ_AT_IMPORT = ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", _DETECTORS, _RESOURCE, _CONTEXT)
"""Default arguments of the SDK's log records are resources."""
_RETRYABLE = "OTEL_PYTHON_EXPORTER_OTLP_GRPC_RETRYABLE_ERROR_CODES"
PROVIDERS = {
    "traces": ("OTEL_PYTHON_TRACER_PROVIDER", "opentelemetry_tracer_provider"),
    "metrics": ("OTEL_PYTHON_METER_PROVIDER", "opentelemetry_meter_provider"),
    "logs": ("OTEL_PYTHON_LOGGER_PROVIDER", "opentelemetry_logger_provider"),
}
"""The variable by which the API makes the global provider of a signal, and the entry points that it looks in."""
_lock = threading.RLock()


class Unusable(NamedTuple):
    """A variable that cannot be used: why, and the part of its value that can, if any."""

    name: str
    reason: str
    rest: str | None = None
    instead: str | None = None
    """A default that the SDK must be told, because it logs a line where there is none."""

    @property
    def used(self) -> str | None:
        """What the SDK is to read."""
        return self.rest or self.instead


def unusable(environ: Mapping[str, str]) -> list[Unusable]:
    """Variables of the SDK and of the OTLP exporters that would make them fail."""
    checks = (_limits, _choices, _detectors, _resource, _context, _providers, _files, _credentials, _codes, _headers)
    return [item for check in checks for item in check(environ)]


@contextlib.contextmanager
def hidden(*, logged: bool = True) -> Iterator[None]:
    """Hide variables that cannot be used while the SDK reads its environment; a warning names each, once.

    Args:
        logged: whether the warnings are logged.
    """
    with _lock:
        found = unusable(os.environ)
        for item in found:
            if logged and os.environ[item.name].strip():
                # The key itself instead of the path of its file is a secret, and headers are often one.
                value = "" if item.name.endswith(("CLIENT_KEY", "HEADERS")) else f"={shown(os.environ[item.name])}"
                warn_once("%s%s is %s: %s", item.name, value, "used in part" if item.rest else "ignored", item.reason)
        before = {item.name: os.environ[item.name] for item in found}
        try:
            for item in found:
                os.environ.pop(item.name, None)
                if item.used:
                    os.environ[item.name] = item.used
            yield
        finally:
            for item in found:
                if os.environ.get(item.name) == (item.used or None):  # otherwise the program has set it in the meantime
                    os.environ[item.name] = before[item.name]


def import_sdk() -> None:
    """Import the SDK where one of the variables that it reads while it is imported cannot be used; otherwise that can wait."""
    if not any(name in os.environ for name in _READ_AT_IMPORT) or "opentelemetry.sdk.trace" in sys.modules:
        return
    if any(item.name in _READ_AT_IMPORT for check in _IMPORT_CHECKS for item in check(os.environ)):
        with hidden(logged=False):  # the program has usually not set its logging up yet
            import opentelemetry.sdk._logs
            import opentelemetry.sdk.trace  # noqa: F401 - imported for their side effects


# ---------------------------------------------------------------------------------------------------------------- the checks
def _limits(environ: Mapping[str, str]) -> Iterator[Unusable]:
    for name in _LIMITS:
        if name in environ and not _is_limit(environ[name].strip().lower()):
            yield Unusable(name, "it must be a whole number that is not negative, or empty")


def _is_limit(text: str) -> bool:
    try:
        return text == "" or 0 <= int(text) <= sys.maxsize
    except ValueError:
        return False


def _choices(environ: Mapping[str, str]) -> Iterator[Unusable]:
    sampler = environ.get("OTEL_TRACES_SAMPLER", "").lower()
    if sampler and sampler not in _SAMPLERS:
        yield Unusable("OTEL_TRACES_SAMPLER", f"it must be one of {', '.join(_SAMPLERS)}")
    ratio = environ.get("OTEL_TRACES_SAMPLER_ARG")
    if sampler in _SAMPLERS and "ratio" in sampler and ratio is not None and not _is_ratio(ratio):
        yield Unusable("OTEL_TRACES_SAMPLER_ARG", "it must be a number from 0 to 1; everything is sampled", instead="1.0")
    if environ.get("OTEL_METRICS_EXEMPLAR_FILTER", "trace_based") not in _EXEMPLARS:
        yield Unusable("OTEL_METRICS_EXEMPLAR_FILTER", f"it must be one of {', '.join(_EXEMPLARS)}")
    if environ.get(_INTERNAL, "false").strip().lower() not in ("true", "false"):
        yield Unusable(_INTERNAL, "it must be true or false")


def _is_ratio(text: str) -> bool:
    try:
        return 0.0 <= float(text) <= 1.0
    except ValueError:
        return False


def _detectors(environ: Mapping[str, str]) -> Iterator[Unusable]:
    names = [name.strip() for name in environ.get(_DETECTORS, "").split(",") if name.strip()]
    good = [name for name in names if name == "*" or is_provided("opentelemetry_resource_detector", name)]
    if good != names:
        missing = ", ".join(shown(name) for name in names if name not in good)
        yield Unusable(_DETECTORS, f"no package provides {missing}", ",".join(good) or None)


def _resource(environ: Mapping[str, str]) -> Iterator[Unusable]:
    pairs = environ.get(_RESOURCE, "").split(",")
    good = [pair for pair in pairs if pair.partition("=")[0].strip() and "=" in pair]
    if good != pairs and environ.get(_RESOURCE):
        yield Unusable(_RESOURCE, "entries that are not name=value, separated by commas, are left out", ",".join(good) or None)


def _context(environ: Mapping[str, str]) -> Iterator[Unusable]:
    if environ.get(_CONTEXT) and not is_provided("opentelemetry_context", environ[_CONTEXT]):
        yield Unusable(_CONTEXT, "no package provides it")


_IMPORT_CHECKS = (_limits, _detectors, _resource, _context)


def _providers(environ: Mapping[str, str]) -> Iterator[Unusable]:
    for name, group in PROVIDERS.values():
        if name in environ and not is_provided(group, environ[name]):
            yield Unusable(name, "no package provides it")


def _files(environ: Mapping[str, str]) -> Iterator[Unusable]:
    for middle in ("", *(f"{signal.upper()}_" for signal in SIGNALS)):
        start = f"OTEL_EXPORTER_OTLP_{middle}"
        trusted, chain, key = (environ.get(start + end, "") for end in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"))
        if trusted and (reason := _unreadable(trusted, trusted=True)) is not None:
            yield Unusable(start + "CERTIFICATE", reason)
        wrong = {
            end: reason
            for end, path in (("CLIENT_CERTIFICATE", chain), ("CLIENT_KEY", key))
            if path and (reason := _unreadable(path)) is not None
        }
        if chain and not wrong and (reason := _no_pair(chain, key)) is not None:
            wrong = {"CLIENT_CERTIFICATE": reason}
        for end, path in (("CLIENT_CERTIFICATE", chain), ("CLIENT_KEY", key)) if wrong else ():
            if path:  # one without the other is of no use
                yield Unusable(start + end, wrong.get(end, "the other file of the pair cannot be used"))


def _unreadable(path: str, *, trusted: bool = False) -> str | None:
    try:
        if trusted and os.path.isdir(path):
            return None
        if not os.path.isfile(path):
            return "there is no such file"
        with open(path, "rb"):
            pass
        if trusted:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError:
        return "the file holds no certificate"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or "the file cannot be read"
    return None


def _no_pair(chain: str, key: str) -> str | None:
    try:
        # A key that is encrypted would have the exporters ask for its password on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(chain, key or None, password=lambda: "")
    except (OSError, ValueError):
        return "certificate and key cannot be used together"
    return None


def _credentials(environ: Mapping[str, str]) -> Iterator[Unusable]:
    for name in list(environ):
        wanted = name.startswith("OTEL_PYTHON_EXPORTER_OTLP_") and name.endswith("_CREDENTIAL_PROVIDER")
        if wanted and environ[name] and not is_provided("opentelemetry_otlp_credential_provider", environ[name]):
            yield Unusable(name, "no package provides it")


def _codes(environ: Mapping[str, str]) -> Iterator[Unusable]:
    words = [word.strip() for word in environ.get(_RETRYABLE, "").split(",") if word.strip()]
    if words and "grpc" in sys.modules:
        from grpc import StatusCode  # type: ignore[import-untyped, unused-ignore]  # it publishes no types

        good = [word for word in words if word.upper() in StatusCode.__members__]
        if good != words:
            yield Unusable(_RETRYABLE, "it must be names of gRPC's status codes", ",".join(good) or None)


def _headers(environ: Mapping[str, str]) -> Iterator[Unusable]:
    for name, signals in (
        ("OTEL_EXPORTER_OTLP_HEADERS", SIGNALS),
        *((f"OTEL_EXPORTER_OTLP_{signal.upper()}_HEADERS", (signal,)) for signal in SIGNALS),
    ):
        good, others = sendable(environ.get(name, ""), _protocols(environ, *signals))
        if others:
            over_grpc = "grpc" in _protocols(environ, *signals)
            rule = "over gRPC names have small letters, and values ASCII" if over_grpc else "values are Latin-1"
            which = f"header{'s' * (len(others) > 1)} {', '.join(others)}"
            yield Unusable(name, f"the {which} cannot be sent: {rule}, without control characters", good or None)


def _protocols(environ: Mapping[str, str], *signals: str) -> set[str]:
    """The protocols that some signals are sent by."""
    found = set()
    for signal in signals:
        chosen = [name.strip().lower() for name in environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").split(",")]
        protocol = (read(environ, *per_signal(signal, "PROTOCOL")) or ("", "http/protobuf"))[1].lower()
        named = {"grpc" if name == "otlp_proto_grpc" else "http/protobuf" for name in chosen if name.startswith("otlp_proto_")}
        found |= named or {"grpc" if protocol.startswith("grpc") else "http/protobuf"}
    return found
