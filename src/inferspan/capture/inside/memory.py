"""Memory before and after steps and modules.

In: beginnings and ends of steps and module calls, and readings of the allocator. Out: attributes of spans, and sums by module. A reading
waits for nothing and resets nothing. Readings at the end of a call come before anything else of ours runs there, so that they hold none of
what our own statistics allocate for that call.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from inferspan import semconv
from inferspan.capture.compile.state import leave_alone
from inferspan.capture.device.memory import Read, Reading, device_of, has_allocator, reader_on
from inferspan.capture.modules.hook_pair import CopiedAway
from inferspan.capture.modules.recorder import current
from inferspan.guard import contain, report
from inferspan.records import Attributes, AttributeValue

__all__ = ["Memory", "MemoryAfter", "MemoryBefore", "MemoryLog", "Used", "module_reader"]

MOST_MODULES = 4_000
MOST_IN_EVENT = 128
KEPT_SHORTAGES = 16
KEPT_CALLS = 10_000
"""Readings of calls that a model keeps, the latest ones."""
_START = (semconv.MEMORY_START, semconv.MEMORY_RESERVED_START, semconv.MEMORY_HIGH_WATER_START)
_END = (semconv.MEMORY_END, semconv.MEMORY_RESERVED_END, semconv.MEMORY_HIGH_WATER_END)
_tracing: Any = torch._C._get_tracing_state


class Used:
    """Memory before and after something."""

    __slots__ = ("after", "before")

    def __init__(self, before: Reading, after: Reading) -> None:
        self.before, self.after = before, after

    def attributes(self) -> dict[str, AttributeValue]:
        """Of its span."""
        pairs = (*zip(_START, self.before, strict=True), *zip(_END, self.after, strict=True))
        return {key: value for key, value in pairs if value is not None}


class Sums:
    """All calls of one module: readings, bytes after them, differences to before them, rises of the peak."""

    __slots__ = ("after", "difference", "readings", "rise")

    def __init__(self) -> None:
        self.readings = self.after = self.difference = self.rise = 0

    def add(self, before: Reading, after: Reading) -> None:
        """Take in a call."""
        if before.allocated is None or after.allocated is None:
            return
        self.readings += 1
        self.after += after.allocated
        self.difference += after.allocated - before.allocated
        # The program may have reset the peak inside.
        self.rise += max(0, (after.high_water or 0) - (before.high_water or 0))

    def join(self, other: Sums) -> None:
        """Take in other calls."""
        self.readings, self.after = self.readings + other.readings, self.after + other.after
        self.difference, self.rise = self.difference + other.difference, self.rise + other.rise


Call = tuple[str, "int | None", int, Reading, Reading]


class MemoryLog:
    """The readings of one request; used on its thread only.

    Args:
        device: of the model.

    Attributes:
        latest: the last call of each module, until its statistics are recorded.
        modules: sums by module.
        steps: steps with readings.
        calls: module, step, time by the clock of the request, before and after, of the latest calls.
    """

    def __init__(self, device: torch.device | None) -> None:
        self.device = device
        self._read = reader_on(device)
        self.latest: dict[str, Used] = {}
        self.modules: dict[str, Sums] = {}
        self.steps = 0
        self.calls: deque[Call] = deque(maxlen=KEPT_CALLS)
        self.overhead = 0
        self._open: list[tuple[str, Reading]] = []
        self._step: Reading | None = None
        self._begin = self.last = self._read()

    def begin_step(self) -> None:
        """A step is about to begin."""
        with contain("memory of modules"):
            self._step = self.last = self._read()

    def end_step(self) -> dict[str, AttributeValue]:
        """The open step has ended: attributes of its span; none without its beginning."""
        before, self._step = self._step, None
        if before is None:
            return {}
        with contain("memory of modules"):
            self.last = self._read()
            self.steps += 1
            return Used(before, self.last).attributes()
        return {}

    def enter(self, module: str, read: Read) -> None:
        """A module is about to run."""
        began = perf_counter_ns()
        self._open.append((module, read()))
        self.overhead += perf_counter_ns() - began

    def leave(self, module: str, read: Read, step: int | None) -> None:
        """A module has returned, in the step of this number."""
        began = perf_counter_ns()
        after = read()
        # Calls that an exception has left stay open above it.
        place = next((place for place in range(len(self._open) - 1, -1, -1) if self._open[place][0] == module), None)
        if place is not None:
            before = self._open[place][1]
            del self._open[place:]
            sums = self.modules.get(module)
            if sums is None:
                sums = self.modules[module] = Sums()
            sums.add(before, after)
            self.latest[module] = Used(before, after)
            self.calls.append((module, step, began, before, after))
        self.overhead += perf_counter_ns() - began

    def attributes(self) -> dict[str, AttributeValue]:
        """Of the request's span, at its end."""
        self.last = self._read()
        return Used(self._begin, self.last).attributes()

    def event(self) -> Attributes | None:
        """Attributes of the event with the modules of the request; ``None`` if none was read."""
        found = {name: sums for name, sums in self.modules.items() if sums.readings}
        if not found:
            return None
        kept = found if len(found) <= MOST_IN_EVENT else _most(found)
        event: dict[str, AttributeValue] = {
            semconv.MEMORY_MODULE_NAMES: list(kept),
            semconv.MEMORY_MODULE_READINGS: [sums.readings for sums in kept.values()],
            semconv.MEMORY_MODULE_AFTER: [sums.after / sums.readings for sums in kept.values()],
            semconv.MEMORY_MODULE_DIFFERENCE: [sums.difference / sums.readings for sums in kept.values()],
            semconv.MEMORY_MODULE_RISE: [sums.rise for sums in kept.values()],
        }
        return event if len(kept) == len(found) else {**event, semconv.MEMORY_MODULES_OMITTED: len(found) - len(kept)}


