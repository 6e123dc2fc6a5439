"""``with generation(...)``, and sessions: blocks of the user's program that are recorded.

In: a model or a name, and options. Out: a generation, session or stage, connected to the recorder of the model, or to one of its own where
nothing is instrumented. A wrong argument raises; whatever fails in telemetry is contained, and the block runs without it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from numbers import Integral
from typing import TYPE_CHECKING, Any

from inferspan import composition
from inferspan.arguments import resolve, unwrap
from inferspan.composition import Providers
from inferspan.guard import contain, report
from inferspan.setting_checks import warn_once
from inferspan.settings import Settings, SettingsError

from . import recorders
from .recorders import OffGeneration, check_name

if TYPE_CHECKING:
    from inferspan.capture.by_hand.generation import Generation
    from inferspan.capture.by_hand.target import LooseTarget

__all__ = ["generation", "open_session", "rest"]

MOST_NAMES = 64
"""Names of models whose recorders are kept."""
_lock = threading.RLock()
_loose: dict[object, _Loose] = {}
"""What generations are recorded with on models that are not instrumented, by the model's identity or name."""
_collected: deque[object] = deque()
"""Keys of models that were collected. A finaliser may run inside any lock, so it only puts them here."""


class _Loose:
    """The recorder of a model that is not instrumented, and its target."""

    def __init__(self, model: Any, tokenizer: Any, settings: Settings, providers: Providers) -> None:
        from inferspan.capture.by_hand.target import LooseTarget, NamedTarget

        self.settings, self.providers = settings, providers
        self.recorder, self._meters = composition.recorder_for(settings, providers)
        self.stages = composition.stage_recorder(settings, providers)
        make: Any = NamedTarget if issubclass(type(model), str) else LooseTarget
        self.target: LooseTarget = make(model, settings, self.recorder, tokenizer)
        self._released = ExitStack()
        self._rests = False
        self._start()

    def _start(self) -> None:
        self._rests = False
        composition.start(self.settings, self._meters, self._released, self.target, self.recorder.metrics.summary)

    def rest(self) -> None:
        """Stop what requests need in this process until the next generation, if none runs; called with the lock held."""
        if self.target.idle:
            self._rests = True
            with contain("end of a generation"):
                self._released.close()

    def close(self) -> None:
        """Nothing is recorded with it any more; generations that run go on."""
        # One that was made before and begins later starts nothing, which nobody would stop.
        self._rests = False
        with contain("end of a generation"):
            self.target.close()
        with contain("end of a generation"):
            self._released.close()

    def hold(self) -> Callable[[], None]:
        """A generation begins; returns what is called when it has ended."""
        held = ExitStack()
        held.callback(recorders.add(self.stages))
        composition.follow_origins(held)
        with _lock:
            if self._rests:
                with contain("set-up of a generation"):
                    self._start()
            self.target.begin_block()
        held.callback(self.target.end_block)
        return held.close


def _nothing_held() -> Callable[[], None]:
    return lambda: None


def generation(
    model: Any,
    *,
    tokenizer: Any = None,
    input_tokens: Any = None,
    max_new_tokens: int | None = None,
    settings: Settings | None = None,
    tracer_provider: Any = None,
    meter_provider: Any = None,
    logger_provider: Any = None,
    **settings_overrides: Any,
) -> Generation:
    """A decoding loop of your own, recorded as ``generate()`` is: the same spans, tokens, statistics and metrics.

    ::

        with inferspan.generation(model, input_tokens=ids, max_new_tokens=20) as g:
            with g.prefill():
                output = model(ids)
            token = output.logits[:, -1].argmax(-1)
            g.token(output.logits, token)
            ...  # with g.step(): and g.token(logits, token) until the loop ends
            g.finish("length")

    The block is one request. ``prefill()`` and ``step()`` stand around the forward passes, which are no requests of their own then, and
    ``token()`` tells of each choice. ``finish(reason)`` ends it; else the end of the block does, with ``stop``, or its exception, with an
    error. Values that only the loop knows (temperature, beams) come from ``inferspan.context()``.

    Args:
        model: a ``torch.nn.Module``, instrumented or not, or a pipeline that holds one as ``.model``; for another engine the model's name.
        tokenizer: has the end token, and decodes prompts and outputs where content is captured.
        input_tokens: tokens of the prompt: a number for every row, a list with one for each row, the ids ``[rows, tokens]`` as tensor or
            array, or the mapping that a tokenizer returns. Default: what goes into the first pass of the module.
        max_new_tokens: limit of the loop, for the request's span.
        settings: options, where the model is not instrumented; default: resolved from environment, file and presets.
        tracer_provider: where spans go, where the model is not instrumented; default the global provider.
        meter_provider: likewise for metrics.
        logger_provider: likewise for log events.
        **settings_overrides: single settings, where the model is not instrumented.

    Returns:
        The generation, to be used in ``with``.

    Raises:
        TypeError: ``model`` is neither a module nor a name, or another argument is of the wrong type.
        ValueError: ``model`` is an empty name, or a number is out of range.
        SettingsError: a setting is unknown or wrong.
    """
    if issubclass(type(model), str):
        check_name(model, "generation")
    limit = _limit(max_new_tokens)
    explicit = settings is not None or bool(settings_overrides)
    resolved = resolve(settings, settings_overrides) if explicit else None
    try:
        from inferspan.capture.by_hand.generation import Generation
        from inferspan.capture.by_hand.prompt import prompt_of
        from inferspan.capture.target import target_of
    except ImportError as error:
        warn_once("inferspan.generation() records nothing, because it needs torch, also for other engines: %s", error)
        return _off()
    if not issubclass(type(model), str):
        model, tokenizer = unwrap(model, tokenizer, "generation")
    prompt = prompt_of(input_tokens)
    owner = None if issubclass(type(model), str) else target_of(model)
    hold: Callable[[], Callable[[], None]] = _nothing_held
    if owner is None:
        try:
            loose = _loose_of(model, tokenizer, resolved, (tracer_provider, meter_provider, logger_provider))
        except SettingsError:
            raise
        except Exception as error:
            report("set-up of a generation", error)
            return _off()
        if loose is None:
            return _off()
        owner, hold = loose.target, loose.hold
    return Generation(
        owner,
        None if issubclass(type(model), str) else model,
        prompt,
        tokenizer=tokenizer,
        max_new_tokens=limit,
        hold=hold,
    )


