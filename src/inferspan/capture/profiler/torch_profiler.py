"""torch's profiler around one forward pass: opened and closed on the model's thread, and read as rows without torch.

In: the kind of device. Out: ``ProfilerEvent`` rows on the monotonic clock. Kineto allows one profiler a process; a second one crashes the
process instead of raising, even while it is warming up. So no profiler is opened while another profiler is open, and one that the
program starts meanwhile finds this one closed: on the pass's own thread it is cut short, other threads wait for its end.
"""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Iterable
from time import perf_counter_ns
from typing import Any

import torch
from torch.autograd import profiler

from inferspan.guard import contain

from .collectives import HOST_COLLECTIVES
from .events import COLLECTIVE, KERNEL, LAUNCH, MEMCPY, MEMSET, OP, ProfilerEvent

__all__ = ["OpenProfiler", "open_profiler", "read_events"]

# As Any, because torch does not declare the names that are needed here.
_profiler: Any = profiler
_autograd: Any = torch.autograd

MARK = "inferspan clock"
"""Name of the events by which the profiler's clock and the name of this thread in it are found out."""
MARKS = 4
WAIT = 60.0
"""Longest time in seconds that a profiler of the program, started on another thread, waits for the end of a pass."""
OTHER = "another torch profiler is running or warming up in this process"
OWN = "another window of inferspan is open in this process"

_ACTIVITIES = {
    "cpu_op": OP,
    "kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "cuda_runtime": LAUNCH,
    "cuda_driver": LAUNCH,
}
_LAUNCHES = re.compile(r"cuda[A-Z]|cu[A-Z]|hip[A-Z]")
_turn = threading.Lock()


def _renew() -> None:
    global _turn
    _turn = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class OpenProfiler:
    """One opened profiler.

    Args:
        device: ``"cuda"`` where kernels are wanted, else ``None``.
    """

    def __init__(self, device: str | None) -> None:
        self._device = device
        self._thread = threading.get_ident()
        self._ended = threading.Event()
        self._turn = _turn
        self._profiler: Any = None
        self._results: Any = None
        self._marks: list[tuple[int, int]] = []
        self._gate: Any = None
        self._behind: Any = None

    @property
    def on_this_thread(self) -> bool:
        """Whether the calling thread is the one that may stop it."""
        return threading.get_ident() == self._thread

    def start(self) -> None:
        """Start the profiler and mark its clock."""
        opened = _profiler.profile(use_kineto=True, use_cpu=True, use_device=self._device)
        try:
            opened.__enter__()
        except BaseException:
            _profiler._run_on_profiler_stop()
            raise
        self._profiler = opened
        mark = getattr(torch._C._profiler, "_RecordFunctionFast", _profiler.record_function)
        for _ in range(MARKS):
            before = perf_counter_ns()
            with mark(MARK):
                pass
            self._marks.append((before, perf_counter_ns()))

    def stop(self) -> None:
        """Stop the profiler, on the thread that started it; may be called twice. On CUDA this waits for the device."""
        opened, self._profiler = self._profiler, None
        try:
            if opened is not None:
                opened.__exit__(None, None, None)
                self._results = opened.kineto_results
        except BaseException:
            if _autograd._profiler_enabled():
                _autograd._disable_profiler()
                _profiler._run_on_profiler_stop()
            raise
        finally:
            self._let_others()

    def events(self) -> list[ProfilerEvent]:
        """Events by start, on the monotonic clock; operations and launches of the pass's own thread, and collectives that it began."""
        results, self._results = self._results, None
        return read_events(results.events(), self._marks) if results is not None else []

    # ----------------------------------------------------------------------------------------- profilers of the program
    def hold_others(self) -> None:
        """From now on a profiler that starts anywhere comes through :meth:`_give_way` first."""
        behind = self._behind = _profiler._prepare_profiler

        def prepare(*args: Any, **kwargs: Any) -> Any:
            self._give_way()
            return behind(*args, **kwargs)

        self._gate = prepare
        _profiler._prepare_profiler = prepare

    def _give_way(self) -> None:
        if self.on_this_thread:
            if self._profiler is not None:
                with contain("profiler window"):
                    self.stop()
        elif not self._ended.wait(WAIT):
            # To go on would end the process.
            raise RuntimeError("a profiler window of inferspan is open in a forward pass that does not end")

    def _let_others(self) -> None:
        if self._ended.is_set():
            return
        if _profiler._prepare_profiler is self._gate:
            _profiler._prepare_profiler = self._behind
        self._ended.set()
        self._turn.release()