def _most(found: Mapping[str, Sums]) -> dict[str, Sums]:
    """The highest modules by each of the three rankings."""
    share, kept = MOST_IN_EVENT // 3, set[str]()
    for rank in (lambda s: s.after / s.readings, lambda s: s.difference / s.readings, lambda s: s.rise):
        kept.update(sorted(found, key=lambda name, rank=rank: -rank(found[name]))[:share])  # type: ignore[misc]
    return {name: sums for name, sums in found.items() if name in kept}


class Memory:
    """What all requests of one model have shown so far; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._modules: dict[str, Sums] = {}
        self._high_water: int | None = None
        self._device: str | None = None
        self._steps = self._requests = 0
        self.shortages: deque[str] = deque(maxlen=KEPT_SHORTAGES)
        """The latest out-of-memory errors, in words."""
        self._calls: deque[Call] = deque(maxlen=KEPT_CALLS)

    def add(self, log: MemoryLog, offset: int) -> None:
        """Take in a request that has ended; ``offset`` makes its times nanoseconds since the epoch."""
        high = max((value for value in (log.last.high_water, log.last.allocated) if value is not None), default=None)
        with self._lock:
            self._requests += 1
            self._steps += log.steps
            self._calls.extend((module, step, time + offset, before, after) for module, step, time, before, after in log.calls)
            self._device = str(log.device) if has_allocator(log.device) else "cpu"
            if high is not None:
                self._high_water = max(high, self._high_water or 0)
            for name, sums in log.modules.items():
                if name in self._modules or len(self._modules) < MOST_MODULES:
                    self._modules.setdefault(name, Sums()).join(sums)

    def figures(self) -> dict[str, Any]:
        """What is known by now, as plain values: the sums of ``modules``, and the rest by the names of ``MemoryFigures``."""
        with self._lock:
            rows = [(name, sums.readings, sums.after, sums.difference, sums.rise) for name, sums in self._modules.items() if sums.readings]
            return {
                "device": self._device, "peak": self._high_water, "steps": self._steps, "requests": self._requests, "modules": rows,
                "shortages": tuple(self.shortages), "calls": tuple(self._calls),
            }  # fmt: skip

    def forked(self) -> None:
        """Called in a forked child, where no thread is left to release the lock."""
        self._lock = threading.Lock()


def module_reader(module: nn.Module, device: torch.device | None) -> Read | None:
    """What reads memory at a module of a model on this device; ``None`` where there is no allocator to ask."""
    own = device_of(module)
    found = next((place for place in (own, device) if has_allocator(place)), None)
    return None if found is None else reader_on(found)


class _MemoryHook(CopiedAway):
    """Base of the hooks of a module whose memory is read."""

    __slots__ = ("_engine", "_name", "_read")

    def __init__(self, name: str, read: Read, engine: object) -> None:
        self._name, self._read, self._engine = name, read, engine

    def _looking(self) -> Any:
        """What reads memory in the recorded request that runs on this thread; ``None`` if nothing does."""
        call: Any = current.call
        looking = call.looking if call is not None and call.engine is self._engine else None
        return looking if looking is not None and looking.memory is not None else None


class MemoryBefore(_MemoryHook):
    """Pre-hook of a module whose memory is read."""

    __slots__ = ()

    @leave_alone
    def __call__(self, module: nn.Module, *_: Any) -> None:
        """Read it."""
        if is_dynamo_compiling() or _tracing() or (looking := self._looking()) is None:
            return
        try:
            looking.memory.enter(self._name, self._read)
        except Exception as own:
            report("memory of modules", own)


class MemoryAfter(_MemoryHook):
    """Forward hook of a module whose memory is read."""

    __slots__ = ()

    @leave_alone
    def __call__(self, module: nn.Module, *_: Any) -> None:
        """Read it."""
        if is_dynamo_compiling() or _tracing() or (looking := self._looking()) is None:
            return
        try:
            looking.memory.leave(self._name, self._read, looking.step())
        except Exception as own:
            report("memory of modules", own)
