"""What torch.compile did on a thread: time, recompilations and their guards, graph breaks.

In: the figures that Dynamo gives to ``torch._dynamo.utils.log_compilation_event`` at the end of each compilation, on its thread; the
function does nothing by itself. Out: attributes and events of the request that ran on that thread. Nothing of ours runs where nothing is
compiled, and Dynamo traces nothing of it. The names are private ones of torch: what a release lacks is absent.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, NamedTuple

from inferspan import semconv
from inferspan.guard import contain
from inferspan.records import Attributes, AttributeValue, RequestEnd

from .state import compiled_graphs, leave_frame
from .texts import break_reason, guard_of, reason_of

__all__ = ["MOST_EVENTS", "CompilationLog", "Compilations"]

MOST_EVENTS = 32
"""Events about compilations on one request; the counts are of all."""
_HELD = 256
"""Events of a thread that are held for the requests that run on it."""
_NAMES = 1024
"""Functions whose names are known for compilations that say none."""
_MODULE, _NAME = "torch._dynamo.utils", "log_compilation_event"


class _Noted(NamedTuple):
    """An event on a thread, and its number there."""

    at: int
    number: int
    name: str
    attributes: Attributes


class _Log:
    """Totals of one thread, and its latest events."""

    __slots__ = ("breaks", "claimed", "count", "events", "noted", "recompiles", "seconds")

    def __init__(self) -> None:
        self.count = self.recompiles = self.breaks = self.noted = self.claimed = 0
        self.seconds = 0.0
        self.events: deque[_Noted] = deque(maxlen=_HELD)

    def add(self, name: str, attributes: Attributes) -> None:
        self.events.append(_Noted(perf_counter_ns(), self.noted, name, attributes))
        self.noted += 1


class _Here(threading.local):
    def __init__(self) -> None:
        self.log = _Log()


_here = _Here()


class CompilationLog:
    """Follows the compilations of this process, each in the log of its thread."""

    def __init__(self) -> None:
        self._wrapped: tuple[Any, Any] | None = None
        self._breaks = 0
        self._last_break: Any = None
        self._names: dict[str, Attributes] = {}

    @property
    def follows(self) -> bool:
        """Whether compilations are seen now."""
        config = sys.modules.get("torch._dynamo.config")
        return self._wrapped is not None and bool(getattr(config, "log_compilation_metrics", True))

    def wrap(self) -> None:
        """Wrap torch's function, unless it is wrapped or not there yet."""
        module = sys.modules.get(_MODULE)
        original = getattr(module, _NAME, None)
        if self._wrapped is not None or original is None:
            return

        @leave_frame
        @functools.wraps(original)
        def log(metrics: Any, *args: Any, **kwargs: Any) -> Any:
            if self._wrapped is not None:
                with contain("compilations"):
                    self._note(metrics)
            return original(metrics, *args, **kwargs)

        # First, or two threads might wrap it twice.
        self._wrapped = (original, log)
        self._seen_breaks(getattr(module, "graph_break_reasons", ()))
        setattr(module, _NAME, log)

    def unwrap(self) -> None:
        """Restore the function; a wrapper of another library on top stays, and ours under it does nothing."""
        wrapped, self._wrapped = self._wrapped, None
        module = sys.modules.get(_MODULE)
        if wrapped is not None and getattr(module, _NAME, None) is wrapped[1]:
            setattr(module, _NAME, wrapped[0])

    def _note(self, metrics: Any) -> None:
        log, of = _here.log, functools.partial(_field, metrics)
        log.count += 1
        log.seconds += _seconds(of)
        ids = of("compile_id") or ""
        frame, _, number = str(ids).rpartition("/")
        if of("co_name"):
            if len(self._names) >= _NAMES:
                self._names.clear()
            self._names[frame] = _place(of("co_name"), of("co_filename"), of("co_firstlineno"))
        self._note_breaks(log)
        # Compilations of backward passes have the number of the forward pass.
        if of("is_forward") is False or of("is_runtime") or not number.isdigit() or number == "0":
            return
        log.recompiles += 1
        found: dict[str, AttributeValue] = {semconv.COMPILE_ID: str(ids), **self._names.get(frame, {})}
        reason = of("recompile_reason") or _guard_failure(of, int(number))
        if reason:
            guard = guard_of(str(reason))
            found |= {semconv.COMPILE_REASON: reason_of(guard), semconv.COMPILE_GUARD: guard}
        if of("fail_type") and "limit" in str(of("fail_reason")):
            found[semconv.COMPILE_LIMIT] = True
        log.add(semconv.RECOMPILATION_EVENT, found)

    def _seen_breaks(self, reasons: Sequence[Any]) -> None:
        self._breaks, self._last_break = len(reasons), reasons[-1] if reasons else None

    def _note_breaks(self, log: _Log) -> None:
        """Graph breaks since the last compilation: torch compiles on one thread at a time."""
        reasons = getattr(sys.modules.get(_MODULE), "graph_break_reasons", None)
        if not isinstance(reasons, list):
            return
        # ``torch._dynamo.reset()`` empties the list, which may be as long as before by now.
        known = self._breaks and self._breaks <= len(reasons) and reasons[self._breaks - 1] is self._last_break
        begin = self._breaks if known else 0
        self._seen_breaks(reasons)
        for one in reasons[begin:]:
            log.breaks += 1
            where = one.user_stack[-1] if one.user_stack else None
            place = {} if where is None else _place(where.name, where.filename, where.lineno)
            log.add(semconv.GRAPH_BREAK_EVENT, {semconv.COMPILE_REASON: break_reason(str(one.reason)), **place})


