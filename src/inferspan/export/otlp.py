"""Providers, exporters and ids: where telemetry leaves the process.

In come settings and the standard ``OTEL_*`` variables, out come global providers for those signals that the host has set up none for;
a provider of the host is used and never replaced or shut down. The SDK is loaded by the first call that needs it. A wrong argument
raises ``SettingsError``, a session file that an argument names and that cannot be written as well; whatever is wrong with the
environment is a warning that names the variable.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferspan.export import variables
from inferspan.export.deferred import Refused, threads_can_start
from inferspan.export.delivery import explain_failures_of_the_program, own_lines_only
from inferspan.export.older_sdk import renew_in_children
from inferspan.export.providers import (
    INSTALL,
    SETUP,
    Built,
    current_provider,
    extend,
    file_exporter,
    host_has_none,
    set_provider,
    take_over,
)
from inferspan.export.sdk import SpanParts, queue_room, span_parts
from inferspan.export.sdk_variables import hidden
from inferspan.setting_checks import shown, warn_once
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
    "current_provider",
    "destination_named",
    "detected_resource",
    "finish_with",
    "flush_first",
    "force_flush",
    "hand_over_at_end",
    "ids",
    "in_use",
    "look_at_sigterm",
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
        SettingsError: the session file was given as an argument and cannot be written.
    """
    environ = os.environ if environ is None else environ
    given = given or {}
    if _disabled(environ):
        return False
    explain_failures_of_the_program()
    if not destination_named(settings, environ):
        if given or not all(host_has_none(signal) for signal in ("traces", "metrics")):
            hand_over_at_end(settings)
        _tell_how_to_send(environ, given)
        return False
    settings = _with_writable_file(settings)
    # If the caller passes both providers, the global ones stay unset for later callers.
    _write_given(settings, given)
    if "traces" in given and "metrics" in given:
        hand_over_at_end(settings)
    else:
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
        SettingsError: a setting that was given as an argument is wrong, or the session file cannot be written.
    """
    environ = os.environ if environ is None else environ
    settings = Settings.resolve(overrides, environ=environ) if settings is None else settings.override(overrides)
    if settings.enabled and not _disabled(environ):
        if settings.session_file is not None:
            SETUP.kept_files.add(os.path.abspath(settings.session_file))
        _set_up(_with_writable_file(settings), environ, automatic=False)


def _tell_how_to_send(environ: Mapping[str, str], given: Mapping[str, Any]) -> None:
    """Say once how to name a destination, unless a provider of the program's may have one, or sending is switched off."""
    # Logs carry captured content only, so a program without a logger provider lacks nothing.
    signals = ("traces", "metrics")
    if SETUP.hinted or not all(signal not in given and host_has_none(signal) for signal in signals):
        return
    if all(variables.switched_off(environ, signal) for signal in signals):
        return
    SETUP.hinted = True
    _log.warning(
        "inferspan sends nothing anywhere: set OTEL_EXPORTER_OTLP_ENDPOINT to the address of a collector, or"
        " session_file=... (INFERSPAN_SESSION_FILE) to the path of a file"
    )


def _with_writable_file(settings: Settings) -> Settings:
    """The settings without a session file that a variable names and that cannot be written."""
    variable = settings.source("session_file")
    if settings.session_file is None:
        return settings
    try:
        _probe(settings.session_file)
    except SettingsError as error:
        if variable is None:
            raise
        warn_once("%s is ignored, no session file is written: %s", variable, error)
        return settings.override({"session_file": None})
    return settings


def _disabled(environ: Mapping[str, str]) -> bool:
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _set_up(settings: Settings, environ: Mapping[str, str], *, automatic: bool, signals: Sequence[str] = variables.SIGNALS) -> None:
    with SETUP.lock, hidden():
        new_file = settings.session_file
        if new_file is not None and os.path.abspath(new_file) in SETUP.session_files:
            new_file = None
        _limit_file(settings)
        if SETUP.done and new_file is None:
            _log.info("OpenTelemetry is set up already; nothing is changed")
        elif SETUP.done or (variables.read(environ, "OTEL_CONFIG_FILE") and _from_config_file(environ["OTEL_CONFIG_FILE"].strip())):
            extend(new_file, signals)
        else:
            _from_variables(environ, new_file, automatic, signals)
        SETUP.done = True
        if new_file is not None:
            SETUP.session_files.add(os.path.abspath(new_file))
        hand_over_at_end(settings)


def _write_given(settings: Settings, given: Mapping[str, Any]) -> None:
    """Write the session file from providers that the caller brings, once for each of them."""
    if settings.session_file is None or not given:
        return
    path = os.path.abspath(settings.session_file)
    with SETUP.lock, hidden():
        _limit_file(settings)
        new = {signal: provider for signal, provider in given.items() if f"{path} {signal} {id(provider)}" not in SETUP.session_files}
        if not new:
            return
        extend(settings.session_file, tuple(new), new)
        SETUP.session_files.update(f"{path} {signal} {id(provider)}" for signal, provider in new.items())


def _limit_file(settings: Settings) -> None:
    if settings.session_file is not None and settings.session_file_limit is not None:
        from inferspan.export.files.appending import LIMITS

        LIMITS[os.path.abspath(settings.session_file)] = int(settings.session_file_limit * 2**20)


