"""One load: from the entry of ``from_pretrained()`` to its end, and the parts of it that libraries have functions for.

Loads nest: that of a pipeline holds those of its models. What is loaded, exceptions and the order of calls are the program's own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from inferspan import semconv
from inferspan.guard import contain
from inferspan.records import AttributeValue, Failure, LoadEnd, LoadRecorder
from inferspan.settings import Settings

from .checkpoint import checkpoint_facts, files_among

__all__ = ["Loads"]

_KEPT = (
    semconv.MODEL_ARCHITECTURE,
    semconv.MODEL_TYPE,
    semconv.MODEL_REVISION,
    semconv.MODEL_PARAMETERS,
    semconv.MODEL_DTYPE,
    semconv.MODEL_QUANTIZATION_METHOD,
    semconv.MODEL_QUANTIZATION_BITS,
    semconv.DEVICE,
    semconv.DEVICE_TYPE,
)
"""Facts of a model that a load has too."""
_AT_THE_END = (semconv.MODEL_DTYPE, semconv.DEVICE)


class _Load:
    """A load that runs."""

    __slots__ = ("files", "parts")

    def __init__(self) -> None:
        self.files: list[str] = []
        self.parts: list[tuple[str, int, int]] = []


class Loads:
    """Records the loads of this process.

    Args:
        recorder: where they go.
        settings: names that the user gives, and whether content is captured.
        now: nanoseconds since the epoch.
    """

    def __init__(self, recorder: LoadRecorder, settings: Settings, now: Callable[[], int] = time.time_ns) -> None:
        self._recorder = recorder
        self._settings = settings
        self._now = now
        self._running = threading.local()
        self.open = True

    @property
    def _stack(self) -> list[_Load]:
        stack: list[_Load] | None = getattr(self._running, "stack", None)
        if stack is None:
            stack = self._running.stack = []
        return stack

    def load(self, kind: str, source: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run ``original`` as one load.

        Args:
            kind: what is loaded.
            source: hub id or path that it is loaded from.
            original: loads it.
            args: positional arguments.
            kwargs: keyword arguments.
        """
        scope: Any = None
        with contain("start of a load"):
            scope = self._recorder.start_load(kind, _name(source), self._now()) if self.open else None
        if scope is None:
            return original(*args, **kwargs)
        load = _Load()
        self._stack.append(load)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            self._end(scope, load, kind, None, self._failure(error, source))
            raise
        self._end(scope, load, kind, result, None)
        return result

    def part(self, name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run ``original`` as a part of the load that runs on this thread; files among its arguments or results are the checkpoint's."""
        stack = self._stack
        if not stack:
            return original(*args, **kwargs)
        load, begun = stack[-1], self._now()
        try:
            result = original(*args, **kwargs)
            if name == semconv.SPAN_RESOLVE:
                with contain("files of a checkpoint"):
                    load.files = files_among(result if isinstance(result, tuple) else (result,)) or load.files
        finally:
            load.parts.append((name, begun, self._now()))
        if name == semconv.SPAN_READ and not load.files:
            with contain("files of a checkpoint"):
                load.files = files_among((*args, *kwargs.values()))
        return result

    # ----------------------------------------------------------------------------------------------------------------- end
    def _end(self, scope: Any, load: _Load, kind: str, result: Any, failure: Failure | None) -> None:
        stack = self._stack
        if load in stack:
            del stack[stack.index(load) :]
        end, attributes, checkpoint = self._now(), dict[str, AttributeValue](), dict[str, AttributeValue]()
        with contain("end of a load"):
            attributes = self._facts(kind, result[0] if isinstance(result, tuple) and result else result)
            seconds: dict[str, AttributeValue] = {}
            for name, begun, ended in load.parts:
                key = semconv.LOAD_TIMES[name]
                seconds[key] = float(seconds.get(key, 0.0)) + (ended - begun) / 1e9  # type: ignore[arg-type]
            attributes |= seconds
            checkpoint = checkpoint_facts(load.files)
            if checkpoint:
                checkpoint |= seconds | {key: attributes[key] for key in _AT_THE_END if key in attributes}
        with contain("end of a load"):
            scope.end(LoadEnd(end, failure, attributes, load.parts, checkpoint))

    def _facts(self, kind: str, result: Any) -> dict[str, AttributeValue]:
        nn = getattr(sys.modules.get("torch"), "nn", None)
        if result is None:
            return {}
        if nn is None or not isinstance(result, nn.Module):
            return {semconv.MODEL_ARCHITECTURE: type(result).__name__}
        from inferspan.capture.model_info import model_info

        info = model_info(result, self._settings)
        known = {**info.attributes, semconv.MODEL_ARCHITECTURE: info.architecture}
        return {key: known[key] for key in _KEPT if key in known}

    def _failure(self, error: BaseException, source: Any) -> Failure | None:
        """The exception as text, in which the folder of the checkpoint is its name only."""
        with contain("end of a load"):
            from inferspan.capture.failures import failure_of

            failure = failure_of(error, content=self._settings.content_on_spans)
            name = _name(source)
            places = {str(source), os.path.abspath(str(source))} if isinstance(source, str | os.PathLike) else set()
            for place in sorted(places, key=len, reverse=True):
                if name is not None and os.sep in place and place != name:
                    failure = Failure(failure.type, failure.message.replace(place, name), failure.stacktrace.replace(place, name))
            return failure
        return Failure("_OTHER", "", "")


def _name(source: Any) -> str | None:
    """Name of what is loaded from a hub id or path; ``None`` if that is not known."""
    if not isinstance(source, str | os.PathLike) or not str(source):
        return None
    if "torch" in sys.modules:
        from inferspan.capture.model_info import name_of

        return name_of(str(source))[0]
    return os.path.basename(str(source).rstrip(os.sep))
