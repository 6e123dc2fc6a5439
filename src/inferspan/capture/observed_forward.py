"""The ``forward`` of a submodule, observed: a callable that stands in the module's ``__dict__`` while a recorded pass runs.

torch calls ``module.forward`` on its fast path, so this costs a quarter of a pair of registered hooks, and other threads' passes nearly
nothing. In and out is what the module's own ``forward`` takes, returns and raises; every attribute (signature, name, ``__self__``) is
that one's too. Copies and pickles hold the plain ``forward``. Each call appends one record to the ``Call`` that runs on its thread.
"""

from __future__ import annotations

import copy
import sys
from inspect import getattr_static
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling

from ..records import ModuleInfo
from .compilation import is_optimized, leave_frame
from .recorder import IN_C, Forward, Hot

__all__ = ["OWNED", "ObservedForward", "can_observe"]

OWNED = "_inferspan_owned"
"""Key beside ``forward`` in the module's ``__dict__``: its reference count tells whether somebody has copied the dictionary."""
_counted = hasattr(sys, "getrefcount") and getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether reference counts are exact: not in free-threaded builds, nor where there are none."""
_ABOVE = 1 if IN_C else 2
"""Frames from what is asked by a call to the caller of that: C code has none."""
_torch_calls = nn.Module._call_impl.__globals__


def can_observe(module: nn.Module) -> bool:
    """Whether torch looks ``forward`` up in the module's ``__dict__`` and finds there what it runs; where not, hooks have to do."""
    kind = type(module)
    # A property comes before the dictionary; a lazy module becomes one of another class in its first call.
    plain = kind.__getattribute__ is object.__getattribute__ and not hasattr(getattr_static(kind, "forward", None), "__set__")
    return _counted and plain and not is_optimized(module) and not hasattr(kind, "cls_to_become")


def _of_class(module: nn.Module) -> Any:
    """The ``forward`` that a module has by its class."""
    kind = type(module)
    found = getattr_static(kind, "forward")
    bind = getattr(type(found), "__get__", None)
    return found if bind is None else bind(found, module, kind)


def _itself(forward: Any) -> Any:
    return forward


class _Slots(Forward):
    # With a dictionary, though nothing is in it: Dynamo asks every object for one.
    __slots__ = ("__dict__", "__weakref__", "_key", "_own")


class ObservedForward(_Slots):
    """Calls the ``forward`` that a module had before, and records the call.

    Args:
        module: whose ``forward`` it is.
        info: static facts of the module.
        engine: whose calls record; those of others, such as that of a model inside this one, do not.
    """

    __slots__ = ()
    _key: str
    _own: bool
    _put = object.__setattr__

    def __init__(self, module: nn.Module, info: ModuleInfo, engine: object) -> None:
        self._put("_own", "forward" in module.__dict__)
        self._put("_hot", Hot(module, info, engine))
        self._put("_key", OWNED)

    @property
    def __wrapped__(self) -> Any:
        return self._hot.forward

    def attach(self) -> None:
        """Put this in the place of the module's ``forward``."""
        names: dict[str, Any] = self._hot.module.__dict__
        while self._key in names:
            self._put("_key", self._key + "_")
        names[self._key] = self._hot
        names["forward"] = self

    def detach(self) -> None:
        """Put back what was there; if somebody else has replaced ``forward`` meanwhile, theirs stays, and ours in it records no more."""
        names: dict[str, Any] = self._hot.module.__dict__
        if names.get(self._key) is self._hot:
            del names[self._key]
        self._go(names)
        self._put("__class__", _Detached)

    def _go(self, names: dict[str, Any]) -> None:
        """Put back what was there, if this stands in ``names``, the dictionary of its module."""
        if names.get("forward") is not self:
            return
        below: Any = self
        # Another of ours may have been below, and gone before.
        while below._own and type(below.__wrapped__) is _Detached:
            below = below.__wrapped__
        if below._own:
            names["forward"] = below.__wrapped__
        else:
            del names["forward"]

    def _follow(self) -> None:
        """The module has another class, or its class another ``forward``, than when this was last looked at."""
        hot = self._hot
        hot.found = type(hot.module).forward
        if not self._own:
            hot.forward = _of_class(hot.module)

    def _of_copy(self, above: int = _ABOVE) -> Any:
        """What to call instead, where the caller is not our module but one that has got a copy of its dictionary.

        Args:
            above: frames between the caller's and this one, this one included.
        """
        frame = sys._getframe(above)
        caller = frame.f_locals.get("self") if frame.f_globals is _torch_calls else None
        if caller is None or caller is self._hot.module or caller.__dict__.get("forward") is not self:
            return None
        del caller.__dict__["forward"]
        caller.__dict__.pop(self._key, None)
        if self._own:
            caller.__dict__["forward"] = self.__wrapped__
        return caller.forward

    __doc__ = property(lambda self: self.__wrapped__.__doc__)
    # For vars() and functools.wraps(), which would take what is ours along.
    __dict__ = property(lambda self: self.__wrapped__.__dict__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    # A function keeps what is set on it, long after the pass; a method refuses.
    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__wrapped__, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__wrapped__, name)

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == (other.__wrapped__ if isinstance(other, ObservedForward) else other))

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __copy__(self) -> Any:
        return self.__wrapped__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.__wrapped__, memo)

    def __reduce__(self) -> Any:
        # A file must not need this package to be read, and an own forward is one that pickles, or did not before either.
        return (_itself, (self.__wrapped__,)) if self._own else (getattr, (self._hot.module, "forward"))


class _Detached(ObservedForward):
    """One that still stands in a copy of the module's dictionary, or inside of what somebody else has put in its place.

    Whoever has replaced it in a pass, ``unittest.mock.patch`` for instance, may put it back long after: then it goes when it is called.
    """

    __slots__ = ()

    @leave_frame
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        hot = self._hot
        if is_dynamo_compiling():
            return hot.forward(*args, **kwargs)
        if type(hot.module).forward is not hot.found:
            self._follow()
        forward = self._of_copy(2)
        if forward is None:
            self._go(hot.module.__dict__)
            forward = hot.forward
        return forward(*args, **kwargs)
