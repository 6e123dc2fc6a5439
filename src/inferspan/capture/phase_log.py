"""The phases of one request, and the stages of its model that steps and module calls lie in: their times and device boundaries.

In: beginnings and ends; one phase or stage runs at a time. Out: records, once the request has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from inferspan import semconv
from inferspan.guard import contain
from inferspan.records import AttributeValue, Phase, PhaseKey, RequestEnd
from inferspan.roofline.request import OpenRoofline, PhaseRoofline, RequestRoofline

from .budget import PHASES
from .device.memory import MemoryMeter
from .generate.pass_shapes import runs_of

__all__ = ["PhaseLog"]


class _Phase(NamedTuple):
    """An open or a finished phase or stage.

    ``first_step`` is the number of its first step, ``begins`` and ``ends`` are device boundaries; only a stage has attributes and memory.
    """

    key: PhaseKey
    start: int
    first_step: int
    begins: int
    end: int = 0
    ends: int = 0
    failure: str | None = None
    attributes: Mapping[str, AttributeValue] | None = None
    memory: MemoryMeter | None = None

    def ended(self, **changes: Any) -> _Phase:
        """The same at its end, with the memory of a stage among its attributes."""
        found: dict[str, AttributeValue] = {}
        if self.memory is not None:
            with contain("memory reading"):
                found = self.memory.attributes()
        known = changes.pop("attributes", self.attributes)
        return self._replace(attributes=known if not found else {**(known or {}), **found}, memory=None, **changes)


class _Request(Protocol):
    """What the phases need of their request."""

    owner: Any
    recording: bool
    budget: Any
    clock: Any
    steps: Any
    pending: list[Any]
    stage_seconds: list[tuple[str, float]]
    roofline: OpenRoofline | None
    start: int
    moving_ns: int

    def epoch(self, now: int) -> int: ...

    def new_stage(self) -> int: ...

    def add_stage(
        self, name: str, start: int, end: int, *, number: int, failure: str | None, attributes: Any, budgeted: bool
    ) -> bool: ...


class PhaseLog:
    """The phases of one request, and those of its stages that are open while something runs in them. The caller contains exceptions.

    Args:
        request: whose phases these are.

    Attributes:
        open: the phase or stage that runs.
    """

    __slots__ = ("_ended", "_last", "_loose", "_request", "open")

    def __init__(self, request: _Request) -> None:
        self._request = request
        self.open: _Phase | None = None
        self._ended: list[_Phase] = []
        self._last: _Phase | None = None
        """The phase that was open when the request was closed."""
        self._loose: dict[PhaseKey, int] = {}
        """When the last module call ended that lies directly under a phase or stage."""

    @property
    def name(self) -> str | None:
        """Name of the open phase or stage."""
        return None if self.open is None else self.open.key.name

    def begin(self, name: str, now: int, attributes: Mapping[str, AttributeValue] | None = None) -> PhaseKey:
        """Begin a phase, or a stage with ``attributes``."""
        request = self._request
        if len(self._ended) >= PHASES:
            request.budget.spend(1)
        if request.clock is not None and self._ended and self._ended[-1].end != now:
            request.clock.anchor()
        key = PhaseKey(name, request.new_stage())
        memory: MemoryMeter | None = None
        if attributes is not None and request.recording:
            with contain("memory reading"):
                memory = MemoryMeter(request.owner.device)
        self.open = _Phase(key, now, request.steps.index, self._boundary(), attributes=attributes, memory=memory)
        return key

    def end(self, now: int, failure: str | None, attributes: Mapping[str, AttributeValue]) -> None:
        """End the open phase or stage, if there is one; a stage gets more ``attributes``."""
        phase = self.open
        if phase is None:
            return
        request = self._request
        known = None if phase.attributes is None else {**phase.attributes, **attributes}
        if known is not None and request.steps.modules.attached:
            # Modules of a stage that has no steps.
            request.steps.modules.cut_before_step(phase.key, phase.start, now)
        if request.clock is not None:
            request.clock.anchor()
        ended = phase.ended(end=now, ends=self._boundary(), failure=failure, attributes=known)
        # Without a call in between: an interrupt must not lose a phase, whose steps have it as their parent, or end it twice.
        self._ended += [ended]
        self.open = None

    def close(self, *, empty: bool) -> PhaseKey | None:
        """The request is being closed: no phase is open any more.

        Args:
            empty: whether a phase without steps, after others, is to be left out.

        Returns:
            The phase or stage that module calls belong to which no step has.
        """
        phase = self.open or self._last
        if phase is not None and self._ended and empty and phase.first_step == self._request.steps.index:
            phase = None
        self._last, self.open = phase, None
        last = phase or (self._ended[-1] if self._ended else None)
        return None if last is None else last.key

    def end_last(self, now: int, failure: str | None) -> None:
        """End the phase that was open then."""
        phase = self._last
        if phase is not None:
            ended = phase.ended(end=now, ends=self._boundary(), failure=failure)
            self._ended += [ended]
            self._last = None

    def stretch(self, key: PhaseKey, now: int) -> None:
        """A phase or stage lasts as long as the module calls directly under it."""
        self._loose[key] = max(now, self._loose.get(key, 0))

    def add_records(self, end: RequestEnd | None) -> None:
        """Add the records of phases and stages, and the device's time on them and on the request as far as it is known.

        The loop has waited for most of it; nothing here does.
        """
        request, phases = self._request, self._ended
        clock = request.clock
        seconds: list[float | None] = [None] * len(phases)
        if clock is not None:
            with contain("device clock"):
                clock.read(leave=0)
                seconds = [clock.between(phase.begins, phase.ends) for phase in phases]
                whole = clock.between(0, clock.anchors - 1)
                if whole is not None and end is not None:
                    end.attributes = {**end.attributes, semconv.DEVICE_TIME: whole}
        figures = self._rooflines(seconds)
        if end is not None and figures and request.roofline is not None:
            took = (end.end_ns - request.epoch(request.start)) / 1e9
            end.roofline = RequestRoofline(request.roofline.costs, [*figures.values()], took, request.moving_ns / 1e9)
        for phase, device in zip(phases, seconds, strict=True):
            attributes = {**(phase.attributes or {}), **({} if device is None else {semconv.DEVICE_TIME: device})}
            (name, number), start, failure = phase.key, phase.start, phase.failure
            ended = max(phase.end, self._loose.get(phase.key, 0))
            if phase.attributes is not None and number is not None:
                request.add_stage(name, start, ended, number=number, failure=failure, attributes=attributes, budgeted=True)
            elif request.recording:
                record = Phase(phase.key, request.epoch(start), request.epoch(ended), failure, attributes, figures.get(phase.key))
                request.pending.append(record)
        if end is not None and request.stage_seconds:
            end.stages = tuple(request.stage_seconds)

    def _rooflines(self, seconds: Sequence[float | None]) -> dict[PhaseKey, PhaseRoofline]:
        """What gives the figures of each phase that has passes; ``seconds`` are those of the phases on the device."""
        request, open_one = self._request, self._request.roofline
        found: dict[PhaseKey, PhaseRoofline] = {}
        with contain("roofline"):
            runs = runs_of(request.steps.rows.marks, request.steps.index, request.steps.length) if open_one is not None else {}
            for phase, device in zip(self._ended, seconds, strict=True):
                if open_one is not None and phase.attributes is None and phase.key in runs:
                    took, name = (phase.end - phase.start) / 1e9, phase.key.name
                    launches = request.steps.seconds.get(name, ())
                    found[phase.key] = PhaseRoofline(open_one.costs, name, open_one.facts, runs[phase.key], took, device, launches)
        return found

    def drop(self) -> None:
        """Drop the reference back to the request."""
        del self._request

    def _boundary(self) -> int:
        """Number of the last device boundary; the first one is where the first pass began."""
        clock = self._request.clock
        return 0 if clock is None else max(0, clock.anchors - 1)
