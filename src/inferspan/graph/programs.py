"""One trace: by ``torch.export``, else by ``torch.fx`` where a function that ``torch.fx.wrap`` made opaque is what export cannot trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from torch import nn
from torch.fx import _symbolic_trace

from .building import Program, build
from .errors import TraceError
from .exporting import export
from .failures import frames
from .selection import Selection
from .symbolic import trace_by_fx

_NO_FAKE = re.compile(r"no fake impl|fake impl|not registered|meta kernel", re.IGNORECASE)


def program_of(model: nn.Module, inputs: dict[str, Any], selection: Selection, free: bool = True) -> Program:
    """Trace with leaves that are already chosen.

    Raises:
        TraceError: neither can trace it; with the failure of ``torch.export``.
    """
    try:
        return build(export(model, inputs, selection, free))
    except TraceError as error:
        if not _is_opaque(error):
            raise
        try:
            return trace_by_fx(model, inputs, selection)
        except Exception:
            raise error from error.__cause__


def _is_opaque(error: TraceError) -> bool:
    """Whether the trace broke in a wrapped function, or at an operator without an implementation for fake tensors.

    Nothing else is worth a trace by torch.fx, whose proxies can crash a function in C that takes them for tensors.
    """
    if error.reason == "untraceable_call" and _NO_FAKE.search(str(error)):
        return True
    wrapped = _wrapped()
    return bool(wrapped) and any(frame.f_code in wrapped for frame, _ in frames(error))


def _wrapped() -> set[CodeType]:
    """The code of functions that ``torch.fx.wrap`` has made opaque."""
    entries: Mapping[Any, dict[str, Any]] = getattr(_symbolic_trace, "_wrapped_fns_to_patch", {})
    found: set[CodeType] = set()
    for key, names in entries.items() if isinstance(entries, dict) else ():
        function: Callable[..., Any] | None = names.get(key[1])
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            found.add(code)
    return found