def _limit(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is bool or not isinstance(value, Integral):
        raise TypeError(f"inferspan.generation() takes max_new_tokens as a whole number, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"inferspan.generation() cannot take max_new_tokens={int(value)}: use 1 or more, or leave it out")
    return int(value)


def _off() -> Generation:
    nothing: Any = OffGeneration()
    return nothing  # type: ignore[no-any-return]  # it has the same methods


def _loose_of(model: Any, tokenizer: Any, settings: Settings | None, providers: Providers) -> _Loose | None:
    """What generations of a model are recorded with; made at the first one, and again with other settings or providers.

    ``None`` where ``enabled`` is false.
    """
    key: object = model if issubclass(type(model), str) else id(model)
    with _lock:
        while _collected:
            gone = _loose.pop(_collected.popleft(), None)
            if gone is not None:
                gone.close()
        known = _loose.get(key)
        if known is not None and all(new is None or new is old for new, old in zip(providers, known.providers, strict=True)):
            same_model = issubclass(type(model), str) or known.target.model is model
            if same_model and (settings is None or settings == known.settings):
                if tokenizer is not None:
                    known.target.tokenizer = tokenizer
                return known
        if settings is None:
            settings = Settings.resolve()
        if not settings.enabled:
            return None
        composition.begin_export(settings, providers)
        made = _loose[key] = _Loose(model, tokenizer, settings, providers)
        if known is not None:
            known.close()
        if not issubclass(type(model), str):
            weakref.finalize(model, _collected.append, key).atexit = False
        named = [name for name in _loose if isinstance(name, str)]
        for name in named[: max(0, len(named) - MOST_NAMES)]:
            _loose.pop(name).close()
        return made


def rest() -> None:
    """Stop the readings that are taken for generations, where none runs; the next one has them begin again."""
    with _lock:
        for known in _loose.values():
            known.rest()


def open_session(name: str, tags: Mapping[str, str], tracer_provider: Any) -> Any:
    """A session that has not begun; ``OFF`` where ``enabled`` is false, or where it cannot be set up.

    Args:
        name: of the session.
        tags: beside those of the settings.
        tracer_provider: where its spans go, as for ``session()``.
    """
    recorder = recorders.newest() if tracer_provider is None else None
    with contain("set-up of a session"):
        if recorder is None:
            settings = Settings.resolve()
            if not settings.enabled:
                return recorders.OFF
            providers = (tracer_provider, None, None)
            with contain("set-up of a session"):
                composition.set_up_export(settings, providers)
            recorder = composition.stage_recorder(settings, providers)
        made: Any = recorder.session(name, tags, lambda: _hold(recorder, made))
        return made
    return recorders.OFF


def _hold(recorder: recorders.StageRecorder, session: Any) -> Callable[[], None]:
    """While a session is open, have stages recorded, and threads that are started in it find it; report it, if that is asked for."""
    held = ExitStack()
    if recorder.settings.report is not None:
        held.callback(composition.reports().session(session.name, session.id))
    if recorder.settings.live:
        held.callback(composition.display().session(session.name, session.id))
    held.callback(recorders.add(recorder))
    composition.follow_origins(held)
    return held.close


def _forked() -> None:
    global _lock
    # The thread that held it does not exist in the child.
    _lock = threading.RLock()
    for loose in _loose.values():
        loose.recorder.renew_locks()
        loose.target.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