def _field(metrics: Any, name: str) -> Any:
    return getattr(metrics, name, None)


def _seconds(of: Callable[[str], Any]) -> float:
    microseconds, seconds = of("duration_us"), of("entire_frame_compile_time_s")
    return microseconds / 1e6 if isinstance(microseconds, int) else float(seconds or 0.0)


def _place(name: Any, path: Any, line: Any) -> Attributes:
    known = ((semconv.CODE_FUNCTION, name), (semconv.CODE_FILE, path), (semconv.CODE_LINE, line))
    return {key: value for key, value in known if value is not None}


def _guard_failure(of: Callable[[str], Any], earlier: int) -> str | None:
    """The reason that torch before 2.6 or so keeps apart: of each recompilation one for each compilation before it, the newest first."""
    for code, reasons in list(getattr(sys.modules.get(_MODULE), "guard_failures", {}).items()):
        if (code.co_name, code.co_filename, code.co_firstlineno) == (of("co_name"), of("co_filename"), of("co_firstlineno")) and reasons:
            return str(reasons[-min(earlier, len(reasons))])
    return None


class Compilations:
    """What was compiled on this thread since this was made, for one request that begins. Read on any thread."""

    __slots__ = ("_before", "_first", "_graphs", "_log")

    def __init__(self) -> None:
        self._log = log = _here.log
        self._before = (log.count, log.recompiles, log.breaks, log.seconds)
        self._first = log.noted
        self._graphs = compiled_graphs()

    def attributes(self, follower: CompilationLog, *, first: bool) -> dict[str, AttributeValue]:
        """Counts and seconds, and whether the request is a warm-up; empty if nothing was compiled.

        Args:
            follower: where it sees no compilations, graphs that were made meanwhile on any thread make the request a warm-up.
            first: whether it is the first one on its model, which is a warm-up too.
        """
        log, (count, recompiles, breaks, seconds) = self._log, self._before
        if log.count == count:
            return {semconv.WARMUP: True} if first or (compiled_graphs() > self._graphs and not follower.follows) else {}
        found: dict[str, AttributeValue] = {semconv.WARMUP: True, semconv.COMPILE_TIME: log.seconds - seconds}
        rows = ((semconv.COMPILE_RECOMPILES, log.recompiles - recompiles), (semconv.COMPILE_GRAPH_BREAKS, log.breaks - breaks))
        return found | {key: number for key, number in rows if number}

    def events(self, offset: int) -> tuple[tuple[str, int, Attributes], ...]:
        """Events that no request inside this one has taken, at most ``MOST_EVENTS``, the first ones.

        Args:
            offset: added to a reading of the monotonic clock, gives nanoseconds since the epoch.
        """
        log = self._log
        if log.noted == self._first:
            return ()
        first, log.claimed = max(self._first, log.claimed), log.noted
        found = [(one.name, one.at + offset, one.attributes) for one in log.events if one.number >= first]
        return tuple(found[:MOST_EVENTS])

    def settle(self, end: RequestEnd | None, offset: int) -> RequestEnd | None:
        """The end of the request with these events."""
        found = () if end is None else self.events(offset)
        return replace(end, events=(*end.events, *found)) if end is not None and found else end
