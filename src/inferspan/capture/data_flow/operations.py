"""Follows tensors through the operations between modules, such as the sum of a residual connection.

A mode of torch, on the thread of a recorded pass and during that pass only, sees each function of torch that Python code calls on that
thread. It calls the function unchanged and notes which tensors the result depends on. It is a mode of functions, not of the dispatcher:
kernels are chosen as without it. It is never there while Dynamo compiles, nor once something was compiled, because Dynamo guards on modes.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from inferspan.guard import report

from .tensors import Tensors

__all__ = ["Operations"]

_C: Any = torch._C
_off: Any = _C.DisableTorchFunction
"""Inside of it no mode and no subclass sees what is asked of a tensor."""
_IN_PLACE = frozenset(
    f"__i{name}__"
    for name in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul")
)


_NO_TENSORS = frozenset((torch.Size, torch.dtype, torch.device, torch.layout, bool, int, float, str))
"""Types of most results without tensors, such as shapes, which most of the calls return."""
_RESULTS = (Tensor, tuple, list)
_CONTAINERS = (tuple, list)


class Operations(TorchFunctionMode):
    """Notes the operations of one pass.

    Args:
        tensors: where they are noted.
    """

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        self._tensors = tensors
        self.on = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, and note what its result depends on."""
        result = func(*args, **kwargs) if kwargs else func(*args)
        if self.on and type(result) not in _NO_TENSORS:
            try:
                with _off():
                    self._note(func, args, kwargs, result)
            except Exception as error:
                report("data flow", error)
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = getattr(func, "__name__", "")
        out = kwargs.get("out") if kwargs else None
        written = out if out is not None else args[0] if args and _writes(name) else None
        if written is None and not isinstance(result, _RESULTS):
            return
        tensors: list[Tensor] = []
        for value in args:
            _collect(value, tensors)
        if kwargs:
            for key, value in kwargs.items():
                if key != "out":
                    _collect(value, tensors)
        if not tensors:
            return
        sources = self._tensors.union(tensors, _name(func, name))
        if not sources:
            return
        if written is not None:
            for tensor in (written,) if isinstance(written, Tensor) else written if isinstance(written, tuple | list) else ():
                if isinstance(tensor, Tensor):
                    self._tensors.write(tensor, sources)
        elif isinstance(result, Tensor):
            self._derive(result, sources, tensors)
        else:
            for part in result:
                if isinstance(part, Tensor):
                    self._derive(part, sources, tensors)

    def _derive(self, result: Tensor, sources: Any, tensors: list[Tensor]) -> None:
        # What comes back as it went in is the same tensor: contiguous(), to(), dropout() of a model in use.
        if not any(result is tensor for tensor in tensors) or self._tensors.exact(result) is None:
            self._tensors.derive(result, sources)

    # -------------------------------------------------------------------------------------------------------- on and off
    def put(self) -> None:
        """Put this below the modes of the program, so that these end in their own order.

        It comes above the mode of a default device, which is always the lowest.
        """
        above: list[Any] = []
        placed = False
        try:
            while _C._len_torch_function_stack():
                above.append(_C._pop_torch_function_stack())
            if above and isinstance(above[-1], DeviceContext):
                _C._push_on_torch_function_stack(above.pop())
            _C._push_on_torch_function_stack(self)
            placed = True
        finally:
            while above:
                _C._push_on_torch_function_stack(above.pop())
            self.on = placed

    def take_off(self) -> bool:
        """Take it off this thread; false if it is not there, perhaps because a function runs inside it."""
        self.on = False
        if not any(_C._get_function_stack_at(place) is self for place in range(_C._len_torch_function_stack())):
            return False
        above: list[Any] = []
        try:
            while (mode := _C._pop_torch_function_stack()) is not self:
                above.append(mode)
        finally:
            while above:
                _C._push_on_torch_function_stack(above.pop())
        return True


@functools.lru_cache(maxsize=4096)
def _writes(name: str) -> bool:
    """Whether a function of this name writes to its first argument."""
    return (name[-1:] == "_" and name[-2:] != "__") or name in ("__setitem__", "__set__") or name in _IN_PLACE


def _name(func: Any, name: str) -> str:
    """The name of an operation, of a property that property's."""
    if name in ("__get__", "__set__"):
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    return _bare(name) or type(func).__name__


@functools.lru_cache(maxsize=4096)
def _bare(name: str) -> str:
    """Without underscores around it, but for the one at the end of operations that write."""
    return name.strip("_") + ("_" if _writes(name) and not name.startswith("__") else "")


def _collect(value: Any, found: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, _CONTAINERS):
        for part in value:
            if isinstance(part, Tensor):
                found.append(part)
            elif isinstance(part, _CONTAINERS):
                found.extend(one for one in part if isinstance(one, Tensor))
