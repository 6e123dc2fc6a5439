"""The models that a program has built, from their construction to the decision of their first call.

A model is *waiting* until it is called for the first time as the outermost one: by a forward pass, ``generate()`` or a method that is a
request. Then it is *observed*, or *left* alone where ``exclude`` names it; its modules are *parts* of it. A model that the program
instruments itself is *theirs* until they uninstrument it. Models are held weakly.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from inferspan.guard import contain, read_attribute
from inferspan.setting_checks import warn_once
from inferspan.settings import Settings, SettingsError

from .patterns import Patterns

__all__ = ["Candidates"]

WAITING, OBSERVED, LEFT, PART, THEIRS = "waiting", "observed", "left", "part", "theirs"


class _Candidate:
    """One model, and what has been decided about it."""

    __slots__ = ("built", "first_call", "handle", "key", "parts", "reference", "state")

    def __init__(self, model: Any, gone: Callable[[_Candidate], None]) -> None:
        self.key = id(model)
        self.reference = weakref.ref(model, lambda _: gone(self))
        self.state = WAITING
        self.built = False
        """Whether zero code has seen it built, rather than the program alone instrumented it."""
        self.first_call: Any = None
        """What notices the first forward pass; ``None`` where torch would not look for it."""
        self.handle: Any = None
        self.parts: list[_Candidate] = []
        """Candidates inside this one, which wait again once it is gone."""

    def wait(self) -> None:
        """Notice the next call, as if there had been none."""
        model = self.reference()
        self.state = WAITING
        if model is not None and self.first_call is not None:
            self.first_call.put(model)

    def stop(self, state: str) -> None:
        """Take everything off the model that is there for zero code."""
        model = self.reference()
        self.state = state
        if model is not None and self.first_call is not None:
            self.first_call.take(model)
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.uninstrument()


class Candidates:
    """Decides which models are instrumented, and does it.

    Args:
        settings: of every model.
        instrument: instruments a model with some settings, and returns a handle.
        include: patterns of classes and names that are observed in training too.
        exclude: patterns of classes and names that are not observed.
    """

    def __init__(self, settings: Settings, instrument: Callable[[Any, Settings], Any], include: Patterns, exclude: Patterns) -> None:
        self._settings = settings
        self._instrument = instrument
        self._include = include
        self._exclude = exclude
        self._lock = threading.RLock()
        self._known: dict[int, _Candidate] = {}
        self._own = threading.local()
        """``busy``: whether this thread instruments for zero code, so that it is not the program that does."""
        self.open = True
        self.decided = 0
        """Models that were called or instrumented so far."""

    def forked(self) -> None:
        """Called in a forked child, where nobody is left to release the lock."""
        self._lock = threading.RLock()
        self._own = threading.local()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """While instruments and takes off are zero code's own, rather than the program's."""
        before = getattr(self._own, "busy", False)
        self._own.busy = True
        try:
            yield
        finally:
            self._own.busy = before

    def _stop(self, candidate: _Candidate, state: str) -> None:
        with self._working():
            candidate.stop(state)

    # ------------------------------------------------------------------------------------------------------------ waiting
    def add(self, model: Any) -> None:
        """Wait for the first call of a model that has been built."""
        if not self.open:
            return
        from inferspan.capture.compile.watch import compiling
        from inferspan.capture.root.first import FirstCall, can_notice

        with self._lock:
            candidate = self._candidate(model)
            if candidate.built:
                return
            candidate.built = True
            if candidate.state != WAITING:
                return
            compiling.watch(self)
            if can_notice(model):
                candidate.first_call = FirstCall(model, self.settle)
                candidate.first_call.put(model)

    def _candidate(self, model: Any) -> _Candidate:
        candidate = self._known.get(id(model))
        if candidate is None or candidate.reference() is not model:
            candidate = self._known[id(model)] = _Candidate(model, self._gone)
        return candidate

    def knows(self, model: Any) -> bool:
        """Whether ``model`` has been seen built, or instrumented by the program."""
        candidate = self._known.get(id(model))
        return candidate is not None and candidate.reference() is model

    def needs_call(self, model: Any) -> bool:
        """Whether only a method ``__call__`` of its class shows when ``model`` is called."""
        candidate = self._known.get(id(model))
        return candidate is not None and candidate.first_call is None

    @staticmethod
    def is_module(model: Any) -> bool:
        """Whether ``model`` is a module of torch, rather than a pipeline of several."""
        return _is_module(model)

    def waits(self, model: Any) -> bool:
        """Whether nothing is decided about ``model`` yet."""
        candidate = self._known.get(id(model))
        return self.open and candidate is not None and candidate.state == WAITING and candidate.reference() is model

    def _gone(self, candidate: _Candidate) -> None:
        """A model has been collected. This may run inside any lock, so it takes none."""
        if sys.is_finalizing():
            return
        if self._known.get(candidate.key) is candidate:
            self._known.pop(candidate.key, None)
        self._release(candidate)

    def _release(self, candidate: _Candidate) -> None:
        """Let the parts of a model wait again."""
        parts, candidate.parts = candidate.parts, []
        for part in parts:
            if part.state == PART and self.open:
                part.wait()

    def _claim(self, candidate: _Candidate, model: Any) -> None:
        """Make the modules inside a model parts of it; one that the program has instrumented itself stays that."""
        for module in _modules(model):
            part = self._known.get(id(module))
            if part is None or part is candidate or part.reference() is not module or part.state in (PART, THEIRS):
                continue
            self._stop(part, PART)
            candidate.parts.append(part)

    # ----------------------------------------------------------------------------------------------------------- deciding
    def settle(self, model: Any, *, training: bool = False) -> bool:
        """Decide about a model that is about to be called; returns whether it has been instrumented since it was asked.

        Args:
            model: the one that is called.
            training: whether it is instrumented in training mode with gradients as well.
        """
        if not self.waits(model):
            return False
        from inferspan.capture.model_info import is_training
        from inferspan.capture.root.first import is_part_of_a_request

        with self._lock:
            candidate = self._candidate(model)
            if candidate.state != WAITING:
                # Another thread has decided meanwhile. A call that has passed its wrappers already is the request.
                return candidate.state == OBSERVED and not is_part_of_a_request(model)
            names = tuple(_names(model))
            included = self._include.match(names)
            if not training and not included and is_training(model):
                return False
            self.decided += 1
            if self._exclude.match(names):
                self._stop(candidate, LEFT)
                for module in _modules(model):
                    part = self._known.get(id(module))
                    if part is not None and part.state == WAITING:
                        self._stop(part, LEFT)
                return False
            if is_part_of_a_request(model):
                self._stop(candidate, PART)
                return False
            return self._observe(candidate, model, included=included)

    def _observe(self, candidate: _Candidate, model: Any, *, included: bool) -> bool:
        """Instrument a model. It waits until that is done: calls on other threads do so too, and are recorded then."""
        self._claim(candidate, model)
        settings = self._settings.override({"training": True}) if included else self._settings
        handle, state = None, LEFT
        try:
            with self._working():
                handle, state = self._instrument(model, settings), OBSERVED
        except SettingsError as error:
            warn_once("this %s is not observed: %s", type(model).__name__, error)
        finally:
            self._stop(candidate, state)
            candidate.handle = handle
        return handle is not None

    # ------------------------------------------------------------------------------------------------ the program's own
    def taken(self, model: Any) -> None:
        """The program instruments ``model`` itself: its settings are the ones that count."""
        if getattr(self._own, "busy", False) or not self.open:
            return
        with self._lock, contain("instrumentation by the program"):
            self.decided += 1
            candidate = self._candidate(model)
            self._stop(candidate, THEIRS)
            self._claim(candidate, model)

    def returned(self, model: Any, *, left: bool) -> None:
        """The program has taken its instrumentation off.

        Args:
            model: the model.
            left: whether it was ``uninstrument(model)``, which means all of them; else zero code goes on with the model.
        """
        if getattr(self._own, "busy", False) or not self.open:
            return
        with self._lock, contain("instrumentation by the program"):
            candidate = self._known.get(id(model))
            if candidate is None or candidate.reference() is not model:
                return
            if left:
                self._stop(candidate, LEFT)
            elif candidate.state == THEIRS:
                if candidate.built:
                    candidate.wait()
                else:
                    del self._known[candidate.key]
                self._release(candidate)

    # ---------------------------------------------------------------------------------------------------------- compiling
    def compilation_begins(self) -> None:
        """Keep out of the sight of Dynamo while it compiles."""
        for candidate in list(self._known.values()):
            model = candidate.reference()
            if candidate.state == WAITING and candidate.first_call is not None and model is not None:
                candidate.first_call.take(model)

    def compilation_ends(self) -> None:
        """Wait again, unless compiled code guards on the slot."""
        from inferspan.capture.compile.state import ignores_slots

        if ignores_slots():
            for candidate in list(self._known.values()):
                if candidate.state == WAITING:
                    candidate.wait()

    def scripting(self, *, begins: bool) -> None:
        """Stay: TorchScript takes what waits for a function, and leaves it out."""

    # -------------------------------------------------------------------------------------------------------------- close
    def close(self) -> None:
        """Take everything off all models that the program has not instrumented itself."""
        with self._lock:
            self.open = False
            known, self._known = list(self._known.values()), {}
            for candidate in known:
                if candidate.state != THEIRS:
                    with contain("uninstrument"):
                        self._stop(candidate, LEFT)


def _is_module(model: Any) -> bool:
    nn = getattr(sys.modules.get("torch"), "nn", None)
    return nn is not None and isinstance(model, nn.Module)


def _modules(model: Any) -> Iterable[Any]:
    """The modules inside a model, itself excepted."""
    return [module for module in model.modules() if module is not model]


def _names(model: Any) -> Iterable[str]:
    """What a pattern may call a model: its class, and the name or path that it was loaded from."""
    from .patterns import class_names

    yield from class_names(type(model))
    config = read_attribute(model, "config")
    path = config.get("_name_or_path") if isinstance(config, Mapping) else read_attribute(config, "_name_or_path")
    if isinstance(path, str) and path:
        yield path
        from inferspan.capture.model_info import name_of

        name, _ = name_of(path)
        if name is not None:
            yield name
