"""Energy of one request, from the card's counter as the sampler thread reads it.

The counter is the whole card's: requests that overlap on it, or another process that computes on it, make the share unknown and the
reading absent. Reading takes some milliseconds, so a request shorter than a second gets none and a longer one waits for half a
percent of its time at most.
"""

from __future__ import annotations

import threading
from time import perf_counter_ns
from typing import Any

from inferspan.guard import contain

__all__ = ["RequestEnergy", "forked", "meter_on"]

SHORTEST_NS = 1_000_000_000
SHARE = 0.005
LONGEST_WAIT = 0.05

_lock = threading.Lock()
_running: set[int] = set()
_overlapped: set[int] = set()


def forked() -> None:
    """Called in a forked child: the parent's requests are not its own, and no thread is left to release the lock."""
    global _lock
    _lock = threading.Lock()
    _running.clear()
    _overlapped.clear()


class RequestEnergy:
    """Reads the counter at both ends of a request.

    Args:
        machine: the sampler loop.
        device: ``cuda:N`` that the model is on.
        device_ids: maps a ``hw.id`` to ``cuda:N``.
    """

    def __init__(self, machine: Any, device: str, device_ids: Any) -> None:
        self._machine = machine
        self._device = device
        self._device_ids = device_ids
        self._begun = perf_counter_ns()
        with _lock:
            _running.add(id(self))
            if len(_running) > 1:
                _overlapped.update(_running)
        self._first: dict[str, tuple[float, float]] = {}
        # Asks only: the reading comes on the sampler thread, long before a request worth measuring ends.
        machine.request_energy(self._first.update)

    def end(self, *, now: int) -> float | None:
        """Joules of the card during the request; ``None`` if that is not known or not the request's alone."""
        with _lock:
            _running.discard(id(self))
            shared = id(self) in _overlapped
            _overlapped.discard(id(self))
        if shared or now - self._begun < SHORTEST_NS or not self._first:
            return None
        hw_id = next((one for one, device in (self._device_ids() or {}).items() if device == self._device), None)
        if hw_id is None or hw_id not in self._first:
            return None
        last = self._machine.energy(min(LONGEST_WAIT, SHARE * (now - self._begun) / 1e9)).get(hw_id)
        first = self._first[hw_id]
        if last is None or last[0] < first[0] or self._machine.shared(hw_id):
            return None
        return float(last[0] - first[0])


def meter_on(device: Any, machine: Any, cuda_devices: Any) -> RequestEnergy | None:
    """A meter for one request on a device whose energy is sampled; ``None`` on others.

    Args:
        device: a ``torch.device``, or ``None``.
        machine: the sampler loop, or ``None``.
        cuda_devices: maps a ``hw.id`` to ``cuda:N``.
    """
    with contain("energy reading"):
        if machine is not None and device is not None and device.type == "cuda":
            return RequestEnergy(machine, str(device), cuda_devices)
    return None
