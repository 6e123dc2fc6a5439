"""An object in the slot of a module's compiled call, which records each call while a recorded pass runs.

``nn.Module.__call__`` runs ``_compiled_call_impl`` of the module's ``__dict__``, if there is one, instead of ``_call_impl``.
``module.compile()`` uses this slot, and torch leaves it out of copies and pickles. An ``ObservedCall`` does the work of ``_call_impl`` on
its fast path, so an observed call has as many Python frames as a plain one, or one less. The module's ``forward`` is not changed. Each call
appends one row to the log of the request that runs on its thread.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

from torch import jit, nn
from torch.nn.modules import module as torch_calls

from inferspan.capture.compile.state import SLOT, SlotObserver, is_optimized

from .recorder import FRAMES, ModuleCaller

__all__ = ["ObservedCall", "can_hold", "can_observe"]

_counted = hasattr(sys, "getrefcount") and getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether reference counts are exact: not in free-threaded builds, nor where there are none."""
_HOOKS = ("backward_hooks", "backward_pre_hooks", "forward_hooks", "forward_pre_hooks")
_torch_calls = vars(torch_calls)


def _is_known() -> bool:
    """Whether torch calls modules as ``ModuleCaller`` does: by the slot, or past eight tables of hooks to ``forward``.

    A later torch with further checks, or a library that has replaced these functions, must not be bypassed.
    """
    call, plain = nn.Module.__call__, nn.Module._call_impl
    if not (isinstance(call, FunctionType) and isinstance(plain, FunctionType)):
        return False
    names = plain.__code__.co_names
    # Up to torch 2.5 the slow path stands in the same function, with methods that return hooks.
    tables = {name for name in names if name.endswith("_hooks") and not name.startswith("_get_")}
    return (
        call is nn.Module._wrapped_call_impl
        and set(call.__code__.co_names) == {SLOT, "_call_impl"}
        and call.__module__ == plain.__module__ == nn.Module.__module__
        and tables == {*(f"_{name}" for name in _HOOKS), *(f"_global_{name}" for name in _HOOKS)}
        and {"_get_tracing_state", "_slow_forward", "forward"} <= set(names)
    )


_known = _is_known()
_CALL = nn.Module.__call__
_dictionary: Any = nn.Module.__dict__["__dict__"].__get__
"""The dictionary of a module, also where its class overrides ``__dict__``."""


def _looks_for_slot(module: nn.Module) -> bool:
    kind = type(module)
    usual = kind.__getattribute__ is object.__getattribute__ and getattr(kind, SLOT, None) is None
    usual = usual and module.__dict__ is _dictionary(module)
    # A lazy module becomes one of another class in its first call.
    return _known and usual and not is_optimized(module) and not hasattr(kind, "cls_to_become")


def can_hold(module: nn.Module) -> bool:
    """Whether torch looks for the slot in the module's ``__dict__`` and otherwise calls it in a known way; if not, hooks are used."""
    return type(module).__call__ is _CALL and _looks_for_slot(module)


def _leads_to_torch(call: object) -> bool:
    """Whether a ``__call__`` of a module's class goes on to that of its base, if it calls the module at all, and not past the slot.

    Hooks would run at the same moments, at three times the cost. Such a method have the layers of transformers until 5.17.
    """
    names = set(call.__code__.co_names) if isinstance(call, FunctionType) else set()
    return {"super", "__call__"} <= names and names.isdisjoint(("_call_impl", "_slow_forward", "_wrapped_call_impl", "forward"))


def _calls_known(kind: type[nn.Module]) -> bool:
    """Whether torch's ``__call__`` runs in each call of a module of this class that runs hooks."""
    if kind.__call__ is _CALL:
        return True
    below = kind.__mro__[: kind.__mro__.index(nn.Module)]
    return all(_leads_to_torch(vars(one)["__call__"]) for one in below if "__call__" in vars(one))


def can_observe(module: nn.Module) -> bool:
    """Whether an ``ObservedCall`` may occupy the slot; it tells its module from a copy by counting references."""
    # Below a scripted module there is no Python.
    return _counted and _calls_known(type(module)) and _looks_for_slot(module) and not issubclass(type(module), jit.ScriptModule)


class ObservedCall(SlotObserver, ModuleCaller):
    """Does what torch does to call a module, and records it.

    Args:
        module: whose calls are observed.
        info: static facts of the module.
        engine: whose calls record; those of others, such as that of a model inside this one, do not.
    """

    __slots__ = ("__weakref__",)

    def _observed(self) -> nn.Module:
        module: nn.Module = self.module
        return module

    def attach(self) -> bool:
        """Put this into the slot; false if it holds the result of ``module.compile()`` or another attached observer."""
        names: dict[str, Any] = self.module.__dict__
        taken = names.get(SLOT)
        if taken is not None and (type(taken) is not ObservedCall or taken.attached):
            return False
        names[SLOT] = self
        self.attached = True
        return True

    def __reduce__(self) -> Any:
        # A copy of a module's dictionary gets an empty slot.
        return type(None), ()

    def _leave(self, module: nn.Module) -> None:
        if module.__dict__.get(SLOT) is self:
            # Another thread may do the same.
            module.__dict__.pop(SLOT, None)

    def _instead(self, frames: int = FRAMES) -> Any:
        """The function to call instead, if the caller is not our module but one with its dictionary, or a copy; else ``None``.

        Args:
            frames: Python frames between this one and the caller's, that included.
        """
        frame = sys._getframe(frames)
        caller = frame.f_locals.get("self") if frame.f_globals is _torch_calls else None
        if isinstance(caller, nn.Module) and caller is not self.module and caller.__dict__.get(SLOT) is self:
            if caller.__dict__ is not self.module.__dict__:
                self._leave(caller)
            return caller._call_impl
        if self.attached:
            return None
        # The program took this out of the slot before it was detached, and called it or put it back afterwards.
        self._leave(self.module)
        return self.module._call_impl
