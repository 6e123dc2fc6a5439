"""The parts that everything recorded in this process shares, and how a recorder is put together from settings and providers.

In: settings, providers. Out: recorders of requests and of stages, export that is set up, samplers that run. ``instrument`` and ``blocks``
use it. Nothing starts when this module is imported.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from inferspan.metrics.requests import RequestMetrics
from inferspan.metrics.stages import StageMetrics
from inferspan.spans import origin
from inferspan.spans.recorder import SpanRecorder
from inferspan.spans.sources import logger_source, tracer_source
from inferspan.spans.stages import StageRecorder
from inferspan.spans.writer import SpanWriter, inside_a_provider
from inferspan.summaries.recording import Recording

from .export import otlp
from .export.deferred import DeferredSetup
from .export.sdk import do_before_flush
from .guard import contain
from .samplers import process as machine
from .samplers.stage_memory import MemoryReader
from .setting_checks import warn_once
from .settings import Settings, SettingsError

if TYPE_CHECKING:
    from inferspan.capture.target import Target
    from inferspan.metrics.summary import Summary
    from inferspan.report.output.automatic import AutomaticReports
    from inferspan.report.running.display import Display
    from inferspan.samplers.loop import SamplerLoop

__all__ = [
    "HAND_OVER", "Providers", "begin_export", "deferred", "display", "follow_origins", "hand_over", "recorder_for",
    "reports", "set_up_export", "stage_recorder", "start", "target_for", "writer",
]  # fmt: skip

HAND_OVER = 2.0
"""Longest time in seconds that ``uninstrument()`` waits for detail to be handed over."""
_INSTEAD = {
    "methods": "methods that are known", "modules": "module spans are those of the default", "numerics": "no outputs are looked at",
    "attention": "no attention is looked at", "memory": "no memory is read at modules", "gradients": "no gradients are looked at",
    "control_flow": "no control flow is followed",
}  # fmt: skip
"""What counts where a setting of the environment does not fit a model."""
Providers = tuple[Any, Any, Any]
"""Of tracers, meters and loggers; ``None`` stands for the global one."""
writer = SpanWriter()
deferred = DeferredSetup()
_flushed_first: list[Callable[[], None]] = []
_reports: AutomaticReports | None = None
_display: Display | None = None
always: Settings | None = None
"""Whose session file is written beside that of the program: the one that ``inferspan run`` was told to write."""


def begin_export(settings: Settings, providers: Providers, *, auto_configure: bool = True) -> None:
    """Set up export for a model, and close session files that nothing is recorded for any more."""
    unused = sys.modules.get("inferspan.export.files.unused")  # loaded with the first session file
    if unused is not None:
        unused.close_unused(settings, always)
    if auto_configure:
        set_up_export(settings, providers)
    else:
        otlp.hand_over_at_end(settings)


def set_up_export(settings: Settings, providers: Providers) -> None:
    """Set up the destinations that the environment or the session file names, beside the given providers, and reports."""
    if always is not None and always.session_file not in (None, settings.session_file):
        _set_up_export(always, providers)
    _set_up_export(settings, providers)


def _set_up_export(settings: Settings, providers: Providers) -> None:
    if settings.report is not None:
        settings = reports().prepare(settings)
    given = {
        signal: provider for signal, provider in zip(("traces", "metrics", "logs"), providers, strict=True) if provider is not None
    }
    if otlp.destination_named(settings):
        deferred.run(lambda: otlp.automatic_setup(settings, given=given))
    else:
        otlp.automatic_setup(settings, given=given)
    if settings.session_file is not None:
        deferred.run(lambda: _record_system(settings, given.get("traces")))


def _record_system(settings: Settings, tracer_provider: Any) -> None:
    # Not loaded before there is a session file: it needs the SDK.
    from .export.files.system_record import record_system

    record_system(settings, tracer_provider)


def reports() -> AutomaticReports:
    """The reports of this process that are made by themselves; the first call has them made at its end."""
    global _reports
    if _reports is None:
        from inferspan.report.output.automatic import AutomaticReports

        _reports = AutomaticReports(otlp.force_flush)
        otlp.finish_with(_reports.process_ends)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_reports.forked)
    return _reports


def target_for(model: Any, settings: Settings, recorder: SpanRecorder, tokenizer: Any) -> Target:
    """Attach to a model; where a setting of the environment does not fit it, with what counts instead."""
    from inferspan.capture.target import Target

    while True:
        try:
            return Target(model, settings, recorder, tokenizer)
        except SettingsError as error:  # a method that the model lacks, a name pattern that matches no module
            found = re.match(r"inferspan setting '(\w+)'", str(error))
            name = found[1] if found else ""
            variable = settings.source(name)
            if variable is None:
                raise
            warn_once("%s is ignored for this model, %s: %s", variable, _INSTEAD.get(name, "its default counts"), error)
            # A default comes from no variable, so each setting is replaced once.
            settings = settings.override({name: getattr(Settings(), name)})


def recorder_for(settings: Settings, providers: Providers) -> tuple[SpanRecorder, machine.Meters]:
    """A recorder of requests, and the meters of its metrics."""
    tracer_provider, meter_provider, logger_provider = providers
    meters = machine.meters_of(meter_provider)
    otlp.in_use("metrics", meter_provider)
    request_metrics = RequestMetrics(meters.meter, settings, waiting=meters.waiting)
    found = partial(_follow_provider, settings)
    tracer, logger = tracer_source(tracer_provider, _before_a_request, found), logger_source(logger_provider)
    return SpanRecorder(settings, tracer, request_metrics, writer, logger, follow=found), meters


def stage_recorder(settings: Settings, providers: Providers, recording: Recording | None = None) -> StageRecorder:
    """A recorder of the program's own stages and sessions, whose figures ``recording`` gets."""
    from inferspan.capture.failures import failure_of

    tracer_provider, meter_provider, logger_provider = providers
    meters = machine.meters_of(meter_provider)
    otlp.in_use("metrics", meter_provider)
    if meters.stages is None:
        meters.stages = StageMetrics(meters.meter)
    memory = MemoryReader(allocator=settings.allocator, host=settings.host)
    found = partial(_follow_provider, settings)
    tracer, logger = tracer_source(tracer_provider, _before_a_request, found), logger_source(logger_provider)
    return StageRecorder(
        settings, tracer, failure_of, logger=logger, metrics=meters.stages, memory=memory, recording=recording, hand_over=hand_over
    )