def hand_over_at_end(settings: Settings, *, again: bool = True) -> None:
    """Before the process ends, hand what waits to the providers, also the host's, and flush; ``again``: in place of an earlier call."""
    if not again and SETUP.pipelines.closes_at_exit:
        return
    SETUP.pipelines.close_at_exit(settings.exit_timeout)
    wanted = settings.flush_on_sigterm
    if wanted is False:
        return
    done = SETUP.pipelines.flush_at_sigterm(settings.exit_timeout, over_handlers=wanted is True)
    if wanted is True and not done:
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
    never = variables.unreachable(environ, [signal for signal in ours if not only_named or variables.destination(environ, signal)])
    made = {
        signal: _make_exporters([name for name in names[signal] if name not in never.get(signal, ())], signal, environ)
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
            renew_in_children(resource)
        try:
            INSTALL[signal](built, environ, resource)
            SETUP.installed.add(signal)
        except Exception as error:  # of the SDK, about what it reads from the environment itself
            if isinstance(error, Refused) and not threads_can_start(1):
                raise  # a set-up that lacks threads is put off and tried again
            _log.warning("inferspan sends no %s: the SDK cannot be set up (%s)", signal, type(error).__name__)
            _log.debug("The SDK cannot be set up for %s", signal, exc_info=True)
    extend(session_file, [signal for signal in signals if signal not in ours])


def _make_exporters(names: Sequence[str], signal: str, environ: Mapping[str, str]) -> list[Built]:
    from inferspan.export.exporters import open_exporter

    built = []
    for name in names:
        try:
            built.append(Built(name, *open_exporter(name, signal, environ)))
        except ImportError as error:
            warn_once("inferspan sends no %s to %s: %s", signal, name, error)
        except Exception as error:  # of the exporter, about what it read from the environment itself
            read = [each for each in sorted(environ) if each.startswith(("OTEL_EXPORTER_", "OTEL_PYTHON_EXPORTER_"))]
            message = shown(variables.without_values(str(error), environ))
            warn_once("inferspan sends no %s to %s: %s; it has read %s", signal, name, message, ", ".join(read) or "no variable")
    return built


def _probe(session_file: str | None) -> None:
    if session_file is not None:
        from inferspan.export.files.session_file import SessionFile

        SessionFile(session_file).close()


def _from_config_file(path: str) -> bool:
    """Set up what a configuration file says; if it cannot be used, that is a warning and the other variables count."""
    try:
        from opentelemetry.configuration import configure_sdk, load_config_file
    except ImportError:
        warn_once("OTEL_CONFIG_FILE=%s is ignored: reading it takes pip install opentelemetry-configuration", shown(path))
        return False
    except ValueError:  # opentelemetry.propagate reads this variable when it is imported
        name = os.environ.get("OTEL_PROPAGATORS", "")
        warn_once("OTEL_CONFIG_FILE=%s is ignored: OpenTelemetry has no propagator of OTEL_PROPAGATORS=%s", shown(path), shown(name))
        return False
    sections = {"traces": "tracer_provider", "metrics": "meter_provider", "logs": "logger_provider"}
    ours = [signal for signal in variables.SIGNALS if host_has_none(signal)]
    reason = None
    try:
        if not os.path.isfile(path):
            raise FileNotFoundError("there is no such file")
        with own_lines_only():  # they quote the file, in which tokens stand
            config = load_config_file(path)
        for signal in variables.SIGNALS:
            if signal not in ours:
                _log.info("The program has set up a provider for %s: that part of %s is not used", signal, path)
                setattr(config, sections[signal], None)
        SETUP.done = True  # the file may instrument this package, which comes back here
        configure_sdk(config)
    except Exception as error:
        SETUP.done = False
        reason = _wrong_with_config(error)
    take_over([signal for signal in ours if not host_has_none(signal)])
    if reason is not None:
        warn_once("OTEL_CONFIG_FILE=%s is ignored: %s", shown(path), reason)
    return reason is None


def _wrong_with_config(error: Exception) -> str:
    """The reason in words of ours: messages of the parser and of the schema quote values of the file."""
    text = str(error)
    if isinstance(error, FileNotFoundError):
        return text
    if place := re.search(r"\(at ([\w/. >-]+)\)$", text):
        return f"it does not match the schema at {shown(place[1])}"
    line = re.search(r"\bline ([0-9]+)", text)
    return f"{type(error).__name__} in line {line[1]}" if line else type(error).__name__


# --------------------------------------------------------------------------------------------------------------- the end
def force_flush(timeout: float) -> bool:
    """Send everything recorded so far through our own pipelines and the program's providers that something is recorded with.

    Args:
        timeout: longest time in seconds that the caller will wait.

    Returns:
        Whether all of it was sent in that time, as far as the providers of the program say so.
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


def look_at_sigterm() -> None:
    """Flush on SIGTERM also if the program has set the default disposition since ``hand_over_at_end``; cheap."""
    SETUP.pipelines.look_at_sigterm()


def in_use(signal: str, provider: Any = None) -> None:
    """Something is recorded with this provider, or with the global one whenever it is set: flush it too, unless it is ours."""
    if provider is None:
        SETUP.pipelines.borrow_found(_LOOKUPS[signal])
    elif provider is not set_provider(signal) or _of_the_program(signal) is not None:
        SETUP.pipelines.borrow(provider)


def _of_the_program(signal: str) -> Any:
    ours = signal in SETUP.installed or SETUP.pipelines.owns(f"{signal}-config")
    return None if ours else set_provider(signal)


_LOOKUPS = {signal: functools.partial(_of_the_program, signal) for signal in variables.SIGNALS}


def flush_first(source: Callable[[], None]) -> Callable[[], None]:
    """Call ``source`` before every flush, at the end of the process and on SIGTERM; returns how to stop that."""
    return SETUP.pipelines.flush_first(source)


def finish_with(action: Callable[[], None]) -> None:
    """Call ``action`` when our providers are closed at the end of the process, or flushed because SIGTERM ends it."""
    SETUP.pipelines.finish_with(action)