def open_profiler(device: str | None) -> OpenProfiler | str:
    """Open the profiler on the calling thread, or say in words why it cannot be.

    Args:
        device: ``"cuda"`` where kernels are wanted, else ``None``.
    """
    opened = OpenProfiler(device)
    if not opened._turn.acquire(blocking=False):
        return OWN
    try:
        opened.hold_others()
        if _is_profiled():
            opened._let_others()
            return OTHER
        opened.start()
    except BaseException:
        opened._let_others()
        raise
    return opened


def _is_profiled() -> bool:
    """Whether a profiler is at work, or prepared for the steps to come, which nothing but its own object tells."""
    if _profiler._is_profiler_enabled or _autograd._profiler_enabled():
        return True
    kinds = {_profiler.profile, *_profiler.profile.__subclasses__()}
    scheduled = {torch.profiler.profile, *torch.profiler.profile.__subclasses__()}
    warming = torch.profiler.ProfilerAction.WARMUP
    # An object refers to its class. Tens of milliseconds in a process with torch and transformers.
    for found in gc.get_referrers(*kinds, *scheduled):
        kind = type(found)
        if kind in kinds:
            if getattr(found, "entered", False) and getattr(found, "kineto_results", None) is None:
                return True
        # One that keeps what earlier cycles saw has results already when it warms up again.
        elif kind in scheduled and getattr(found, "acc_events", False) and getattr(found, "current_action", None) is warming:
            return True
    return False


# ------------------------------------------------------------------------------------------------------------- reading
def read_events(raw: Iterable[Any], marks: list[tuple[int, int]]) -> list[ProfilerEvent]:
    """Kineto's events as rows.

    Args:
        raw: objects with the methods of ``torch._C._autograd._KinetoEvent``; times in nanoseconds of any clock.
        marks: monotonic readings just before and after each event that is called ``MARK``, in order.

    Returns:
        Rows by start, in nanoseconds of the monotonic clock; nothing without a mark, as no time would mean anything.
    """
    raw = list(raw)
    seen = sorted((event for event in raw if event.name() == MARK and _on_host(event)), key=lambda event: event.start_ns())
    paired = list(zip(seen, marks, strict=False))
    if not paired:
        return []
    event, (before, after) = min(paired, key=lambda pair: pair[1][1] - pair[1][0])
    shift = (before + after) // 2 - (event.start_ns() + event.duration_ns() // 2)
    thread = event.device_resource_id()
    annotations = {event.name() for event in raw if _on_host(event) and event.scope() != 0}
    rows = [row for event in raw if (row := _row(event, shift, thread, annotations)) is not None]
    rows.sort(key=lambda row: (row.start, -row.end))
    return rows


def _row(event: Any, shift: int, thread: int, annotations: set[str]) -> ProfilerEvent | None:
    kind = _kind(event, annotations)
    if kind is None:
        return None
    host = kind in (OP, LAUNCH, COLLECTIVE)
    if kind in (OP, LAUNCH) and event.device_resource_id() != thread:
        return None
    start = event.start_ns() + shift
    return ProfilerEvent(
        kind,
        event.name(),
        start,
        start + max(0, event.duration_ns()),
        event.correlation_id(),
        event.linked_correlation_id(),
        -1 if host else event.device_index(),
        -1 if host else event.device_resource_id(),
        "" if host or not hasattr(event, "metadata_json") else event.metadata_json() or "",
    )


def _on_host(event: Any) -> bool:
    return bool(event.device_type().name == "CPU")


def _kind(event: Any, annotations: set[str]) -> str | None:
    name = event.name()
    if HOST_COLLECTIVES.match(name) and _on_host(event):
        return COLLECTIVE  # run by a thread of the backend; torch records those alone that the profiled thread has begun
    if hasattr(event, "activity_type"):
        kind = _ACTIVITIES.get(event.activity_type())
    elif not _on_host(event):
        # Ranges that the program has named are shown on the device as well.
        kind = MEMCPY if name.startswith("Memcpy") else MEMSET if name.startswith("Memset") else None if name in annotations else KERNEL
    elif event.linked_correlation_id() or _LAUNCHES.match(name):
        kind = LAUNCH
    else:
        kind = OP
    # Ranges named by hand and by torch itself are no operations.
    return None if kind == OP and (event.scope() != 0 or "::" not in name) else kind
