"""Functions that compute attention, observed while recorded requests want it.

``scaled_dot_product_attention`` of torch, and the table of attention functions of transformers. Each is wrapped: the wrapper calls the
function with the same arguments, returns what it returns, and shows the call to the request that runs on its thread. Dynamo would guard on
the wrapper, so nothing is wrapped once code was compiled that may have looked the functions up.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from inferspan.capture.compile.state import has_compiled, leave_alone, leave_frame
from inferspan.capture.compile.transforms import is_capturing
from inferspan.capture.modules.recorder import current
from inferspan.capture.values.unseen import unseen
from inferspan.guard import pass_on, report

__all__ = ["Patches", "may_patch", "patches"]

_TABLE = "ALL_ATTENTION_FUNCTIONS"
_HARMLESS = ("flex_attention.py", os.path.join("torch", "_dynamo", ""), os.path.join("torch", "_compile.py"))
"""Files whose compiled code calls no attention function: kernels of flex attention, and what Dynamo compiles of itself on the way."""
_tracing: Any = torch._C._get_tracing_state


@leave_alone
def _here() -> Any:
    """What records attention in the request that runs on this thread, inside a layer of its model."""
    call: Any = current.call
    looking = getattr(call, "looking", None)
    attention = None if looking is None else looking.attention
    if attention is None or not attention.frames or attention.inside or is_dynamo_compiling() or _tracing() or is_capturing():
        return None
    return attention


@leave_alone
def _show(attention: Any, name: str | None, args: Any, kwargs: Any, output: Any) -> None:
    try:
        with unseen():
            attention.observe(name, args, kwargs, output)
    except Exception as error:
        report("attention", error)


def _around_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    @leave_frame
    @functools.wraps(function)
    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
        output = function(*args, **kwargs)
        attention = _here()
        if attention is not None:
            _show(attention, None, args, kwargs, output)
        return output

    return scaled_dot_product_attention


def _around_interface(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @leave_frame
    @functools.wraps(function)
    def attention_function(*args: Any, **kwargs: Any) -> Any:
        attention = _here()
        if attention is None:
            return function(*args, **kwargs)
        attention.inside += 1
        try:
            output = function(*args, **kwargs)
        finally:
            attention.inside -= 1
        _show(attention, name, args, kwargs, output)
        return output

    return attention_function


def may_patch() -> bool:
    """Whether no compiled code can have looked one of the functions up; kernels of flex attention do not."""
    if not has_compiled():
        return True
    module: Any = sys.modules.get("torch._dynamo.convert_frame")
    try:
        codes = [code for reference in module.input_codes.seen if (code := reference()) is not None]
        return all(any(part in code.co_filename for part in _HARMLESS) for code in codes)
    except Exception as error:  # another torch keeps something else there
        pass_on(error)
        return False


def _tables(homes: Iterable[str]) -> list[MutableMapping[str, Any]]:
    """The tables of attention functions that the code of these Python modules uses, and that of all of transformers."""
    found: list[MutableMapping[str, Any]] = []
    for home in {*homes, "transformers.modeling_utils"}:
        table = getattr(sys.modules.get(home), _TABLE, None)
        mappings = (getattr(table, "_local_mapping", None), getattr(table, "_global_mapping", table))
        found += [one for one in mappings if isinstance(one, dict) and all(one is not other for other in found)]
    return found


class Patches:
    """The wrappers that are in place in this process, for as long as somebody needs them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._placed: list[tuple[Callable[[], Any], Callable[[Any], None], Any, Any]] = []

    def acquire(self, homes: Iterable[str]) -> bool:
        """Wrap the functions that code of these Python modules calls; false if compiled code prevents it. ``release`` undoes it."""
        if not may_patch():
            return False
        with self._lock:
            self._users += 1
            try:
                self._place_all(homes)
            except BaseException:
                self._users -= 1
                self._restore()
                raise
        return True

    def _place_all(self, homes: Iterable[str]) -> None:
        functional: Any = nn.functional
        name = "scaled_dot_product_attention"
        self._place(lambda: getattr(functional, name, None), lambda value: setattr(functional, name, value), _around_torch)
        for table in _tables(homes):
            for key in [*table]:
                self._place_in(table, key)

    def _place_in(self, table: MutableMapping[str, Any], key: str) -> None:
        self._place(lambda: table.get(key), lambda value: table.__setitem__(key, value), functools.partial(_around_interface, key))

    def _place(self, get: Callable[[], Any], put: Callable[[Any], None], around: Callable[[Any], Any]) -> None:
        function = get()
        if not callable(function) or any(function is wrapper for _, _, _, wrapper in self._placed):
            return
        wrapper = around(function)
        self._placed.append((get, put, function, wrapper))
        put(wrapper)

    def release(self) -> None:
        """Undo one ``acquire``; the last one puts the functions back. A function that others have replaced since stays theirs."""
        with self._lock:
            self._users = max(0, self._users - 1)
            self._restore()

    def _restore(self) -> None:
        while self._placed and not self._users:
            get, put, function, wrapper = self._placed[-1]
            if get() is wrapper:
                put(function)
            self._placed.pop()

    def forked(self) -> None:
        """Called in a forked child, where no thread is left to release the lock."""
        self._lock = threading.Lock()


patches = Patches()
