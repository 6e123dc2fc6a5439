"""The ``forward`` of a submodule, observed: a callable that stands in the module's ``__dict__`` while a recorded pass runs.

torch calls ``module.forward`` on its fast path, so this costs a quarter of a pair of registered hooks, and other threads' passes nearly
nothing. In and out is what the module's own ``forward`` takes, returns and raises; every attribute (signature, name, ``__self__``) is
that one's too. Copies and pickles hold the plain ``forward``. Each call appends one record to the ``Call`` that runs on its thread.
"""

from __future__ import annotations

import copy
import sys
from inspect import getattr_static
from time import perf_counter_ns
from typing import Any

from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from ..guard import contain, report
from ..records import ModuleInfo
from .call import Call, current, error_type
from .compilation import is_optimized, leave_frame
from .shapes import describe

__all__ = ["OWNED", "ObservedForward", "can_observe"]

OWNED = "_inferspan_owned"
"""Key beside ``forward`` in the module's ``__dict__``: an object whose reference count tells whether somebody has copied the dictionary."""
_REFERENCES = 3
"""The module's dictionary, our own slot, and the argument of ``getrefcount``."""
_references: Any = getattr(sys, "getrefcount", lambda _: _REFERENCES)
_counted = hasattr(sys, "getrefcount") and getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether reference counts are exact: not in free-threaded builds, nor where there are none."""
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


class ObservedForward:
    """Calls the ``forward`` that a module had before, and records the call.

    Args:
        module: whose ``forward`` it is.
        info: static facts of the module.
        engine: whose calls record; those of others, such as that of a model inside this one, do not.
    """

    def __init__(self, module: nn.Module, info: ModuleInfo, engine: object) -> None:
        self.owner = module
        self.info = info
        self._engine = engine
        self._own = "forward" in module.__dict__
        self.__wrapped__: Any = module.forward
        self._found: Any = type(module).forward
        self._key = OWNED
        self._owned = object()
        self._taken: Any = None
        self._given: Any = None

    def attach(self) -> None:
        """Put this in the place of the module's ``forward``."""
        names = self.owner.__dict__
        while self._key in names:
            self._key += "_"
        names[self._key] = self._owned
        names["forward"] = self

    def detach(self) -> None:
        """Put back what was there; if somebody else has replaced ``forward`` meanwhile, theirs stays, and ours in it records no more."""
        names = self.owner.__dict__
        if names.get(self._key) is self._owned:
            del names[self._key]
        self._go(names)
        self.__class__ = _Detached

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
        self._found = type(self.owner).forward
        if not self._own:
            self.__wrapped__ = _of_class(self.owner)

    @leave_frame
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass. Written for few instructions: between two large matrix products each of them is a cache miss."""
        if is_dynamo_compiling():
            return self.__wrapped__(*args, **kwargs)
        if type(self.owner).forward is not self._found:
            self._follow()
        if _references(self._owned) != _REFERENCES:
            forward = self._of_copy()
            if forward is not None:
                return forward(*args, **kwargs)
        call = current.call
        if call is None or call.engine is not self._engine:
            return self.__wrapped__(*args, **kwargs)
        if call.room <= 0:
            call.missed += 1
            return self.__wrapped__(*args, **kwargs)
        try:
            call.room -= 1
            number = call.count
            call.count = number + 1
            inputs = self._taken
            if kwargs:
                inputs = describe((*args[:8], *kwargs.values()))
            elif len(args) != 1 or type(args[0]) is not Tensor:
                inputs = describe(args)
            else:
                try:
                    if not inputs or inputs[0][0] != args[0].shape or inputs[0][1] is not args[0].dtype:
                        inputs = self._taken = describe(args)
                except RuntimeError:
                    # A nested tensor has no shape. Asking first would cost more than an exception that is not raised.
                    inputs = ()
            stack = call.stack
            frame = (number, self.info, perf_counter_ns(), inputs)
            stack.append(frame)
            clock = call.clock
            if clock is not None:
                clock.enter(number, args[0] if args else next(iter(kwargs.values()), None))
        except Exception as error:
            report("module call", error)
            return self.__wrapped__(*args, **kwargs)
        try:
            output = self.__wrapped__(*args, **kwargs)
        except BaseException as error:
            self._failed(call, frame, error)
            raise
        try:
            now = perf_counter_ns()
            if not stack or (stack[-1] is not frame and not call.unwind_to(self.info, now)):
                return output
            stack.pop()
            if clock is not None:
                clock.leave(number, output)
            outputs = self._given
            if type(output) is not Tensor:
                outputs = describe(output)
            else:
                try:
                    if not outputs or outputs[0][0] != output.shape or outputs[0][1] is not output.dtype:
                        outputs = self._given = describe(output)
                except RuntimeError:
                    outputs = ()
            collector = call.output_stats
            statistics = collector.append(output) if collector is not None else None
            call.calls.extend((number, stack[-1][0] if stack else -1, self.info, frame[2], now, inputs, outputs, None, statistics))
        except Exception as error:
            report("module call", error)
        return output

    def _failed(self, call: Call, frame: Any, error: BaseException) -> None:
        """Record a call through which an exception passes."""
        with contain("module call"):
            now = perf_counter_ns()
            if call.stack and (call.stack[-1] is frame or call.unwind_to(self.info, now)):
                call.close_frame(now, error_type(error))

    def _of_copy(self) -> Any:
        """What to call instead, where the caller is not our module but one that has got a copy of its dictionary."""
        frame = sys._getframe(2)
        caller = frame.f_locals.get("self") if frame.f_globals is _torch_calls else None
        if caller is None or caller is self.owner or caller.__dict__.get("forward") is not self:
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
        return (_itself, (self.__wrapped__,)) if self._own else (getattr, (self.owner, "forward"))


class _Detached(ObservedForward):
    """One that still stands in a copy of the module's dictionary, or inside of what somebody else has put in its place.

    Whoever has replaced it in a pass, ``unittest.mock.patch`` for instance, may put it back long after: then it goes when it is called.
    """

    @leave_frame
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return self.__wrapped__(*args, **kwargs)
        if type(self.owner).forward is not self._found:
            self._follow()
        forward = self._of_copy()
        if forward is None:
            self._go(self.owner.__dict__)
            forward = self.__wrapped__
        return forward(*args, **kwargs)
