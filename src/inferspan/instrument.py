"""``instrument(model)``: the shared parts of ``composition`` and a target, put together; nothing else happens here.

In: a model and options. Out: a handle that detaches. A wrong option raises before anything is attached. Where something fails after that,
nothing stays attached; where the system refuses threads, what needs them follows by itself once it grants them.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from inferspan.spans import origin
from inferspan.spans.recorder import SpanRecorder
from inferspan.summaries.notebook import page
from inferspan.summaries.recording import Recording
from inferspan.summaries.requests import RecordedRequest
from inferspan.summaries.status import Status
from inferspan.summaries.summary import RunSummary, summary_of

from . import composition
from .arguments import resolve, unwrap
from .composition import Providers
from .export import otlp
from .guard import contain, report
from .inside.handle import InsideHandle
from .inside.pausing import PausableHandle, Pauses
from .program import recorders
from .program.attached import log_status, status_now
from .samplers import process as machine
from .setting_checks import check_window, warn_once
from .settings import Settings, SettingsError

if TYPE_CHECKING:
    from inferspan.capture.profiler.window import Window
    from inferspan.capture.target import Target

__all__ = ["Handle", "flush", "instrument", "uninstrument"]

_REMEDY = "call inferspan.uninstrument(model) first or pass the same"
_lock = threading.RLock()
_instrumentations: dict[int, _Instrumentation] = {}
_collected_models: deque[_Instrumentation] = deque()
"""Instrumentations whose model has been collected. A finaliser may run inside any lock, so it only puts them here."""
automatic: Any = None
"""Zero code, where it is on: it hears which models the program instruments itself."""


class _Instrumentation:
    """The state that the handles of one model share."""

    def __init__(
        self, target: Target, recorder: SpanRecorder, settings: Settings, providers: Providers, pauses: Pauses, release: Callable[[], None]
    ) -> None:
        self.target = target
        self.recorder = recorder
        self.settings = settings
        self.providers = providers
        self.pauses = pauses
        self.users = 0
        self._release = release
        self._watch(target)

    def _watch(self, target: Target) -> None:
        target.follow = self.follow
        self.pauses.watch(target)
        self._key = id(target.model)
        self._collected = weakref.finalize(target.model, _collected_models.append, self)
        self._collected.atexit = False

    def follow(self, model: Any) -> None:
        """Go on with the model that was taken out of the instrumented one (``merge_and_unload()``), under the same handles."""
        with _lock:
            known = _instrumentations.get(id(model))
            if _instrumentations.get(self._key) is not self or (known is not None and known.target.model is model):
                return
            left = self.target
            try:
                target = composition.target_for(model, self.settings, self.recorder, left.tokenizer)
            except SettingsError as error:
                warn_once("the model without its adapters is not observed, call inferspan.instrument() on it: %s", error)
                return
            target.watch_machine(left.machine, left.cuda_devices)
            target.engine.inside.take_over(left.engine.inside)
            self.forget()
            self._collected.detach()
            self.target = target
            self._watch(target)
            _instrumentations[self._key] = self
        left.close()

    def switch(self, changes: Mapping[str, Any]) -> None:
        """Change settings from the next request on, or raise ``SettingsError`` and change none."""
        with _lock:
            settings = self.settings.switched(changes)
            self.target.configure(settings)
            self.settings = self.recorder.settings = settings

    def forget(self) -> None:
        """Remove the entry, so that the next ``instrument()`` attaches again; called with the lock held."""
        if _instrumentations.get(self._key) is self:
            del _instrumentations[self._key]

    def close(self, *, all_of_them: bool = False) -> None:
        model = self.target.model
        self._collected.detach()
        log_status("uninstrument:", self.target, self.settings)
        with contain("uninstrument"):
            self.target.close()
        with contain("uninstrument"):
            composition.writer.flush(composition.HAND_OVER)
        with contain("uninstrument"):
            self._release()
        if automatic is not None and model is not None:
            automatic.returned(model, left=all_of_them)


def release_collected() -> None:
    """Release the samplers of instrumentations whose model was collected."""
    with _lock:
        while _collected_models:
            instrumentation = _collected_models.popleft()
            instrumentation.forget()
            with contain("uninstrument"):
                instrumentation._release()


class Handle(InsideHandle, PausableHandle):
    """Keeps a model instrumented until ``uninstrument()``; a context manager as well.

    Several handles on one model share one instrumentation, and the last ``uninstrument()`` detaches.
    """

    def __init__(self, instrumentation: _Instrumentation | None, settings: Settings) -> None:
        self._instrumentation: _Instrumentation | None = instrumentation
        self._recorder: Any = None if instrumentation is None else instrumentation.recorder
        self._pauses = None if instrumentation is None else instrumentation.pauses
        self._settings = settings

    def uninstrument(self) -> None:
        """Take everything off the model; may be called twice, and while the model runs."""
        with _lock:
            self._remove_functions()
            instrumentation, self._instrumentation = self._instrumentation, None
            if instrumentation is None:
                return
            instrumentation.users -= 1
            self._settings = instrumentation.settings
            # Below zero after uninstrument(model) has taken all handles at once.
            last = instrumentation.users == 0
            if last:
                instrumentation.forget()
        if last:
            instrumentation.close()

    def refresh(self) -> None:
        """Look at the model again after its submodules were replaced or compiled."""
        if self._instrumentation is not None:
            with contain("refresh"):
                self._instrumentation.target.refresh()

    def profile(self, steps: int = 3, *, cpu_ops: bool | None = None) -> Window:
        """Profile the next forward passes of the model, to be used as ``with handle.profile(steps=3) as window:``.

        In the block, the first ``steps`` recorded passes (the prefill and decode steps of ``generate()``, or plain calls) run under torch's
        profiler. Their kernels, and operations on request, become spans under the step and module that launched them, as far as the
        request's span budget has room; ``window`` tells how many there were. Passes of any thread count, but of one request at a time.
        Opening and closing the profiler takes time around each of these passes, and on CUDA it waits for the device.

        Where another profiler is at work nothing is profiled, which ``window.note`` and one line in the log tell; the program is not
        affected.

        Args:
            steps: passes to profile, 1 to 1,000; the window ends with the block if fewer come.
            cpu_ops: whether operations get spans too; default: only where there are no kernels, on a model without a CUDA device.

        Raises:
            SettingsError: ``steps`` or ``cpu_ops`` cannot be used.
        """
        from inferspan.capture.profiler.window import Window

        check_window(steps, cpu_ops)
        instrumentation = self._instrumentation
        if instrumentation is None:
            return Window(None, steps, cpu_ops=cpu_ops)
        return instrumentation.target.profile(steps, cpu_ops=cpu_ops)

    def summary(self) -> RunSummary:
        """Figures of what was recorded of this model so far, kept in the process.

        Totals of the requests need no destination. Operations, events and modules are those of recorded spans, so they need one; a session
        file is enough. See ``docs/looking/summary.md``.
        """
        if self._recorder is None:
            return summary_of(Recording())
        composition.hand_over()
        return summary_of(self._recorder.recording)

    def status(self) -> Status:
        """What is attached to the model now, what is recorded of it, and why something is not observed. See ``docs/looking/summary.md``."""
        instrumentation = self._instrumentation
        return Status() if instrumentation is None else status_now(instrumentation.target, self.settings)

    def requests(self) -> list[RecordedRequest]:
        """The latest requests on this model that have ended, at most 32, the newest last."""
        if self._recorder is None:
            return []
        composition.hand_over()
        found: list[RecordedRequest] = self._recorder.recording.requests()
        return found

    @property
    def last_request(self) -> RecordedRequest | None:
        """The request on this model that has ended last."""
        return next(reversed(self.requests()), None)

    def flush(self, timeout: float | None = 30.0) -> bool:
        """Do what ``inferspan.flush()`` does; if it is true, the session file holds all that has ended.

        Args:
            timeout: longest time in seconds; ``None`` for no limit on the hand-over.

        Returns:
            As ``inferspan.flush()``.
        """
        return flush(timeout)

    def __repr__(self) -> str:
        instrumentation = self._instrumentation
        if not self.settings.enabled:
            return "<inferspan.Handle: not enabled>"
        if instrumentation is None or not instrumentation.target.is_open:
            return "<inferspan.Handle: detached>"
        info = instrumentation.target.info
        return f"<inferspan.Handle: {info.name or info.architecture}; {self._recorder.metrics.summary.totals()}; {self.status().short}>"

    def _repr_html_(self) -> str:
        return page(repr(self).partition("; ")[0].strip("<>"), self.summary(), self.requests())

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None) -> None:
        self.uninstrument()


def instrument(
    model: Any,
    tokenizer: Any = None,
    settings: Settings | None = None,
    tracer_provider: Any = None,
    meter_provider: Any = None,
    logger_provider: Any = None,
    auto_configure: bool = True,
    **settings_overrides: Any,
) -> Handle:
    """Make a model emit traces and metrics of its calls.

    Args:
        model: a transformers model, any ``torch.nn.Module``, a pipeline that holds one as ``.model``, or a pipeline of diffusers.
        tokenizer: decodes prompts and outputs; used only with content capture.
        settings: options; default: resolved from environment, file and presets.
        tracer_provider: where spans go; default the global provider, looked up at each request.
        meter_provider: where metrics go; default the global one.
        logger_provider: where content events go; default the global one.
        auto_configure: set up providers from the ``OTEL_*`` variables if the program has set none and a destination is named.
        **settings_overrides: single settings, stronger than every other source.

    Returns:
        A handle; ``handle.uninstrument()`` detaches. With ``enabled=False`` it has nothing to detach: the model is untouched.

    Raises:
        TypeError: ``model`` is no module and holds none.
        SettingsError: a setting is unknown or wrong, a module pattern matches nothing, an exporter or protocol is unknown, the session
            file cannot be written, or the model is instrumented already with other settings. The model is untouched then.
    """
    model, tokenizer = unwrap(model, tokenizer)
    explicit = settings is not None or bool(settings_overrides)
    resolved = resolve(settings, settings_overrides)
    if not resolved.enabled:
        return Handle(None, resolved)
    providers = (tracer_provider, meter_provider, logger_provider)
    if automatic is not None:
        automatic.taken(model)
    with _lock:
        release_collected()
        existing = _instrumentations.get(id(model))
        if existing is not None and existing.target.model is model and existing.target.is_open:
            _check_conflict(existing, resolved if explicit else None, providers)
        else:
            try:
                composition.begin_export(resolved, providers, auto_configure=auto_configure)
                existing = _build(model, tokenizer, resolved, providers)
            except OSError as error:
                if error.errno is None:
                    raise
                # Of the system: no more files may be opened, say. The model is as it was.
                report("instrument", error, reason=error.strerror or "")
                return Handle(None, resolved)
            _instrumentations[id(model)] = existing
            log_status("instrument:", existing.target, existing.settings)
        existing.users += 1
        return Handle(existing, existing.settings)


def uninstrument(model: Any) -> bool:
    """Take everything off a model, independent of its handles: a notebook cell may have run several times.

    Args:
        model: what was given to ``instrument()``.

    Returns:
        Whether the model was instrumented.

    Raises:
        TypeError: ``model`` is no module and holds none.
    """
    model, _ = unwrap(model, None)
    with _lock:
        instrumentation = _instrumentations.get(id(model))
        if instrumentation is None or instrumentation.target.model is not model:
            return False
        instrumentation.users = 0
        instrumentation.forget()
    instrumentation.close(all_of_them=True)
    return True


def flush(timeout: float | None = 30.0) -> bool:
    """Hand everything recorded so far to the span processors, and send it: ``force_flush()`` of the program's providers in use is called.

    Args:
        timeout: longest time in seconds; ``None`` for no limit on the hand-over.

    Returns:
        Whether all of it was done in that time, nothing recorded since the last flush was refused by a destination of inferspan's own, and
        no provider of the program raised or returned ``False``. Those of the SDK say nothing of what a receiver has refused.
    """
    composition.deferred.catch_up()
    done = composition.writer.flush(timeout)
    return otlp.force_flush(30.0 if timeout is None else timeout) and done


def _check_conflict(existing: _Instrumentation, settings: Settings | None, providers: Providers) -> None:
    if settings is not None and settings != existing.settings:
        names = [item.name for item in fields(settings) if getattr(settings, item.name) != getattr(existing.settings, item.name)]
        told = ", ".join(f"{name}={getattr(existing.settings, name)!r} (now {getattr(settings, name)!r})" for name in names)
        raise SettingsError(f"this model is instrumented already with {told}; {_REMEDY} settings")
    for name, new, old in zip(("tracer_provider", "meter_provider", "logger_provider"), providers, existing.providers, strict=True):
        if new is not None and new is not old:
            raise SettingsError(f"this model is instrumented already with another {name}; {_REMEDY} one")


def _build(model: Any, tokenizer: Any, settings: Settings, providers: Providers) -> _Instrumentation:
    recorder, meters = composition.recorder_for(settings, providers)
    with ExitStack() as undo:
        target = composition.target_for(model, settings, recorder, tokenizer)
        undo.callback(target.close)
        released = ExitStack()
        undo.push(released)
        composition.start(settings, meters, released, target, recorder.metrics.summary)
        composition.follow_origins(released)
        pauses = Pauses(recorder.recording, partial(recorders.add, composition.stage_recorder(settings, providers, recorder.recording)))
        released.callback(pauses.close)
        instrumentation = _Instrumentation(target, recorder, settings, providers, pauses, released.close)
        undo.pop_all()
    return instrumentation


def _forked() -> None:
    global _lock
    # The thread that held a lock at that moment does not exist in the child.
    _lock = threading.RLock()
    composition.deferred.forked()
    for instrumentation in _instrumentations.values():
        instrumentation.recorder.renew_locks()
        instrumentation.pauses.forked()
    machine.forked()
    origin.forked()
    for instrumentation in _instrumentations.values():
        instrumentation.target.forked()
    renew = sys.modules.get("inferspan.capture.target")
    if renew is not None:
        renew.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
