"""Whose providers are used, and where the session file goes."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from typing import Any

from inferspan.doctor.findings import Finding, Look, note, ok, problem
from inferspan.doctor.scripts import Script
from inferspan.doctor.settings import in_force
from inferspan.export import variables
from inferspan.export.providers import current_provider, host_has_none
from inferspan.settings import SettingsError

__all__ = ["providers", "session_file"]

_PACKAGE = "opentelemetry-exporter-otlp-proto-"
_WORDS = {"http": "OTLP over HTTP", "grpc": "OTLP over gRPC"}
_FIX = (
    "set OTEL_EXPORTER_OTLP_ENDPOINT to the address of a collector (inferspan stack up starts one), or INFERSPAN_SESSION_FILE to the path"
    " of a file"
)


def providers(look: Look) -> Iterator[Finding]:
    """For each signal, whose provider it is and what it exports to."""
    script: Script | None = look.shared.get("script")
    ours = look.shared["ours"] = {}
    file = in_force(look).session_file
    named = file is not None or variables.names_destination(look.environ)
    by_program = script is not None and ("session_file" in script.arguments or "configure" in script.calls or bool(script.providers))
    for signal in variables.SIGNALS:
        if not host_has_none(signal):
            yield _of_the_host(signal, look)
        elif script is not None and signal in script.providers:
            yield note(signal, f"the program's own, set at {script.path}:{script.providers[signal]}")
        elif variables.destination(look.environ, signal) is None:
            if file is not None:
                yield ok(signal, "inferspan's, to the session file")
        else:
            ours[signal] = [name.removeprefix("otlp_proto_") for name in variables.choose_exporters(look.environ, signal)]
            targets = ", ".join([_WORDS.get(name, name) for name in ours[signal]])
            for kind in ours[signal]:
                if kind in _WORDS and not _installed(f"opentelemetry.exporter.otlp.proto.{kind}"):
                    yield problem(signal, f"the exporter for {_WORDS[kind]} is not installed", f"pip install {_PACKAGE}{kind}")
            yield ok(signal, f"inferspan's, {targets or 'nothing'}{', and the session file' if file else ''}")
    if variables.read(look.environ, "OTEL_CONFIG_FILE") is not None:
        yield _config_file(look.environ["OTEL_CONFIG_FILE"].strip())
    if not named and not by_program and all(host_has_none(signal) for signal in ("traces", "metrics")):
        yield problem("destination", "none is named: nothing leaves the process", _FIX)


def _of_the_host(signal: str, look: Look) -> Finding:
    provider: Any = current_provider(signal)
    who = f"set by {look.started_by}" if look.started_by else "set before the program"
    exporters = sorted(set(_exporters(provider)))
    text = f"{type(provider).__module__.partition('.')[0]} {type(provider).__name__}, {who}"
    if exporters:
        look.shared["ours"][signal] = [kind for kind in ("grpc", "http") if any(kind in name for name in exporters)]
        return ok(signal, f"{text}: {', '.join(name.rpartition('.')[2] for name in exporters)}")
    if signal == "logs":
        return note(signal, f"{text}: no exporter that is known here")
    return problem(signal, f"{text}: it has no exporter, so nothing is sent", f"set OTEL_{signal.upper()}_EXPORTER=otlp, or give it one")


def _exporters(provider: Any) -> Iterator[str]:
    """Full names of the classes of a provider's exporters, as far as its parts show them."""
    seen: list[Any] = [provider]
    for _ in range(6):
        found = []
        for part in seen:
            if "xporter" in type(part).__name__ or type(part).__name__ == "PrometheusMetricReader":
                yield f"{type(part).__module__}.{type(part).__name__}"
                continue
            for name in (
                "_active_span_processor", "_span_processors", "_multi_log_record_processor", "_log_record_processors", "_sdk_config",
                "metric_readers", "_metric_readers", "_batch_processor", "_exporter", "span_exporter",
            ):  # fmt: skip
                inner = getattr(part, name, None)
                found += list(inner) if name.endswith("s") and isinstance(inner, Iterable) else [inner] if inner is not None else []
        seen = found


def _config_file(path: str) -> Finding:
    if not _installed("opentelemetry.configuration"):
        return problem("OTEL_CONFIG_FILE", path, "reading it takes pip install opentelemetry-configuration")
    if not os.path.isfile(path):
        return problem("OTEL_CONFIG_FILE", f"{path}: there is no such file", "check the path")
    return note("OTEL_CONFIG_FILE", f"{path} sets the providers up; the other variables of exporters do not count")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def session_file(look: Look) -> Iterator[Finding]:
    """Whether the session file can be written; one that was not there is not left behind."""
    resolved = in_force(look)
    path = resolved.session_file
    if path is None:
        yield note("session file", "none")
        return
    from inferspan.export.files.session_file import SessionFile

    script: Script | None = look.shared.get("script")
    source = resolved.source("session_file") or (f"argument of {script.arguments['session_file']}" if script is not None else "")
    there = os.path.lexists(path)
    try:
        SessionFile(path).close()
    except SettingsError as error:
        reason = str(error).partition(": ")[2].partition(";")[0] or str(error)
        fix = f"name a file in a folder that can be written ({source})"
        yield problem("session file", f"{path} cannot be written: {reason}", fix, source)
        return
    if not there and os.path.isfile(path) and os.path.getsize(path) == 0:
        os.unlink(path)
    yield ok("session file", f"{os.path.abspath(path)} can be written", source)
