"""What one handle or session has recorded so far, in figures: by operation, by type of event and by module, and its latest requests.

In: requests, their parts and stages as they end, mostly on the hand-over thread. Out: the figures that ``inferspan report`` has of the
session file of the same run, made by the same rules. Memory is bounded, whatever a program does; threads may share a recording.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from inferspan import semconv
from inferspan.analysis.levels import module_operation
from inferspan.analysis.operations import Operations
from inferspan.metrics.summary import Summary
from inferspan.records import ModuleBatch, ModuleInfo

from .activations import ModuleFigures, ModuleRow
from .analysed import AnalysisFigures
from .calls import CallSums, ModuleSums
from .events import OTHER_TYPES
from .requests import Ended, RecordedRequest

__all__ = ["Around", "Counts", "Operation", "Recording"]

MOST_OPERATIONS = 4_000
"""Each takes some 4 kB."""
MOST_MODULES = 4_000
MOST_TYPES = 1_000
MOST_MODELS = 1_000
KEPT_REQUESTS = 32
Operation = tuple[str, str]
"""Kind and name of an operation."""
Call = tuple[Operation, Operation, float, "float | None"]
"""Of a module: operation, the one around it, seconds, seconds on the device."""


_all: weakref.WeakSet[Recording] = weakref.WeakSet()


class Recording:
    """Adds up what is recorded.

    Args:
        totals: adds up requests already; without one the recording has its own.

    Attributes:
        totals: of the requests.
    """

    def __init__(self, totals: Summary | None = None) -> None:
        self._operations = Operations(MOST_OPERATIONS)
        self._sums = CallSums()
        self.totals = Summary() if totals is None else totals
        self.adds_totals = totals is None
        self._events: Counter[str] = Counter()
        self._audio: dict[tuple[str, bool | None], list[int]] = {}
        """By model and whether it says that it takes audio: requests, and those of them that have a stage for it."""
        self._modules: dict[str, ModuleFigures] = {}
        self._analysis = AnalysisFigures()
        self._requests: deque[Ended] = deque(maxlen=KEPT_REQUESTS)
        self._first_ns = self._last_ns = 0
        self._steps = self._steps_with_modules = self._spans = 0
        # Reentrant: a collected generator may end its stage at any instruction.
        self._lock = threading.RLock()
        _all.add(self)

    # ------------------------------------------------------------------------------------------------------------- in
    def add_ended(
        self, operation: Operation, start_ns: int, end_ns: int, device: float | None, delta: int | None, events: Iterable[str],
        *, spans: int = 1,
    ) -> None:  # fmt: skip
        """Count the end of an operation, and the events that it stands for.

        Args:
            operation: what has ended.
            start_ns: nanoseconds since the epoch.
            end_ns: the same.
            device: seconds on the device.
            delta: bytes of memory at its end minus at its start.
            events: their types.
            spans: that were made of it.
        """
        timed = 0 < start_ns <= end_ns
        with self._lock:
            if timed:
                if start_ns < self._first_ns or not self._first_ns:
                    self._first_ns = start_ns
                if end_ns > self._last_ns:
                    self._last_ns = end_ns
            self._spans += spans
            counts = self._events
            for name in events:
                counts[name if name in counts or len(counts) < MOST_TYPES else OTHER_TYPES] += 1
        if timed or device is not None:
            seconds = (end_ns - start_ns) / 1e9 if timed else 0.0
            self._operations.add(*operation, seconds, device_seconds=device, memory_delta=delta)

    def add_inside(self, operation: Operation, seconds: float, device: float | None) -> None:
        """Count time of something directly inside an operation: see ``Operations.add_inside``."""
        self._operations.add_inside(*operation, seconds, device_seconds=device)

    def add_open(self, operation: Operation, seconds: float, device: float | None) -> None:
        """Count an operation that has recorded calls inside: see ``Operations.add_open``."""
        self._operations.add_open(*operation, seconds, device_seconds=device)

    def take_back(self, event: str) -> None:
        """Forget an event that was counted too early."""
        with self._lock:
            self._events[event] -= 1

    def add_step(self) -> None:
        """Count a step."""
        with self._lock:
            self._steps += 1

    def add_audio(self, model: tuple[str, bool | None], requests: int, stages: int) -> None:
        """Count requests of a model that may take audio, or those of them that turn out to have a stage for it."""
        with self._lock:
            if model in self._audio or len(self._audio) < MOST_MODELS:
                found = self._audio.setdefault(model, [0, 0])
                found[0] += requests
                found[1] += stages

    def add_calls(self, calls: Sequence[Call]) -> None:
        """Count calls of modules, or kernels, that have become spans."""
        with self._lock:
            self._spans += len(calls)
        self._operations.add_nested(calls)

    def add_recorded(self, batch: ModuleBatch, above: Operation, *, new_step: bool) -> bool:
        """Count the calls of a pass, with shapes and statistics, if the C extension has recorded them.

        Args:
            batch: the calls.
            above: the operation that they lie in.
            new_step: whether no earlier calls are of the same step.

        Returns:
            False if it has not: then nothing was counted.
        """
        backward = batch.phase.name == semconv.SPAN_BACKWARD
        with self._lock:
            added = self._sums.add(batch, backward=backward)
            if added is None:
                return False
            self._spans += added.timed
            if added.timed:
                self.add_inside(above, added.seconds, added.device_seconds)
            if not backward:
                self._count_calls(len(batch.calls), new_step=new_step)
                for place in added.looked:
                    self._look(batch, place)
            if len(self._sums) > MOST_MODULES:
                self._take_sums()
        return True

    def _look(self, batch: ModuleBatch, place: int) -> None:
        _, _, info, start, _, _, _, _, slot = batch.calls[place]  # type: ignore[index]
        statistics = batch.statistics.get(slot)
        if (info.name or info.span_name) not in self._modules:
            self._take_sums()
        found = self._modules.get(info.name or info.span_name)
        if found is not None and statistics:
            found.look(statistics, (start + batch.offset, batch.step))

    def _count_calls(self, number: int, *, new_step: bool) -> None:
        self._steps_with_modules += new_step
        self._events["module_start"] += number
        self._events["module_end"] += number

    def _take_sums(self) -> None:
        """Take over what was added up in C."""
        taken = self._sums.take()
        seen: list[tuple[ModuleSums, ModuleFigures]] = []
        for sums in taken:
            name = sums.module.name or sums.module.span_name
            if sums.timed or sums.inside or sums.device_inside:
                self._operations.join("module", module_operation(name, semconv.SPAN_BACKWARD if sums.backward else ""), sums)
            found = None if sums.backward or not sums.calls else self._module(sums.module, sums.first)
            if found is not None:
                seen.append((sums, found))
        for sums, found in sorted(seen, key=lambda one: one[0].last):
            found.count(sums.calls, sums.inputs, sums.outputs)

    def add_modules(
        self, rows: Sequence[Sequence[Any]], statistics: Mapping[int, Mapping[str, Any]], *, new_step: bool, step: int | None = None,
        offset: int = 0,
    ) -> None:  # fmt: skip
        """Take in the shapes and statistics of calls of modules, in the layout of ``ModuleCall``.

        Args:
            rows: the calls.
            statistics: of their outputs.
            new_step: whether no earlier calls are of the same step.
            step: its number.
            offset: added to the time of a call, gives nanoseconds since the epoch.
        """
        with self._lock:
            self._take_sums()  # their last shapes are older
            self._count_calls(len(rows), new_step=new_step)
            for number, _, info, start, _, inputs, outputs, _, slot in rows:
                found = self._module(info, number)
                if found is not None:
                    found.add(inputs, outputs, None if slot is None else statistics.get(slot), (start + offset, step))

    def _module(self, info: ModuleInfo, number: int) -> ModuleFigures | None:
        name = info.name or info.span_name
        known = self._modules.get(name)
        if known is not None or len(self._modules) >= MOST_MODULES:
            return known
        made = self._modules[name] = ModuleFigures(name, info.type, number)
        return made

    def add_request(self, request: Ended, attributes: Mapping[str, Any]) -> None:
        """Keep one of the latest requests, and take in its analysis, which stands in the attributes of its end."""
        with self._lock:
            self._requests.append(request)
            if request.start.kind != "forward" and not request.start.nested:
                self._analysis.add(attributes, request.findings)

    # ------------------------------------------------------------------------------------------------------------ out
    @property
    def operations(self) -> Operations:
        """Figures by operation."""
        with self._lock:
            self._take_sums()
        return self._operations

    def events(self) -> dict[str, int]:
        """Number of events by type, the most frequent first."""
        with self._lock:
            found = Counter(self._events)
            audio = sum(requests - stages for (_, told), (requests, stages) in self._audio.items() if told or stages)
        if audio > 0:
            found["audio_input"] += audio
        return {name: number for name, number in sorted(found.items(), key=lambda item: (-item[1], item[0])) if number > 0}

    def modules(self) -> tuple[ModuleRow, ...]:
        """One row for each observed module, in the model's order."""
        with self._lock:
            self._take_sums()
            return tuple(found.row() for found in sorted(self._modules.values(), key=lambda found: found.order))

    def analysis(self) -> dict[str, Any]:
        """The analysis of all requests together; empty where nothing was analysed."""
        with self._lock:
            return self._analysis.as_dict()

    def requests(self) -> list[RecordedRequest]:
        """The latest requests that have ended, the newest last."""
        with self._lock:
            kept = list(self._requests)
        return [ended.request() for ended in kept]

    def counts(self) -> Counts:
        """How much it has recorded."""
        events = sum(self.events().values())
        with self._lock:
            totals, spans = self.totals.totals(), self._spans
        return Counts(totals.requests + totals.forwards, spans, events)

    def times(self) -> Times:
        """How long it has recorded, and how many steps."""
        with self._lock:
            return Times(max(0, self._last_ns - self._first_ns) / 1e9, self._steps, self._steps_with_modules)

    def renew_locks(self) -> None:
        """Called in a forked child, where no thread is left to release them."""
        self._lock = threading.RLock()
        self._operations.renew_lock()
        self.totals.renew_lock()


class Times(NamedTuple):
    """Seconds from the first beginning to the last end, steps, and those of them with modules inside."""

    seconds: float
    steps: int
    with_modules: int


class Counts(NamedTuple):
    """How much was recorded.

    Attributes:
        requests: that have ended, without those inside others.
        spans: of requests, their detail and stages.
        events: of all types, as a summary has them.
    """

    requests: int = 0
    spans: int = 0
    events: int = 0

    def since(self, before: Counts) -> Counts:
        """What has been added."""
        return Counts(self.requests - before.requests, self.spans - before.spans, self.events - before.events)

    def __str__(self) -> str:
        """In words."""
        return ", ".join(f"{number:,} {name if number != 1 else name[:-1]}" for name, number in self._asdict().items())


class Around(NamedTuple):
    """What a request or stage lies in, and the recordings that have it."""

    operation: Operation
    recordings: Sequence[Recording]

    def add_inside(self, seconds: float, device_seconds: float | None) -> None:
        """Count time of something directly inside."""
        for recording in self.recordings:
            recording.add_inside(self.operation, seconds, device_seconds)


def _forked() -> None:
    for recording in list(_all):
        recording.renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
