"""``event(name)``: a moment of the program, on the innermost stage, session or request.

In: a name, attributes, a module. Out: one event to the recorder that was registered last; nothing where nothing is recorded. This module
loads neither torch nor OpenTelemetry.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from inferspan.guard import contain

from .recorders import check_name, newest, recorders

__all__ = ["event", "record"]


def event(name: str, /, *, module: Any = None, **attributes: Any) -> None:
    """A moment of the program with attributes of its own: ``inferspan.event("cache_cleared", entries=40)``.

    It stands on the span of the innermost stage, session or request that is open here, with the time and, inside of ``generate()``, the
    number of the step. Without one it stands alone: a log record, or a span without duration where no logs are sent. Where no model is
    instrumented and no session is open, the call returns at once.

    Args:
        name: of the event; few different ones, with what varies as attributes.
        module: the part of the model that it is about: a path in the model, or the module itself.
        **attributes: by their exact name. What OpenTelemetry cannot carry becomes text, a tensor of several elements its shape and dtype;
            ``None`` is left out.

    Raises:
        TypeError: ``name`` is no text.
        ValueError: ``name`` is empty.
    """
    if type(name) is not str or not name.strip():
        check_name(name, "event")
    if recorders:
        record(name, lambda: attributes, module)


def record(name: str, describe: Callable[[], Mapping[str, Any]], module: Any = None) -> None:
    """Hand an event to the recorder that was registered last.

    Args:
        name: of the event.
        describe: returns its attributes; called only if they are recorded.
        module: as for ``event``.
    """
    recorder = newest()
    if recorder is None:
        return
    with contain("event"):
        request = _running()

        def describe_all() -> Mapping[str, Any]:
            found = dict(describe())
            with contain("attributes of an event"):
                found = {**({} if request is None else request.step()), **_of_module(module, request), **found}
            return found

        recorder.event(name, describe_all, request)


class _Request:
    """The innermost request that runs here: an :class:`~inferspan.spans.program_events.EventTarget`."""

    __slots__ = ("_call", "began", "offset", "span")

    def __init__(self, call: Any) -> None:
        self._call = call
        self.span = call.scope.span
        self.began: int = call.start
        self.offset: int = call.offset

    def step(self) -> dict[str, Any]:
        """Phase and number of the step that is open."""
        from inferspan import semconv

        steps = getattr(self._call, "steps", None)
        if steps is None or not steps.open or steps.phase.name not in (semconv.SPAN_PREFILL, semconv.SPAN_DECODE):
            return {}
        return {semconv.PHASE: steps.phase.name, semconv.STEP_INDEX: steps.index}

    def path_of(self, module: Any) -> str | None:
        """Path of a module in the model of this request."""
        model = self._call.owner.model
        return next((name for name, found in model.named_modules() if found is module), None) if model is not None else None


def _running() -> _Request | None:
    # Where the capture is not loaded no request runs.
    calls: Any = sys.modules.get("inferspan.capture.call")
    call = None if calls is None else calls.around_here()
    return None if call is None or not hasattr(call.scope, "span") else _Request(call)


def _of_module(module: Any, request: _Request | None) -> dict[str, Any]:
    from inferspan import semconv

    if module is None:
        return {}
    if isinstance(module, str):
        return {semconv.MODULE_NAME: module}
    path = None if request is None else request.path_of(module)
    return {semconv.MODULE_TYPE: type(module).__name__, semconv.MODULE_NAME: path}
