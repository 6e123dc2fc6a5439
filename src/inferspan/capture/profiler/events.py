"""Places kernels, collectives and operations under the module call that launched them, within the span budget.

In: rows of one forward pass as ``torch_profiler`` has read them, and its module calls. Out: ``Profiled`` records and totals. An operation
belongs to the innermost module call that was running when it began; a kernel to the operation or module call that was running when the
host launched it, whenever the device came to it; a collective that the host runs to the module call in which it began. No torch here, so
that it can be tried with made-up rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from inferspan import semconv
from inferspan.attribute_values import exportable_text
from inferspan.records import AttributeValue, ModuleCalls, Profiled

from .collectives import Owned, by_module, covered, is_collective_kernel, is_collective_op

__all__ = ["COLLECTIVE", "KERNEL", "LAUNCH", "MEMCPY", "MEMSET", "OP", "Placed", "ProfilerEvent", "place", "short_name"]

OP, LAUNCH, KERNEL, MEMCPY, MEMSET, COLLECTIVE = "op", "launch", "kernel", "memcpy", "memset", "collective"
MAX_NAME = 512
MAX_SPAN_NAME = 80


class ProfilerEvent(NamedTuple):
    """One event of the profiler; times in nanoseconds of the monotonic clock.

    ``key`` of an operation is what kernels and launches carry as ``op``; ``key`` of a launch is also that of the kernels it launched.
    ``facts`` is what else the profiler knows, as JSON or the inside of a JSON object.
    """

    kind: str
    name: str
    start: int
    end: int
    key: int
    op: int
    device: int
    stream: int
    facts: str


class Placed(NamedTuple):
    """Records and totals of one pass."""

    records: list[Profiled]
    kernels: int
    kernel_ns: int
    ops: int
    left_out: int
    collective_ns: int
    """Time in which at least one collective ran."""
    collectives: dict[int, float]
    """The same in seconds by the number of a module call."""
    until: int
    """End of the pass, on the device where that is later."""


class _Candidate(NamedTuple):
    event: ProfilerEvent
    op: int
    """Place of the outermost operation around it in the list of those, -1 without one."""
    module: int
    queued: int | None
    """Nanoseconds from launch to start."""


def place(
    events: Sequence[ProfilerEvent], calls: ModuleCalls, *, since: int, until: int, first: int, limit: int, with_ops: bool, device: str
) -> Placed:
    """Find the parent of each event and keep as many as there is limit for.

    Left out are operations first, the shortest before longer ones, then kernels, copies and collectives in the same order.

    Args:
        events: rows of one pass.
        calls: its module calls.
        since: monotonic time at which the pass began; what was launched before is not of this pass.
        until: monotonic time at which it ended.
        first: number that the first record gets; higher than that of any module call.
        limit: records that there may be.
        with_ops: whether operations get records.
        device: kind of device that kernels run on.
    """
    inside = _Modules(calls)
    ops, outermost = _outermost([event for event in events if event.kind == OP and since <= event.start <= until])
    launches = {event.key: event for event in events if event.kind == LAUNCH}
    kernels = []
    for event in events:
        if event.kind == COLLECTIVE and since <= event.start <= until:
            kernels.append(_Candidate(event, -1, event.start, None))
        if event.kind not in (KERNEL, MEMCPY, MEMSET):
            continue
        launch, op = launches.get(event.key), outermost.get(event.op, -1)
        moment = launch.start if launch is not None else ops[op].start if op >= 0 else None
        # Neither: launched by another thread, or before the profiler was there.
        if moment is not None and since <= moment <= until:
            kernels.append(_Candidate(event, op, moment, max(0, event.start - moment) if launch is not None else None))
    # On a device operations only launch collectives; those inside of other operations count as well.
    waits = [] if device == "cuda" else [event for event in events if event.kind == OP and is_collective_op(event.name)]
    waits = [event for event in waits if since <= event.start <= until]
    owners = inside.innermost([event.start for event in (*ops, *waits)] + [kernel.module for kernel in kernels])
    kernels = [kernel._replace(module=owner) for kernel, owner in zip(kernels, owners[len(ops) + len(waits) :], strict=True)]
    chosen = _longest(kernels, limit)
    shown = set(_longest(range(len(ops)), limit - len(chosen), key=lambda at: ops[at].end - ops[at].start)) if with_ops else set()
    numbers = {at: first + order for order, at in enumerate(sorted(shown))}
    records = [_op_record(numbers[at], owners[at], inside.cut(owners[at], ops[at], until)) for at in sorted(shown)]
    for order, kernel in enumerate(chosen):
        parent = numbers.get(kernel.op, kernel.module)
        records.append(_kernel_record(first + len(numbers) + order, parent, kernel, device))
    left_out = len(kernels) + (len(ops) if with_ops else 0) - len(records)
    found = [(owner, event.start, min(event.end, until)) for event, owner in zip(waits, owners[len(ops) :], strict=False)]
    found += _collectives(kernels, until)
    on_device = [kernel.event for kernel in kernels if kernel.event.kind != COLLECTIVE]
    return Placed(
        records, len(on_device), sum(event.end - event.start for event in on_device), len(ops), left_out,
        covered((start, end) for _, start, end in found), by_module(found, inside.parents),
        max(until, max((event.end for event in on_device), default=until)),
    )  # fmt: skip


def _collectives(kernels: Iterable[_Candidate], until: int) -> Iterable[Owned]:
    """Those that the host runs, as far as they are in the pass, and those of the device, which may come to them after it."""
    for kernel in kernels:
        event = kernel.event
        if event.kind == COLLECTIVE:
            yield kernel.module, event.start, min(event.end, until)
        elif event.kind == KERNEL and is_collective_kernel(event.name):
            yield kernel.module, event.start, event.end


def _outermost(ops: list[ProfilerEvent]) -> tuple[list[ProfilerEvent], dict[int, int]]:
    """Operations that no other one runs, and for the key of every operation the place of the outermost around it."""
    found: list[ProfilerEvent] = []
    keys: dict[int, int] = {}
    for op in ops:
        if not found or op.start >= found[-1].end:
            found.append(op)
        keys[op.key] = len(found) - 1
    return found, keys


def _longest(items: Iterable[Any], limit: int, key: Any = lambda kernel: kernel.event.end - kernel.event.start) -> list[Any]:
    items = list(items)
    if len(items) <= limit:
        return items
    kept = set(sorted(range(len(items)), key=lambda at: -key(items[at]))[: max(0, limit)])
    return [item for at, item in enumerate(items) if at in kept]


class _Modules:
    """Module calls of a pass, by time; those of one thread lie in each other or beside each other."""

    def __init__(self, calls: ModuleCalls) -> None:
        columns = calls.columns()
        self.parents = dict(zip(columns.numbers, columns.parents, strict=True))
        rows = zip(columns.starts, columns.ends, columns.numbers, strict=True)
        self._spans = sorted(rows, key=lambda row: (row[0], -row[1], row[2]))
        self._ends = {number: end for _, end, number in self._spans}

    def innermost(self, moments: Sequence[int]) -> list[int]:
        """Number of the innermost call at each moment, -1 where none was running."""
        found = [-1] * len(moments)
        open_calls: list[tuple[int, int]] = []
        at = 0
        for order in sorted(range(len(moments)), key=moments.__getitem__):
            moment = moments[order]
            while at < len(self._spans) and self._spans[at][0] <= moment:
                open_calls.append((self._spans[at][1], self._spans[at][2]))
                at += 1
            while open_calls and open_calls[-1][0] < moment:
                open_calls.pop()
            if open_calls:
                found[order] = open_calls[-1][1]
        return found

    def cut(self, number: int, event: ProfilerEvent, until: int) -> ProfilerEvent:
        """The event without what the two clocks, which agree to a microsecond, let stick out of its parent."""
        end = min(event.end, self._ends.get(number, until), until)
        return event._replace(end=max(event.start, end))


# ------------------------------------------------------------------------------------------------------------- records
def _op_record(number: int, parent: int, event: ProfilerEvent) -> Profiled:
    name = exportable_text(event.name[:MAX_NAME])
    attributes: dict[str, AttributeValue] = {semconv.PROFILER_KIND: OP, semconv.OP_NAME: name}
    return Profiled(number, parent, name[:MAX_SPAN_NAME], event.start, event.end, attributes)


def _kernel_record(number: int, parent: int, kernel: _Candidate, device: str) -> Profiled:
    event = kernel.event
    if event.kind == COLLECTIVE:
        name = exportable_text(event.name[:MAX_NAME])
        told: dict[str, AttributeValue] = {semconv.PROFILER_KIND: COLLECTIVE, semconv.OP_NAME: name}
        return Profiled(number, parent, name[:MAX_SPAN_NAME], event.start, event.end, told)
    attributes: dict[str, AttributeValue] = {
        semconv.PROFILER_KIND: event.kind,
        semconv.KERNEL_NAME: exportable_text(event.name[:MAX_NAME]),
        semconv.KERNEL_STREAM: event.stream,
        semconv.DEVICE: f"{device}:{event.device}",
        semconv.KERNEL_CORRELATION: event.key,
    }
    if kernel.queued is not None:
        attributes[semconv.KERNEL_QUEUE_TIME] = kernel.queued / 1e9
    facts = _facts(event.facts)
    for key, name in ((semconv.KERNEL_GRID, "grid"), (semconv.KERNEL_BLOCK, "block")):
        sizes = facts.get(name)
        if isinstance(sizes, list) and sizes:
            attributes[key] = "x".join(map(str, sizes))
    size = facts.get("bytes")
    if isinstance(size, int):
        attributes[semconv.KERNEL_BYTES] = size
    return Profiled(number, parent, short_name(event.name), event.start, event.end, attributes)


def _facts(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        found = json.loads(text if text.lstrip().startswith("{") else f"{{{text}}}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@lru_cache(maxsize=4096)
def short_name(name: str) -> str:
    """Name of a kernel without its return type, namespaces, template arguments and parameters."""
    if name.startswith(("Memcpy", "Memset")):
        return name.split(" (")[0][:MAX_SPAN_NAME]
    bare = name.replace("(anonymous namespace)", "")
    while (fewer := re.sub(r"<[^<>]*>", "", bare)) != bare:
        bare = fewer
    bare = bare.split("(")[0].split("<")[0].rstrip().rpartition("::")[2].rpartition(" ")[2]
    return exportable_text((bare or name)[:MAX_SPAN_NAME])
