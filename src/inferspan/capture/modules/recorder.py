"""The recorder of module calls in this process: the C extension if it was built and is wanted, else its counterpart in Python."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_calls

from inferspan.capture.failures import error_type
from inferspan.extension import load
from inferspan.guard import contain
from inferspan.records import ModuleColumns

from . import call_log
from .call_log import current
from .shapes import MAX_ENTRIES, describe, looks_into

__all__ = ["FRAMES", "IN_C", "CallLog", "ModuleCaller", "attach_callers", "bind", "current", "detach_callers", "same_structure"]


_T = TypeVar("_T")


def _failed(error: Exception) -> None:
    """Contain an exception of ours that was raised in C code."""
    try:
        with contain("module call"):
            raise error
    finally:
        # It refers to this frame, and to those that had the module's tensors.
        del error


_extension: Any = load().module


def bind() -> None:
    """Pass the Python objects that C code needs."""
    if _extension is not None:
        _extension.bind(
            current=current,
            describe=describe,
            failed=_failed,
            error_type=error_type,
            tensor=Tensor,
            clock=perf_counter_ns,
            tracing=torch._C._get_tracing_state,
            call_impl=nn.Module._call_impl,
            hook_tables=vars(torch_calls),
            columns=ModuleColumns,
            looks_into=looks_into,
            most_entries=MAX_ENTRIES,
        )


def _is_usable() -> bool:
    """Whether there is an extension and it takes the objects that it needs."""
    with contain("C extension"):
        bind()
        return _extension is not None
    return False


IN_C = _is_usable()
"""Whether calls are recorded by the C extension."""
FRAMES = 1 if IN_C else 2
"""Python frames between a method that ``ModuleCaller`` calls and the caller of the ``ModuleCaller``, that included: C code has none."""
if TYPE_CHECKING or not IN_C:
    # Each on a line of its own, or mypy takes them for variables.
    ModuleCaller = call_log.ModuleCaller
    CallLog = call_log.CallLog
else:
    CallLog, ModuleCaller = _extension.CallLog, _extension.ModuleCaller


def _attach_none(selection: list[_T], _spare: dict[int, Any], _attached: list[Any]) -> list[_T]:
    return selection


def _detach_none(_attached: list[Any], _spare: dict[int, Any]) -> None:
    pass


def _same_nothing(_above: list[Any], _parents: list[Any], _observers: type) -> bool:
    return False


attach_callers: Callable[[list[Any], dict[int, Any], list[Any]], list[Any]] = _extension.attach_callers if IN_C else _attach_none
"""Put callers of ``spare`` into free slots of modules without hooks, and on the list of those that are attached.

The rest of the selection is returned, for which Python does it; all of it where there is no extension.
"""
detach_callers: Callable[[list[Any], dict[int, Any]], None] = _extension.detach_callers if IN_C else _detach_none
"""Take callers off, the last one first; those that nobody else has become spare ones. What is left on the list is Python's to take off."""
same_structure: Callable[[list[Any], list[Any], type], bool] = _extension.same_structure if IN_C else _same_nothing
"""Whether the structure of a model surely is that of before; where it is false, Python looks.

The first list has (weak reference, whether it was compiled, identities of its children, its class's ``forward``) of modules, the
second (weak reference, names, weak references to the children of these names).
"""
