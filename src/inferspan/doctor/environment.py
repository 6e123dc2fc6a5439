"""Every variable of OpenTelemetry and of inferspan that is set: what it is understood as, and what is wrong with it.

Values of variables that hold secrets, or that are not known, are not shown.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points

from opentelemetry.util.re import parse_env_headers

from inferspan import setting_checks
from inferspan.doctor.findings import Finding, Look, note, ok, problem
from inferspan.export import sdk_variables, variables
from inferspan.settings import (
    CAPTURE_VARIABLE,
    EVENT_VARIABLE,
    EXCEPTION_VARIABLE,
    NO_SETTINGS,
    STABILITY_VARIABLE,
    Settings,
    describe,
)  # fmt: skip

__all__ = ["complaints", "environment", "known_variables"]

_OWN = re.compile(r"OTEL_|INFERSPAN_", re.IGNORECASE)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|CLIENT_KEY|API_KEY|_AUTH")
_OTHERS = (
    CAPTURE_VARIABLE, EVENT_VARIABLE, EXCEPTION_VARIABLE, STABILITY_VARIABLE, "OTEL_CONFIG_FILE", "OTEL_EXPERIMENTAL_CONFIG_FILE",
    "OTEL_PYTHON_ID_GENERATOR", "OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_METER_PROVIDER", "OTEL_PYTHON_LOGGER_PROVIDER",
    "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "OTEL_PYTHON_DISTRO", "OTEL_PYTHON_CONFIGURATOR", "OTEL_METRICS_EXEMPLAR_FILTER",
    "OTEL_PYTHON_CONTEXT", "OTEL_PYTHON_LOG_CORRELATION", "OTEL_PYTHON_LOG_LEVEL", "OTEL_PYTHON_LOG_FORMAT",
)  # fmt: skip
_OPTIONS = (
    "ENDPOINT", "PROTOCOL", "HEADERS", "TIMEOUT", "COMPRESSION", "CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY", "INSECURE",
)  # fmt: skip
_HOSTS = ("OTEL_PYTHON_", "OTEL_INSTRUMENTATION_", "OTEL_GO_", "OTEL_JAVA")
"""Beginnings of variables that other libraries may read."""


@cache
def known_variables() -> frozenset[str]:
    """Names that OpenTelemetry for Python, or inferspan, reads."""
    names = {*_OTHERS, *NO_SETTINGS, *(variable for _, variable, _, _ in describe())}
    for signal in ("", "TRACES_", "METRICS_", "LOGS_"):
        names.update(f"OTEL_EXPORTER_OTLP_{signal}{option}" for option in _OPTIONS)
    for entry in entry_points(group="opentelemetry_environment_variables"):
        try:
            module = importlib.import_module(entry.value)
        except Exception:  # of a package that is broken: its variables are not known then
            continue
        # Those that are not public yet are constants with an underscore.
        values = [value for value in vars(module).values() if isinstance(value, str)]
        names.update(name for name in (*dir(module), *values) if re.fullmatch(r"OTEL_[A-Z0-9_]+", name))
    return frozenset(names)


def environment(look: Look) -> Iterator[Finding]:
    """A finding for each variable, and one if there is none."""
    wrong = complaints(look.environ)
    found = False
    for name in sorted(look.environ):
        if _OWN.match(name):
            found = True
            yield _judged(name, look, wrong)
    if not found:
        yield note("variables", "none of OTEL_* and INFERSPAN_* is set")


def _judged(name: str, look: Look, wrong: Mapping[str, list[str]]) -> Finding:
    raw = look.environ[name]
    known = name in known_variables() or name.startswith("INFERSPAN_STACK_")
    value = _shown(name, raw) if known else f"not shown, {len(raw)} characters"
    source = "" if look.outside.get(name) == raw else f"set by {look.started_by or 'the command'}"
    if not known:
        # Libraries have many variables of their own under these beginnings, and some are near to one another.
        cutoff = 0.93 if name.startswith(_HOSTS) else 0.85
        close = difflib.get_close_matches(name.upper(), known_variables(), n=1, cutoff=cutoff)
        if close:
            return problem(name, "nobody reads it", f"did you mean {close[0]}?", source)
        if name.startswith("INFERSPAN_"):
            return problem(name, "it is no setting and is ignored", "inferspan settings lists all of them", source)
        other = "another library may read it" if name.startswith(_HOSTS) else "not known to OpenTelemetry for Python"
        return note(name, other, source)
    if name in wrong:
        return problem(name, value, "; ".join(wrong[name]), source)
    if name == "OTEL_SDK_DISABLED" and raw.strip().lower() == "true":
        return problem(name, "everything is switched off", "unset it, or set it to false", source)
    if not raw.strip():
        return note(name, "empty, which counts as not set", source)
    return ok(name, value, source)


def _shown(name: str, raw: str) -> str:
    if name.endswith("_HEADERS"):
        keys = sorted(parse_env_headers(raw, liberal=True))
        return ", ".join(f"{key}=***" for key in keys) if keys else "no header that can be read"
    if _SECRET.search(name):
        return "***"
    if name.endswith("_ENDPOINT"):
        address = variables.plain_address(raw)
        if address is None:
            return "an address that cannot be shown"
        path = re.sub(r"^[^?#]*?://[^/?#]*|^[^/?#]*", "", raw.rpartition("@")[2] if "@" in raw else raw)
        return address + re.split(r"[?#]", path)[0]
    return setting_checks.shown(raw)


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def complaints(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """What is wrong with the variables, by variable: the warnings that a program would log, none of which is logged here."""
    log, kept = logging.getLogger("inferspan"), _Kept()
    before, propagate, level, told = set(setting_checks.warned), log.propagate, log.level, setting_checks.warned
    log.addHandler(kept)
    log.propagate, log.level = False, logging.WARNING
    told.clear()
    try:
        Settings.resolve(environ=environ)
        for signal in variables.SIGNALS:
            variables.choose_exporters(environ, signal)
        variables.unreachable(environ, [signal for signal in variables.SIGNALS if variables.destination(environ, signal)])
        unusable = sdk_variables.unusable(environ)
    finally:
        log.removeHandler(kept)
        log.propagate, log.level = propagate, level
        told.clear()
        told.update(before)
    found: dict[str, list[str]] = {}
    for text in kept.texts:
        name = re.match(r"[A-Z][A-Z0-9_]+", text)
        if name is not None:
            found.setdefault(name[0], []).append(_reason(text))
    for item in unusable:
        found.setdefault(item.name, []).append(item.reason)
    return found


def _reason(text: str) -> str:
    """A warning without the variable and the setting that it names first."""
    reason = text.partition(": ")[2] or text
    return reason.partition(": ")[2] or reason if reason.startswith("inferspan setting ") else reason
