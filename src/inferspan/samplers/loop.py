"""One daemon thread that runs the samplers and caches the newest readings for exporters.

Readings come in from the samplers and go out through ``read``, which wakes the thread and waits briefly for a fresh round, so
NVML and psutil never run on an exporter's thread. Samplers with an interval of their own are read on it alone, and those who ``follow``
them get every reading. An exception of a sampler is contained and costs its own readings only. A forked child has no thread until it
calls ``start``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from inferspan import guard
from inferspan.records import Sample, Sampler

from .beat import Beat, Reading

__all__ = ["EnergyMeter", "SamplerLoop"]

Follower = Callable[[int, Sequence[Sample]], object]
"""Gets the time of a reading in nanoseconds since the epoch, and its samples."""

_log = logging.getLogger("inferspan")
_loops: weakref.WeakSet[SamplerLoop] = weakref.WeakSet()
_fork_handled = False


@runtime_checkable
class EnergyMeter(Protocol):
    """A sampler that can read its energy counters without a whole round."""

    def energy(self) -> Mapping[str, tuple[float, float]]:
        """``{hw.id: (joules since the first reading, monotonic time of the reading)}``."""

    def shared(self, hw_id: str) -> bool:
        """Whether another process computed on the device when it was last looked at; true if that is not known."""


class _Ticket:
    """Work of the thread on request. Requests are numbered, so that no caller gets an answer older than its request."""

    def __init__(self) -> None:
        self.wanted = self.begun = self.done = 0

    def ask(self) -> int:
        self.wanted = self.begun + 1
        return self.wanted

    @property
    def due(self) -> bool:
        return self.wanted > self.begun


class SamplerLoop:
    """Runs samplers on a thread of its own.

    Args:
        samplers: asked one after the other, perhaps with names; their order is the order of the readings.
        interval: seconds between two rounds without a reader. A reading older than two intervals is not handed out.
        own: by name, seconds between two readings of samplers that have an interval of their own.
        spent: by name, seconds that readings have taken; added up here.
        clock: monotonic seconds.
        wait: longest time in seconds that ``read`` waits for a fresh round.
    """

    def __init__(
        self,
        samplers: Mapping[str, Sampler] | Sequence[Sampler],
        *,
        interval: float,
        own: Mapping[str, float] | None = None,
        spent: dict[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: float = 0.05,
    ) -> None:
        self._samplers = dict(samplers) if isinstance(samplers, Mapping) else {f"{place}": one for place, one in enumerate(samplers)}
        self._interval = interval
        self._own = own or {}
        self._spent = {} if spent is None else spent
        self._clock = clock
        self._wait = wait
        self._followers: tuple[Follower, ...] = ()
        self._reset()
        _loops.add(self)
        _handle_forks()

    def _reset(self) -> None:
        """Set the initial state: at first, and in a forked child, where the thread does not exist and its lock may be held for ever."""
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wanted = False
        """Whether the thread should run: one that the system has refused is started by the next ``read``."""
        self._stopping = False
        self._round = _Ticket()
        self._meter = _Ticket()
        self._beats = self._new_beats()
        self._energy: Mapping[str, tuple[float, float]] = {}
        self._receivers: list[Callable[[Mapping[str, tuple[float, float]]], object]] = []

    def _new_beats(self) -> list[Beat]:
        return [Beat(name, one, common=self._interval, own=self._own.get(name)) for name, one in self._samplers.items()]

    @property
    def running(self) -> bool:
        """Whether the thread runs in this process."""
        return self._thread is not None and self._thread.is_alive() and not self._stopping

    def start(self) -> None:
        """Start the thread, unless it runs already; the first round begins at once.

        Where the system refuses a thread there are no readings until it grants one, at a later ``read`` or ``start``.
        """
        with self._condition:
            self._wanted = True
            # A thread that is still stuck in a sampler after ``stop`` must not be joined by a second one.
            if not self._samplers or (self._thread is not None and self._thread.is_alive()):
                return
            self._stopping = False
            self._round.ask()
            thread = threading.Thread(target=self._run, name="inferspan-samplers", daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError, OSError) as error:
                _log.debug("no thread for the samplers: %r", error)
                return
            self._thread = thread

    def stop(self, timeout: float = 1.0) -> None:
        """Stop the thread, which closes the samplers when the query in progress is over; waits ``timeout`` seconds at most."""
        with self._condition:
            thread, self._stopping, self._wanted = self._thread, True, False
            self._beats, self._energy = self._new_beats(), {}
            self._condition.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def wake(self) -> None:
        """Ask for a round now, without waiting for it."""
        with self._condition:
            self._round.ask()
            self._condition.notify_all()

    def read(self) -> Sequence[Sample]:
        """Readings of a round that began after the call, or, after the longest wait, the newest ones that are not too old."""
        if self._wanted and not self.running:
            self.start()
        with self._condition:
            if not self.running:
                return ()
            if not all(beat.paced for beat in self._beats):
                self._await(self._round, self._wait)
            return [sample for _, samples in self._recent() for sample in samples]

    def newest(self) -> Sequence[Sample]:
        """The newest readings that are not too old, without asking for fresh ones."""
        with self._condition:
            return [sample for _, samples in self._recent() for sample in samples]

    def follow(self, follower: Follower) -> Callable[[], None]:
        """Hand every reading of samplers with an interval of their own to ``follower``, on this thread; returns what ends that."""
        self._followers += (follower,)

        def end() -> None:
            self._followers = tuple(one for one in self._followers if one is not follower)

        return end

    def latest(self, metric: str) -> tuple[Sequence[Sample], float] | None:
        """The newest samples of a metric and when they were read, without waiting; ``None`` if there are none."""
        with self._condition:
            for taken, samples in self._recent():
                found = [sample for sample in samples if sample.metric == metric]
                if found:
                    return found, taken
        return None

    def energy(self, timeout: float) -> Mapping[str, tuple[float, float]]:
        """Energy of each device, read after the call began.

        Returns:
            ``{hw.id: (joules since the first reading, monotonic time of the reading)}``; empty if no reading came in time.
        """
        with self._condition:
            if not self.running or not self._await(self._meter, timeout):
                return {}
            return dict(self._energy)

    def request_energy(self, receive: Callable[[Mapping[str, tuple[float, float]]], object]) -> None:
        """Have the next energy reading handed to ``receive`` on the sampler thread; returns at once."""
        with self._condition:
            if self.running:
                self._receivers.append(receive)
                self._meter.ask()
                self._condition.notify_all()

    def shared(self, hw_id: str) -> bool:
        """Whether another process computed on the device when it was last looked at; true if that is not known."""
        meters = [sampler for sampler in self._samplers.values() if isinstance(sampler, EnergyMeter)]
        return all(meter.shared(hw_id) for meter in meters)

    def _await(self, ticket: _Ticket, timeout: float) -> bool:
        number = ticket.ask()
        self._condition.notify_all()
        self._condition.wait_for(lambda: ticket.done >= number or self._stopping, timeout)
        return ticket.done >= number and not self._stopping

    def _recent(self) -> list[Reading]:
        now = self._clock()
        return [reading for beat in self._beats for reading in beat.recent(now)]

    # ------------------------------------------------------------------------------------------------ on the thread

    def _run(self) -> None:
        act: Callable[[], None]
        while True:
            with self._condition:
                next_one = min(beat.due_at for beat in self._beats)
                self._condition.wait_for(
                    lambda: self._stopping or self._meter.due or self._round.due, max(0.0, next_one - self._clock())
                )
                if self._stopping:
                    break
                if self._meter.due:
                    ticket, act = self._meter, self._read_energy
                else:
                    now = self._clock()
                    beats = [beat for beat in self._beats if now >= beat.due_at or (self._round.due and not beat.paced)]
                    if not beats and not self._round.due:
                        continue
                    for beat in beats:
                        beat.due_at = now + beat.interval
                    ticket, act = self._round, partial(self._read, beats)
                ticket.begun += 1
            act()
            with self._condition:
                ticket.done = ticket.begun
                self._condition.notify_all()
        for sampler in self._samplers.values():
            with guard.contain(f"samplers.{type(sampler).__name__}.close"):
                sampler.close()

    def _read(self, beats: Sequence[Beat]) -> None:
        for beat in beats:
            at_ns, began = time.time_ns(), time.perf_counter()
            reading = Reading(self._clock(), ())
            with guard.contain(f"samplers.{type(beat.sampler).__name__}"):
                reading = beat.collect(reading.taken)
            self._spend(beat.name, began)
            # Published at once, so that a slow sampler does not delay the readings of others.
            with self._condition:
                if not self._stopping:
                    beat.publish(reading)
            for follower in self._followers if beat.paced and reading.samples else ():
                with guard.contain("samplers.follower"):
                    follower(at_ns, reading.samples)

    def _spend(self, name: str, began: float) -> None:
        self._spent[name] = self._spent.get(name, 0.0) + time.perf_counter() - began

    def _read_energy(self) -> None:
        energy: dict[str, tuple[float, float]] = {}
        with self._condition:
            receivers, self._receivers = self._receivers, []
        for name, sampler in self._samplers.items():
            if isinstance(sampler, EnergyMeter):
                began = time.perf_counter()
                with guard.contain(f"samplers.{type(sampler).__name__}.energy"):
                    energy.update(sampler.energy())
                self._spend(name, began)
        with self._condition:
            self._energy = energy
        for receive in receivers:
            with guard.contain("samplers.energy"):
                receive(energy)


def _handle_forks() -> None:
    """Register the handler once per process: handlers cannot be taken back, and this one keeps no loop alive."""
    global _fork_handled
    if not _fork_handled and hasattr(os, "register_at_fork"):
        _fork_handled = True
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    for loop in list(_loops):
        loop._reset()
