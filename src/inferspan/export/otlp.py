"""Providers, exporters and ids: where telemetry leaves the process.

In come settings and the standard ``OTEL_*`` variables, out come global providers for those signals that the host has set up none for;
a provider of the host is used and never replaced or shut down. The SDK is loaded by the first call that needs it. Unknown exporters
or protocols and session files that cannot be written raise ``SettingsError`` from ``configure``; everything later is contained.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferspan.export import variables
from inferspan.export.providers import INSTALL, SETUP, extend, file_exporter, host_has_none, take_over
from inferspan.export.sdk import SpanParts, queue_room, span_parts
from inferspan.settings import Settings, SettingsError

if TYPE_CHECKING:
    from inferspan.export.ids import RandomIds, adopt_ids, ids
    from inferspan.export.raw_sender import OtlpSpanSender, raw_sink
    from inferspan.export.resource import Detector, detected_resource

__all__ = [
    "Detector",
    "OtlpSpanSender",
    "RandomIds",
    "SpanParts",
    "adopt_ids",
    "automatic_setup",
    "configure",
    "destination_named",
    "detected_resource",
    "flush_first",
    "force_flush",
    "ids",
    "queue_room",
    "raw_sink",
    "shutdown",
    "span_parts",
]

_log = logging.getLogger("inferspan")

# Names that need the SDK: entry points and users find them here, importing this module does not load it.
_LAZY = {
    "Detector": "resource",
    "RandomIds": "ids",
    "OtlpSpanSender": "raw_sender",
    "adopt_ids": "ids",
    "detected_resource": "resource",
    "ids": "ids",
    "raw_sink": "raw_sender",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(f"inferspan.export.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# ------------------------------------------------------------------------------------------------------------- setting up
def destination_named(settings: Settings, environ: Mapping[str, str] | None = None) -> bool:
    """Whether the settings or the environment say where telemetry goes."""
    environ = os.environ if environ is None else environ
    return settings.session_file is not None or variables.names_destination(environ)


def automatic_setup(
    settings: Settings, *, environ: Mapping[str, str] | None = None, given: Mapping[str, Any] | None = None
) -> bool:
    """Set providers up if a destination is named; otherwise open nothing and say once how to name one.

    Args:
        settings: options; a session file counts as a destination.
        environ: environment, default ``os.environ``.
        given: providers by signal (``traces``, ``metrics``, ``logs``) that the caller uses instead of the global ones: none is set up
            for those, and a session file is written from them.

    Returns:
        Whether a destination is named.

    Raises:
        SettingsError: as ``configure``.
    """
    environ = os.environ if environ is None else environ
    given = given or {}
    if _disabled(environ):
        return False
    if not destination_named(settings, environ):
        # Logs carry captured content only, so a program without a logger provider lacks nothing.
        if not SETUP.told and any(host_has_none(signal) for signal in ("traces", "metrics") if signal not in given):
            SETUP.told = True
            _log.warning(
                "inferspan sends nothing anywhere: set OTEL_EXPORTER_OTLP_ENDPOINT to the address of a collector, or"
                " session_file=... (INFERSPAN_SESSION_FILE) to the path of a file"
            )
        return False
    # A caller that brings both its own leaves the global ones to whoever comes next.
    _write_given(settings, given)
    if not ("traces" in given and "metrics" in given):
        _set_up(settings, environ, automatic=True, signals=[signal for signal in variables.SIGNALS if signal not in given])
    return True


def configure(settings: Settings | None = None, *, environ: Mapping[str, str] | None = None, **overrides: Any) -> None:
    """Set up OpenTelemetry from the standard ``OTEL_*`` variables, for each signal that the program has set no provider for.

    A second call does nothing, except that a new ``session_file`` is written as well. With neither variables nor a session file,
    telemetry goes to ``http://localhost:4318``.

    Args:
        settings: default: resolved from every source.
        environ: environment that the choices are read from, default ``os.environ``; what the SDK reads itself (endpoints, headers,
            TLS, samplers, limits) it always reads from ``os.environ``.
        overrides: single settings, stronger than ``settings``.

    Raises:
        SettingsError: a setting is wrong, an exporter or a protocol unknown, or the session file cannot be written.
        ImportError: the package of an exporter that was asked for is not installed.
    """
    environ = os.environ if environ is None else environ
    checked = Settings.resolve(overrides, environ=environ)
    if settings is None:
        settings = checked
    elif overrides:
        settings = dataclasses.replace(settings, **overrides)
    if not _disabled(environ):
        _set_up(settings, environ, automatic=False)


def _disabled(environ: Mapping[str, str]) -> bool:
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _set_up(settings: Settings, environ: Mapping[str, str], *, automatic: bool, signals: Sequence[str] = variables.SIGNALS) -> None:
    with SETUP.lock:
        new_file = settings.session_file if os.path.abspath(settings.session_file or "") not in SETUP.session_files else None
        if SETUP.done and new_file is None:
            _log.info("OpenTelemetry is set up already; nothing is changed")
        elif SETUP.done:
            extend(new_file, signals)
        elif variables.read(environ, "OTEL_CONFIG_FILE"):
            _from_config_file(environ["OTEL_CONFIG_FILE"].strip())
            extend(new_file, signals)
        else:
            _from_variables(environ, new_file, automatic, signals)
        SETUP.done = True
        if new_file is not None:
            SETUP.session_files.add(os.path.abspath(new_file))
        _end_well(settings)


def _write_given(settings: Settings, given: Mapping[str, Any]) -> None:
    """Write the session file from providers that the caller brings, once for each of them."""
    if settings.session_file is None or not given:
        return
    path = os.path.abspath(settings.session_file)
    with SETUP.lock:
        new = {signal: provider for signal, provider in given.items() if f"{path} {signal} {id(provider)}" not in SETUP.session_files}
        if not new:
            return
        _probe(settings.session_file)
        extend(settings.session_file, tuple(new), new)
        SETUP.session_files.update(f"{path} {signal} {id(provider)}" for signal, provider in new.items())
        _end_well(settings)


def _end_well(settings: Settings) -> None:
    SETUP.pipelines.close_at_exit(settings.exit_timeout)
    if settings.flush_on_sigterm and not SETUP.pipelines.flush_at_sigterm(settings.exit_timeout):
        _log.warning("flush_on_sigterm has no effect: a handler can only be set on the main thread, over one of Python's")


def _from_variables(environ: Mapping[str, str], session_file: str | None, automatic: bool, signals: Sequence[str]) -> None:
    only_named = automatic or session_file is not None
    # Installed ones are those of a set-up that failed half-way.
    signals = [signal for signal in signals if signal not in SETUP.installed]
    ours = [signal for signal in signals if host_has_none(signal)]
    for signal in set(signals) - set(ours):
        _log.info("The program has set up a provider for %s: it is used as it is", signal)
    # Everything that can go wrong is tried before anything global is touched.
    names = {signal: variables.choose_exporters(environ, signal) for signal in ours}
    variables.check_endpoints(environ, ours)
    _probe(session_file)
    made = {
        signal: _make_exporters(names[signal], signal, environ, automatic)
        for signal in ours
        if not only_named or variables.destination(environ, signal)
    }
    resource = None
    for signal in ours:
        built = [*file_exporter(signal, session_file), *made.get(signal, [])]
        if not built:
            continue
        if resource is None:
            from inferspan.export.resource import detected_resource

            resource = detected_resource(environ)
        INSTALL[signal](built, environ, resource)
        SETUP.installed.add(signal)
    extend(session_file, [signal for signal in signals if signal not in ours])


def _make_exporters(names: tuple[str, ...], signal: str, environ: Mapping[str, str], automatic: bool) -> list[tuple[str, Any]]:
    from inferspan.export.exporters import open_exporter

    built = []
    for name in names:
        try:
            built.append((name, open_exporter(name, signal, environ)))
        except ImportError as error:
            if not automatic:
                raise
            _log.warning("inferspan sends no %s to %s: %s", signal, name, error)
        except Exception as error:  # of the exporter, about what it read from the environment itself
            _log.warning("inferspan sends no %s to %s: %s", signal, name, error)
    return built


def _probe(session_file: str | None) -> None:
    if session_file is not None:
        from inferspan.export.session_file import SessionFile

        SessionFile(session_file).close()


def _from_config_file(path: str) -> None:
    try:
        from opentelemetry.configuration import configure_sdk, load_config_file
    except ImportError:
        raise SettingsError(
            f"OTEL_CONFIG_FILE is {path!r}, but reading it needs another package: pip install opentelemetry-configuration"
        ) from None
    sections = {"traces": "tracer_provider", "metrics": "meter_provider", "logs": "logger_provider"}
    ours = [signal for signal in variables.SIGNALS if host_has_none(signal)]
    try:
        config = load_config_file(path)
        for signal in variables.SIGNALS:
            if signal not in ours:
                _log.info("The program has set up a provider for %s: that part of %s is not used", signal, path)
                setattr(config, sections[signal], None)
        SETUP.done = True  # the file may instrument this package, which comes back here
        configure_sdk(config)
    except Exception as error:
        SETUP.done = False
        raise SettingsError(f"OTEL_CONFIG_FILE cannot be {path!r}: {error}") from error
    take_over(ours)


# --------------------------------------------------------------------------------------------------------------- the end
def force_flush(timeout: float) -> bool:
    """Send everything recorded so far through our own pipelines.

    Args:
        timeout: longest time in seconds that the caller will wait.

    Returns:
        Whether all of it was sent in that time.
    """
    return SETUP.pipelines.force_flush(timeout)


def shutdown(timeout: float) -> bool:
    """Send everything and close our own pipelines, for good; providers of the host stay open.

    Args:
        timeout: longest time in seconds that the caller will wait.

    Returns:
        Whether everything was closed in that time.
    """
    return SETUP.pipelines.shutdown(timeout)


def flush_first(source: Callable[[], None]) -> Callable[[], None]:
    """Call ``source`` before every flush, at the end of the process and on SIGTERM; returns how to stop that."""
    return SETUP.pipelines.flush_first(source)