def hand_over(seconds: float = HAND_OVER) -> bool:
    """Have everything recorded so far counted and handed to the span processors, for at most ``seconds`` and ``HAND_OVER``.

    Returns:
        Whether all was handed over in that time; requests are counted in any case.
    """
    if inside_a_provider():
        return True
    done = writer.flush(min(seconds, HAND_OVER))
    if not done:
        # A processor holds the hand-over thread up.
        machine.settle()
    return done


def start(
    settings: Settings, meters: machine.Meters, released: ExitStack, target: Target | None = None, summary: Summary | None = None
) -> None:
    """Start what requests need in this process; ``released`` gets what undoes it.

    Args:
        settings: which samplers run.
        meters: which get their readings.
        released: closed when nothing is recorded with these settings any more.
        target: gets the readings of its device.
        summary: of the requests, for the setting ``live``.
    """
    _hand_over_first()
    if settings.session_file is not None:
        from .export.files.unused import hold

        release_file = hold(settings)
        released.callback(release_file if target is None else partial(target.pausing.when_idle, partial(_let_go, release_file)))
    loop: SamplerLoop | None = None
    with contain("samplers"):
        loop, release = machine.samplers.acquire(settings, meters)
        released.callback(release)
        if loop is not None and (settings.gpu_interval is not None or settings.host_interval is not None):
            _write_readings(settings, meters, loop, released)
        if target is not None:
            from inferspan.samplers.allocator import cuda_devices

            target.watch_machine(loop, cuda_devices)
    if settings.live:
        with contain("live display"):
            totals = None if summary is None else summary.totals
            released.callback(display().show(settings.display_interval, None if loop is None else loop.newest, totals))


def _let_go(release_file: Callable[[], None]) -> None:
    """Let a session file be closed by whoever begins another one, with what has been recorded for it."""
    hand_over()
    release_file()


def display() -> Display:
    """The display of this process."""
    global _display
    if _display is None:
        from inferspan.report.running.display import Display

        _display = Display()
    return _display


def _write_readings(settings: Settings, meters: machine.Meters, loop: SamplerLoop, released: ExitStack) -> None:
    if settings.report is not None and _reports is not None:
        settings = _reports.prepare(settings)  # the temporary session file of the report
    if settings.session_file is None:
        return
    from .export.files.readings_file import readings_file

    with contextlib.suppress(SettingsError):  # whoever opened the file for the spans has named the reason
        released.callback(readings_file(settings.session_file, meters.provider, loop.follow, otlp.flush_first))


def follow_origins(released: ExitStack) -> None:
    """Find the callers of requests on threads that they start, until ``released`` is closed."""
    with contain("origins of requests"):
        released.callback(origin.follow())


def _hand_over_first() -> None:
    """Have detail handed over before our pipelines are flushed or closed; from the first model on, as it takes a thread."""
    if not _flushed_first:
        _flushed_first.append(otlp.flush_first(lambda: (writer.flush(HAND_OVER), None)[1]))


def _follow_provider(settings: Settings, owner: Any) -> None:
    """Have ends of requests written before a provider, or the processor of its tracers, sends or closes, and before the process ends."""
    do_before_flush(owner, hand_over, writer.exits)
    # Without a provider and a destination there was nothing to be done at the end; the program has set its provider since.
    otlp.hand_over_at_end(settings, again=False)


def _before_a_request() -> None:
    machine.samplers.wake_in_child()
    deferred.catch_up()
