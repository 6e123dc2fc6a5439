"""The parent of a request that begins on a thread without a span: the span that was current when its work was handed over.

OpenTelemetry's context does not follow work into other threads. Remembered are the contexts in which a thread was started, a job given to
a pool of threads, and a streamer made; at the start of a request on a thread where no span is current, the one that handed over this very
call becomes its parent. Nothing is attached on the other thread: spans of the program's own there stay as they are.

A wrong parent is worse than none. A thread or job that can reach a queue may serve many callers, a thread whose span has ended may be a
worker that was started with it, a streamer may be used twice or come from somewhere that is not seen, and two origins in different traces
contradict each other: such a request is a root, with a link to each candidate.

Only constructors of streamers, ``Thread.start`` and the methods that give jobs to pools are wrapped, while a model is instrumented, with
their signatures; where no span is current they pass through.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from inferspan.guard import contain, pass_on

__all__ = ["follow", "forked", "resolve"]

_STREAMERS = "transformers.generation.streamers"
_MARK = "_inferspan_origin"
_POOL_JOBS = ("apply_async", "_map_async", "imap", "imap_unordered")
_WAITING = (threading.Condition, deque)


class Origin(NamedTuple):
    """A context with a span in it, and whether work handed over there can have no other caller."""

    context: Context
    certain: bool = True
    while_open: bool = False
    """Whether it is certain only until its span ends."""
    direct: bool = False
    """Whether the work is a call of the model itself, with the arguments that it was handed over with."""

    @property
    def span(self) -> trace.Span:
        """The span that was current."""
        return trace.get_current_span(self.context)

    @property
    def counts(self) -> bool:
        """Whether it may be a parent now."""
        return self.certain and not (self.while_open and getattr(self.span, "end_time", None) is not None)


class _Here(threading.local):
    def __init__(self) -> None:
        self.job: Origin | None = None


_here = _Here()
_of_threads: weakref.WeakKeyDictionary[threading.Thread, Origin] = weakref.WeakKeyDictionary()
_of_streamers: weakref.WeakKeyDictionary[Any, Origin] = weakref.WeakKeyDictionary()
_lock = threading.RLock()
_users = 0
_undo: list[Callable[[], None]] = []


# ------------------------------------------------------------------------------------------------------------ the request
def resolve(current: Context, streamer: Any) -> tuple[Context, Sequence[trace.Link]]:
    """The context in which a request's span starts, and its links.

    Args:
        current: the context of the thread that runs it.
        streamer: the streamer that the call was given, if any.
    """
    if trace.get_current_span(current).get_span_context().is_valid:
        return current, ()
    if streamer is None and _here.job is None and not _of_threads:
        return current, ()
    handed_over, made = _handed_over(), _made_with(streamer)
    if streamer is not None and made is None and handed_over is not None and not handed_over.direct:
        # It may come from anybody: it was made by a constructor that is not seen, or where nothing was current.
        handed_over = handed_over._replace(certain=False)
    found = [origin for origin in (handed_over, made) if origin is not None]
    certain = [origin for origin in found if origin.counts]
    if certain and len({origin.span.get_span_context().trace_id for origin in certain}) == 1:
        # A span that the program has attached on this thread counts; baggage and the like come with it.
        return trace.set_span_in_context(certain[0].span, Context({**certain[0].context, **current})), ()
    candidates = {origin.span.get_span_context().span_id: origin.span.get_span_context() for origin in found}
    return current, [trace.Link(context) for context in candidates.values()]


def _handed_over() -> Origin | None:
    if _here.job is not None:
        return _here.job
    origin = _of_threads.get(threading.current_thread())
    # A thread with an event loop serves its clients, not the caller that started it.
    return origin._replace(certain=False) if origin is not None and asyncio._get_running_loop() is not None else origin


def _made_with(streamer: Any) -> Origin | None:
    if streamer is None:
        return None
    with contextlib.suppress(TypeError):  # of one that cannot be held weakly, which has no origin
        origin = _of_streamers.get(streamer)
        if origin is not None:
            _of_streamers[streamer] = origin._replace(certain=False)  # a second use may have another caller
        return origin
    return None


def _now() -> Origin | None:
    """The origin of work that this thread hands over now."""
    context = otel_context.get_current()
    if trace.get_current_span(context).get_span_context().is_valid:
        return Origin(context)
    return _handed_over()


# ------------------------------------------------------------------------------------------------------- what is handed over
def _narrowed(origin: Origin, function: Any, *arguments: Any, thread: bool = False) -> Origin:
    """An origin as it applies to a function that runs elsewhere: certain for a method of the model, which makes this one call."""
    owner = getattr(function, "__self__", function)
    if hasattr(type(owner), "named_modules") or hasattr(type(_attributes(owner).get("model")), "named_modules"):
        return origin._replace(direct=True)
    origin = origin._replace(direct=False)
    if any(_brings_work(item) for item in _within_reach(function, arguments)):
        return origin._replace(certain=False)
    return origin._replace(while_open=True) if thread else origin


def _within_reach(function: Any, arguments: Iterable[Any]) -> list[Any]:
    """Objects through which a function can receive other callers' work: its arguments, its object, its names, and their attributes."""
    reached = [*arguments]
    while isinstance(function, functools.partial):
        reached += [*function.args, *function.keywords.values()]
        function = function.func
    plain = getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if isinstance(code, CodeType):
        names = getattr(plain, "__globals__", {})
        reached += [names[name] for name in code.co_names if name in names]
        for cell in getattr(plain, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # a variable that has no value yet
                reached.append(cell.cell_contents)
    reached.append(getattr(function, "__self__", None if plain is function and code is not None else function))
    return reached + [value for holder in reached for value in _attributes(holder).values()]


def _attributes(holder: Any) -> dict[str, Any]:
    """The attributes of an object of the program's, without running any code of it."""
    # A streamer has a queue of its own, a pool too, and neither brings work to who holds it. Modules and classes hold anything.
    if isinstance(holder, ModuleType | type | Executor) or _is_streamer(holder):
        return {}
    try:
        found = object.__getattribute__(holder, "__dict__")
    except Exception as error:
        pass_on(error)
        return {}
    return dict(found) if isinstance(found, dict) else {}


def _is_streamer(item: Any) -> bool:
    return hasattr(type(item), "put") and hasattr(type(item), "end")


def _brings_work(item: Any) -> bool:
    kind = type(item)
    return isinstance(item, _WAITING) or all(hasattr(kind, name) for name in ("put", "get", "empty")) or hasattr(kind, "recv")


# ------------------------------------------------------------------------------------------------------------- the wrappers
def _around_thread_start(original: Callable[..., Any]) -> Callable[..., Any]:
    def start(self: threading.Thread) -> Any:
        with contain("origin of a thread"):
            origin = _now() if _users else None
            target = getattr(self, "_target", None)
            # A pool starts its threads in one caller's span, and they serve all callers.
            if origin is not None and getattr(target, "__module__", None) not in ("concurrent.futures.thread", "multiprocessing.pool"):
                if type(self).run is not threading.Thread.run:
                    origin = _narrowed(origin, self.run, thread=True)
                else:
                    arguments = (*getattr(self, "_args", ()), *getattr(self, "_kwargs", {}).values())
                    origin = _narrowed(origin, target, *arguments, thread=True)
                _of_threads[self] = origin
        return original(self)

    return start


class _Job:
    """A job of a pool that knows where it was given."""

    def __init__(self, function: Callable[..., Any], origin: Origin) -> None:
        self.__wrapped__ = function
        self._origin = origin

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before, _here.job = _here.job, self._origin
        try:
            return self.__wrapped__(*args, **kwargs)
        finally:
            _here.job = before


def _around_submit(original: Callable[..., Any]) -> Callable[..., Any]:
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        job: Callable[..., Any] = fn
        with contain("origin of a job"):
            origin = _now() if _users else None
            if origin is not None and callable(fn):
                job = _Job(fn, _narrowed(origin, fn, *args, *kwargs.values()))
        return original(self, job, *args, **kwargs)

    return submit


def _around_streamer(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with contain("origin of a streamer"), contextlib.suppress(TypeError):
            origin = _now() if _users else None
            if origin is not None:
                _of_streamers[self] = origin

    return __init__


def _follow_streamers(base: Any) -> None:
    """Wrap the constructors of all streamers, of which those of subclasses need not call those of their bases, and of later subclasses.

    ``__new__`` would be one method instead of many, but a class whose ``__new__`` was set and deleted refuses the arguments of its
    constructor from then on.
    """
    classes: weakref.WeakSet[type] = weakref.WeakSet()  # a function may define one at each call

    def follow_class(kind: type) -> None:
        own = vars(kind).get("__init__")
        if own is not None and kind not in classes:
            classes.add(kind)
            wrapper: Any = functools.wraps(own)(_around_streamer(own))
            setattr(wrapper, _MARK, id(wrapper))  # others may copy the attribute to their own wrapper
            kind.__init__ = wrapper  # type: ignore[misc]
        inner: list[type] = type.__subclasses__(kind)
        for one in inner:
            follow_class(one)

    def subclass(cls: Any, /, **options: Any) -> None:
        super(base, cls).__init_subclass__(**options)
        with contain("origin of a streamer"):
            follow_class(cls)

    def undo() -> None:
        if vars(base).get("__init_subclass__") is ours:
            del base.__init_subclass__
        for kind in list(classes):
            wrapper: Any = vars(kind).get("__init__")
            if getattr(wrapper, _MARK, None) == id(wrapper):  # otherwise another one is around ours, which stays and passes through
                kind.__init__ = wrapper.__wrapped__  # type: ignore[misc]

    ours = classmethod(subclass)
    if "__init_subclass__" not in vars(base):
        base.__init_subclass__ = ours
    follow_class(base)
    _undo.append(undo)


def _wrap(owner: type, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    own = owner.__dict__.get(name)
    original = getattr(owner, name)
    wrapper = functools.wraps(original)(around(original))
    setattr(owner, name, wrapper)

    def undo() -> None:
        if owner.__dict__.get(name) is not wrapper:
            return  # another wrapper is around ours, which stays in place and passes through
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    return undo


def follow() -> Callable[[], None]:
    """Remember from now on where work is handed over; returns what ends that, which the last caller's does."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _undo.append(_wrap(threading.Thread, "start", _around_thread_start))
            _undo.append(_wrap(ThreadPoolExecutor, "submit", _around_submit))
        _wrap_what_is_loaded()
    released = False

    def release() -> None:
        global _users
        nonlocal released
        with _lock:
            if released:
                return
            released = True
            _users -= 1
            while not _users and _undo:
                _undo.pop()()

    return release


def _wrap_what_is_loaded() -> None:
    """Wrap what not every program has, once it is there: an import for our sake would take its time."""
    streamers: Any = sys.modules.get(_STREAMERS)
    if streamers is None and "transformers.generation.utils" in sys.modules:
        import importlib

        streamers = importlib.import_module(_STREAMERS)
    pools: Any = sys.modules.get("multiprocessing.pool")
    base = getattr(streamers, "BaseStreamer", None)
    if base is not None and (base, "") not in _wrapped:
        _wrapped.add((base, ""))
        _undo.append(functools.partial(_wrapped.discard, (base, "")))
        _follow_streamers(base)
    for owner, name, around in (
        *((getattr(pools, "ThreadPool", None), name, _around_submit) for name in _POOL_JOBS),
    ):
        if owner is not None and hasattr(owner, name) and (owner, name) not in _wrapped:
            _wrapped.add((owner, name))
            _undo.append(functools.partial(_unwrap, owner, name, _wrap(owner, name, around)))


_wrapped: set[tuple[type, str]] = set()


def _unwrap(owner: type, name: str, undo: Callable[[], None]) -> None:
    _wrapped.discard((owner, name))
    undo()


def forked() -> None:
    """Replace the lock in a forked child, whose holder may not exist there."""
    global _lock
    _lock = threading.RLock()
