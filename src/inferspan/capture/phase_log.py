"""The phases of one request, which are stages in a pipeline: their times, device boundaries and attributes.

In: beginnings and ends. Out: records, once the request has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from inferspan import semconv
from inferspan.guard import contain
from inferspan.records import AttributeValue, Phase, RequestEnd, key_of_phase, name_of_phase

from .budget import PHASES

__all__ = ["PhaseLog"]

_NONE: Mapping[str, AttributeValue] = MappingProxyType({})


class _Phase(NamedTuple):
    """An open or a finished phase; ``first_step`` is the number of its first step, ``begins`` and ``ends`` are device boundaries."""

    key: str
    start: int
    first_step: int
    begins: int
    end: int = 0
    ends: int = 0
    failure: str | None = None
    attributes: Mapping[str, AttributeValue] = _NONE


class _Request(Protocol):
    """What the phases need of their request."""

    recording: bool
    budget: Any
    clock: Any
    steps: Any
    pending: list[Any]

    def epoch(self, now: int) -> int: ...


class PhaseLog:
    """The phases of one request. The caller contains exceptions.

    Args:
        request: whose phases these are.

    Attributes:
        open: the phase that runs.
    """

    __slots__ = ("_ended", "_last", "_loose", "_request", "open")

    def __init__(self, request: _Request) -> None:
        self._request = request
        self.open: _Phase | None = None
        self._ended: list[_Phase] = []
        self._last: _Phase | None = None
        """The phase that was open when the request was closed."""
        self._loose: dict[str, int] = {}
        """When the last module call ended that lies directly under a phase, by key of the phase."""

    @property
    def name(self) -> str | None:
        """Name of the open phase."""
        return None if self.open is None else name_of_phase(self.open.key)

    def begin(self, name: str, now: int, attributes: Mapping[str, AttributeValue]) -> str:
        """Begin a phase; returns its key."""
        request = self._request
        if len(self._ended) >= PHASES:
            request.budget.spend(1)
        if request.clock is not None and self._ended and self._ended[-1].end != now:
            request.clock.anchor()
        key = key_of_phase(name, sum(name_of_phase(phase.key) == name for phase in self._ended))
        self.open = _Phase(key, now, request.steps.index, self._boundary(), attributes=attributes)
        return key

    def end(self, now: int, failure: str | None, attributes: Mapping[str, AttributeValue]) -> None:
        """End the open phase, if there is one."""
        phase, self.open = self.open, None
        if phase is None:
            return
        request = self._request
        if phase.attributes and request.steps.modules.attached:
            # Modules of a stage that has no steps.
            request.steps.modules.cut_before_step(phase.key, phase.start, now)
        if request.clock is not None:
            request.clock.anchor()
        known = {**phase.attributes, **attributes}
        self._ended.append(phase._replace(end=now, ends=self._boundary(), failure=failure, attributes=known))

    def close(self, *, empty: bool) -> str | None:
        """The request is being closed: no phase is open any more.

        Args:
            empty: whether a phase without steps, after others, is to be left out.

        Returns:
            Key of the phase that module calls belong to which no step has.
        """
        phase, self.open = self.open, None
        if phase is not None and self._ended and empty and phase.first_step == self._request.steps.index:
            phase = None
        self._last = phase
        last = phase or (self._ended[-1] if self._ended else None)
        return None if last is None else last.key

    def end_last(self, now: int, failure: str | None) -> None:
        """End the phase that was open then."""
        phase, self._last = self._last, None
        if phase is not None:
            self._ended.append(phase._replace(end=now, ends=self._boundary(), failure=failure))

    def stretch(self, key: str, now: int) -> None:
        """A phase lasts as long as the module calls directly under it."""
        self._loose[key] = max(now, self._loose.get(key, 0))

    def stages(self) -> list[tuple[str, float]]:
        """Names and seconds of those that are stages."""
        return [
            (str(phase.attributes[semconv.STAGE_NAME]), (phase.end - phase.start) / 1e9)
            for phase in self._ended
            if semconv.STAGE_NAME in phase.attributes
        ]

    def add_records(self, end: RequestEnd | None) -> RequestEnd | None:
        """Add the records of the phases, and the device's time on them and on the request as far as it is known.

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
                    end = replace(end, attributes={**end.attributes, semconv.DEVICE_TIME: whole})
        if request.recording:
            for phase, device in zip(phases, seconds, strict=True):
                attributes = phase.attributes if device is None else {**phase.attributes, semconv.DEVICE_TIME: device}
                ended = request.epoch(max(phase.end, self._loose.get(phase.key, 0)))
                request.pending.append(Phase(phase.key, request.epoch(phase.start), ended, phase.failure, attributes))
        return end

    def drop(self) -> None:
        """Drop the reference back to the request."""
        del self._request

    def _boundary(self) -> int:
        """Number of the last device boundary; the first one is where the first pass began."""
        clock = self._request.clock
        return 0 if clock is None else max(0, clock.anchors - 1)
