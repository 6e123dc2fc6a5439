"""Attaching to a model so that everything comes off again: an undo stack, and methods wrapped on classes.

``generate()`` and its helpers are wrapped on the model's class, with the instrumented objects in a registry: copies, pickles and
other models of the class are untouched, signatures stay, and nothing is added to the model itself. A method that the user has put on
the instance is wrapped there. A wrapper that another library has wrapped in turn stays in place and becomes transparent.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["ClassMethods", "InstanceMethod", "Undo", "class_methods", "replace", "wrap_class_method"]

from inferspan.guard import contain

_MISSING = object()
Around = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""Called as ``around(original, self, args, kwargs)`` instead of the method; ``original`` is bound."""


class Undo:
    """One stack of undo functions; ``close`` runs each once, last first, and may be called twice, also while others push."""

    def __init__(self) -> None:
        self._stack: list[Callable[[], object]] = []
        self._closed = False

    def push(self, undo: Callable[[], object]) -> None:
        """Add the function that undoes the last change; after ``close`` it runs at once."""
        self._stack.append(undo)
        if self._closed:  # in another thread, while the change was made
            self.close()

    def extend(self, undos: Iterable[Callable[[], object]]) -> None:
        """Push several, each as soon as it is there: changes before a failure are undone."""
        for undo in undos:
            self.push(undo)

    def close(self) -> None:
        """Take everything back; one undo that fails does not keep the others from running."""
        self._closed = True
        while True:
            try:
                undo = self._stack.pop()
            except IndexError:  # two threads may close at once
                return
            with contain("detaching"):
                undo()


class _Layer:
    """One wrapper on a class: what is below it, and what it does; nothing once it has been removed."""

    __slots__ = ("around", "own", "template", "wrapper")

    def __init__(self, own: Any, template: Callable[..., Any], around: Around) -> None:
        self.own, self.template = own, template
        self.around: Around | None = around
        self.wrapper: Any = None


_layers = threading.RLock()
"""Guards the wrappers that lie one above the other on a class; each user of a class has one of its own."""


def _forked() -> None:
    global _layers
    # The thread that held it does not exist in the child.
    _layers = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def wrap_class_method(owner: type, name: str, around: Around) -> Callable[[], None]:
    """Wrap ``owner.name``, inherited or own, and return a function that removes the wrapper.

    An inherited method is looked up again at each call, so a patch that is put on a base class later still counts. A wrapper that is
    below another of ours is taken out from there.
    """
    with _layers:
        layer = _Layer(owner.__dict__.get(name, _MISSING), getattr(owner, name), around)

        @functools.wraps(layer.template)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            own, around = layer.own, layer.around
            original = own.__get__(self, type(self)) if own is not _MISSING else getattr(super(owner, self), name)
            return original(*args, **kwargs) if around is None else around(original, self, args, kwargs)

        layer.wrapper = wrapper
        wrapper.__inferspan__ = layer  # type: ignore[attr-defined]
        setattr(owner, name, wrapper)
    return lambda: _take_out(owner, name, layer)


def _take_out(owner: type, name: str, layer: _Layer) -> None:
    with _layers:
        layer.around = None
        found = owner.__dict__.get(name)
        if found is layer.wrapper:
            if layer.own is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, layer.own)
            return
        while isinstance(above := getattr(found, "__inferspan__", None), _Layer) and above.wrapper is found:
            if above.own is layer.wrapper:
                above.own, above.template = layer.own, layer.template
                above.wrapper.__wrapped__ = layer.template  # type: ignore[union-attr]
                return
            found = above.own


def replace(owner: Any, name: str, around: Callable[..., Any]) -> Callable[[], None]:
    """Wrap a function of a module, or a class or static method, and return a function that restores it.

    Args:
        owner: the module or class that has it as its own.
        name: of the function.
        around: called as ``around(original, owner, args, kwargs)``; ``owner`` is the class that a class method was called on.
    """
    own = vars(owner)[name]
    function = getattr(own, "__func__", own)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if isinstance(own, classmethod):
            return around(own.__get__(None, args[0]), args[0], args[1:], kwargs)
        return around(function, owner, args, kwargs)

    wrapper.__inferspan__ = True  # type: ignore[attr-defined]
    new: Any = type(own)(wrapper) if isinstance(own, classmethod | staticmethod) else wrapper
    setattr(owner, name, new)

    def undo() -> None:
        if vars(owner).get(name) is new:
            setattr(owner, name, own)

    return undo


class ClassMethods:
    """Wrapped methods by class, counted: the last model of a class to go takes the wrappers with it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users: dict[tuple[type, str], int] = {}
        self._undo: dict[tuple[type, str], Callable[[], None]] = {}

    def forked(self) -> None:
        """Called in a forked child, where the thread that held the lock does not exist."""
        self._lock = threading.RLock()

    def acquire(self, owner: type, name: str, around: Around) -> Callable[[], None]:
        """Wrap ``owner.name`` unless it is wrapped, and return a function that releases it (callable once)."""
        key = (owner, name)
        with self._lock:
            if not self._users.get(key):
                self._undo[key] = wrap_class_method(owner, name, around)
            self._users[key] = self._users.get(key, 0) + 1
        released = False

        def release() -> None:
            nonlocal released
            with self._lock:
                if released:
                    return
                released = True
                self._users[key] -= 1
                if not self._users[key]:
                    del self._users[key]
                    self._undo.pop(key)()

        return release

    def wrap(self, thing: Any, name: str, around: Around) -> Callable[[], None]:
        """Wrap a method of ``thing``, on the instance where it is its own, else on its class; returns a function that undoes it."""
        if name in thing.__dict__:
            return InstanceMethod.put(thing, name, around)
        return self.acquire(type(thing), name, around)


class_methods = ClassMethods()
"""Those that all instrumented models share."""


def _rebuild_transparent(name: str, original: Any) -> InstanceMethod:
    return InstanceMethod(name, original, None, None)


class InstanceMethod:
    """Replaces a callable in the model's own ``__dict__``; everything but the call is delegated to the original."""

    def __init__(self, name: str, original: Any, owner: Any, around: Around | None) -> None:
        self._name = name
        self._original = original
        self._owner = weakref.ref(owner) if owner is not None else None
        self._around = around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the original through ``around``."""
        owner = self._owner() if self._owner is not None else None
        if owner is None or self._around is None:
            return self._original(*args, **kwargs)
        return self._around(self._original, owner, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__qualname__", "__self__", "__func__"):
            raise AttributeError(name)
        return getattr(self._original, name)

    @property
    def __wrapped__(self) -> Any:
        """The original, for ``inspect.signature``."""
        return self._original

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the model gets a copy of the user's own method, without us."""
        import copy

        return copy.deepcopy(self._original, memo)

    def __reduce__(self) -> Any:
        return _rebuild_transparent, (self._name, self._original)

    @classmethod
    def put(cls, owner: Any, name: str, around: Around) -> Callable[[], None]:
        """Wrap ``owner.__dict__[name]`` and return a function that restores it, if the wrapper is still there."""
        original = owner.__dict__[name]
        wrapper = cls(name, original, owner, around)
        owner.__dict__[name] = wrapper
        reference = weakref.ref(owner)

        def undo() -> None:
            wrapper._around = None
            alive = reference()
            if alive is not None and alive.__dict__.get(name) is wrapper:
                alive.__dict__[name] = original

        return undo
