"""The two implementations of the recorder, in C and in Python, and modules whose calls they record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from torch import nn

from inferspan import extension
from inferspan.capture.device import boundaries
from inferspan.capture.modules import call_log, recorder
from inferspan.capture.modules.recorder import IN_C

__all__ = ["IMPLEMENTATIONS", "INFOS", "IN_C_CODE", "IN_PYTHON", "C", "Counted", "Implementation", "Thing", "answer_of", "described_by", "in_c", "observe", "recorded_in_c", "rows_of"]

INFOS: Any = tuple(object() for _ in range(4))
"""Facts of modules."""
C: Any = extension.find().module


class Implementation(NamedTuple):
    """One of the two recorders."""

    log: Any
    caller: Any
    boundaries: Any
    native: Any
    """Makes the native events of a pool, if they can be had."""


IN_PYTHON = Implementation(call_log.CallLog, call_log.ModuleCaller, boundaries.Boundaries, None)
IN_C_CODE: Any = Implementation(C.CallLog, C.ModuleCaller, C.Boundaries, C.NativeEvents) if IN_C else None
IMPLEMENTATIONS = [pytest.param(IN_PYTHON, id="Python")]
if IN_C:
    IMPLEMENTATIONS.append(pytest.param(IN_C_CODE, id="C"))
in_c = pytest.mark.skipif(not IN_C, reason="needs the C extension")


def rows_of(log: Any) -> list[Any]:
    """The calls of a pass, which the log forgets."""
    return [*log.cut().rows()]


def recorded_in_c(calls: Any) -> Any:
    """The same calls, numbered from 0 as they began, as the log in C gives them; the parent of the outermost is -1."""
    rows = list(calls.rows())
    by_number, log, begun = {row[0]: row for row in rows}, IN_C_CODE.log(), 0
    for number, _, _, _, end, _, outputs, failure, slot in rows:
        while begun <= number:
            _, _, info, start, _, inputs, *_ = by_number[begun]
            log.enter(info, inputs, start)
            begun += 1
        log.leave(end, outputs, failure, slot)
    return log.cut()


def answer_of(function: Callable[[], Any]) -> Any:
    """What a call gives, or the class of what it raises."""
    try:
        return function()
    except Exception as error:
        return type(error)


class Thing:
    """Something that can be looked for."""


class Counted(nn.Module):
    """Returns what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: Callable[..., Any] = lambda *args, **kwargs: args[0] if args else None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Anything."""
        return self.answer(*args, **kwargs)


def observe(implementation: Implementation, module: nn.Module, engine: object, info: Any = INFOS[0]) -> Any:
    """What calls a module and records it, without what ``ObservedCall`` adds."""
    kind: Any = type("Observed", (implementation.caller,), {"_instead": lambda self: None})
    observed = kind(module, info, engine)
    module.__dict__["_compiled_call_impl"] = observed
    observed.attached = True
    return observed


class described_by:
    """Both recorders describe by another function for a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
        self._monkeypatch, self._function = monkeypatch, function

    def __enter__(self) -> None:
        for name in ("describe", "describe_like"):
            self._monkeypatch.setattr(call_log, name, self._function)
        self._monkeypatch.setattr(recorder, "describe", self._function)
        recorder.bind()

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.undo()
        recorder.bind()
