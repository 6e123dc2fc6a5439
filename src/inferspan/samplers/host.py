"""The process, its garbage collector and, on one rank per host, the host itself, as ``Sample``s.

Most readings come from psutil, which is optional: without it only those that Python and the files of the cgroup have are there. The
host's memory is the whole host's; a limit on the container has metrics of its own. The process is looked up by its id at every round,
so a forked child reports itself. A reading that fails is absent and costs no other.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from inferspan import guard
from inferspan import semconv as s
from inferspan.records import Sample

from .attempt import attempt, number
from .cgroup import cpu_quota, memory_limit
from .groups import CHEAP_HOST
from .rise import Rises

__all__ = ["HostSampler"]

_SHORTEST_WINDOW = 1.0
"""Seconds below which a share of CPU time is mostly the clock's grain of 10 ms."""

_Reading = tuple[str, Callable[[Any], Any], Mapping[str, str]]

_PROCESS: tuple[_Reading, ...] = (
    (s.M_PROCESS_CPU_TIME, lambda process: process.cpu_times().user, {s.CPU_MODE: "user"}),
    (s.M_PROCESS_CPU_TIME, lambda process: process.cpu_times().system, {s.CPU_MODE: "system"}),
    (s.M_PROCESS_MEMORY, lambda process: process.memory_info().rss, {}),
    (s.M_PROCESS_VIRTUAL, lambda process: process.memory_info().vms, {}),
    (s.M_PROCESS_THREADS, lambda process: process.num_threads(), {}),
    (s.M_PROCESS_FDS, lambda process: process.num_fds(), {}),
    (s.M_PROCESS_SWITCHES, lambda process: process.num_ctx_switches().voluntary, {s.CONTEXT_SWITCH_TYPE: "voluntary"}),
    (s.M_PROCESS_SWITCHES, lambda process: process.num_ctx_switches().involuntary, {s.CONTEXT_SWITCH_TYPE: "involuntary"}),
    (s.M_PROCESS_IO, lambda process: process.io_counters().read_bytes, {s.DISK_IO_DIRECTION: "read"}),
    (s.M_PROCESS_IO, lambda process: process.io_counters().write_bytes, {s.DISK_IO_DIRECTION: "write"}),
    (s.M_PROCESS_OPERATIONS, lambda process: process.io_counters().read_count, {s.DISK_IO_DIRECTION: "read"}),
    (s.M_PROCESS_OPERATIONS, lambda process: process.io_counters().write_count, {s.DISK_IO_DIRECTION: "write"}),
)
_GC = {s.M_GC_COLLECTIONS: "collections", s.M_GC_COLLECTED: "collected", s.M_GC_UNCOLLECTABLE: "uncollectable"}
_OWN = (*(metric for metric, _, _ in _PROCESS), s.M_PROCESS_UPTIME)
_FAULTS = {"major": "ru_majflt", "minor": "ru_minflt"}
_HOST_CPU = {
    "user": ("user",),
    "system": ("system",),
    "nice": ("nice",),
    "idle": ("idle",),
    "iowait": ("iowait",),
    "interrupt": ("irq", "softirq"),
    "steal": ("steal",),
}


_COUNTERS = frozenset(
    name for name in s.DEVICE_METRICS if s.METRICS[name].instrument == s.OBSERVABLE_COUNTER and not name.startswith(("hw.", "inferspan."))
)


class _Shares:
    """CPU time by mode as a share of the available time, over windows of a second or more."""

    def __init__(self) -> None:
        self._begin: tuple[float, Mapping[str, float]] | None = None
        self._shares: dict[str, float] = {}

    def update(self, now: float, times: Mapping[str, float], cpus: float) -> Mapping[str, float]:
        """Shares of the newest whole window; empty until there is one."""
        if not times:
            return {}
        if self._begin is None:
            self._begin = now, times
        start, before = self._begin
        elapsed = now - start
        if elapsed >= _SHORTEST_WINDOW:
            self._begin = now, times
            used = {mode: max(0.0, value - before[mode]) for mode, value in times.items() if mode in before}
            self._shares = {mode: min(1.0, value / (elapsed * cpus)) for mode, value in used.items()}
        return self._shares


class HostSampler:
    """Readings of this process and its host.

    Args:
        local_rank: rank of the process on its host; only rank 0 reports the host.
        metrics: those to read; default all.
        off: true while something else reports the same metrics, such as OpenTelemetry's system metrics instrumentor.
        library: a module like ``psutil``, which is imported at the first round if this is ``None``.
        pid: returns our process id.
        clock: monotonic seconds.
        now: seconds since the epoch.
        root: where the cgroup files are looked up.
        cpus: CPUs that the process may run on, by its affinity.
    """

    def __init__(
        self,
        *,
        local_rank: int = 0,
        metrics: Collection[str] = frozenset(s.HOST_METRICS),
        off: Callable[[], bool] = lambda: False,
        library: Any = None,
        pid: Callable[[], int] = os.getpid,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        root: Path = Path("/"),
        cpus: Callable[[], int] | None = None,
    ) -> None:
        self._local_rank = local_rank
        self._metrics = frozenset(metrics)
        self._off = off
        self._library = library
        self._looked_up = library is not None
        self._pid = pid
        self._clock = clock
        self._now = now
        self._root = root
        self._cpus = cpus or _affinity
        self._process: Any = None
        self._process_pid: int | None = None
        self._counted_pid: int | None = None
        self._rises = Rises()
        self._process_shares = _Shares()
        self._host_shares = _Shares()

    def collect(self) -> Sequence[Sample]:
        """Readings of one round; utilisations from the second round on."""
        return self._collect(self._metrics)

    def collect_cheap(self) -> Sequence[Sample]:
        """CPU and memory alone."""
        return self._collect(self._metrics & CHEAP_HOST)

    def _collect(self, wanted: frozenset[str]) -> Sequence[Sample]:
        if attempt(self._off):
            return ()
        if self._pid() != self._counted_pid:
            # A fork inherits the garbage collector's counts and none of the system's.
            self._counted_pid, self._rises = self._pid(), Rises()
        sources: list[tuple[Collection[str], Callable[[], Iterable[Sample]]]] = [
            (_GC, _collector),
            ((s.M_PROCESS_FAULTS,), _faults),
            (_OWN, lambda: self._own(wanted)),
            ((s.M_CGROUP_MEMORY_LIMIT,), self._cgroup),
        ]
        if self._local_rank == 0:
            sources += [((s.M_SYSTEM_CPU_TIME,), self._host_cpu), ((s.M_SYSTEM_MEMORY_USAGE,), self._host_memory)]
        readings: list[Sample] = []
        for metrics, source in sources:
            if not wanted.isdisjoint(metrics):
                # Readings that a source has yielded before it fails are kept.
                with guard.contain("samplers.HostSampler"):
                    readings.extend(source())
        return [self._counted(sample) if sample.metric in _COUNTERS else sample for sample in readings]

    def _counted(self, sample: Sample) -> Sample:
        return sample._replace(value=self._rises((sample.metric, *sample.attributes.values()), sample.value))

    def close(self) -> None:
        """Release the process handle."""
        self._process = None

    def _psutil(self) -> Any:
        if not self._looked_up:
            self._looked_up = True
            try:
                import psutil
            except Exception:  # ImportError where it is not installed, anything where it does not fit the system
                return None
            self._library = psutil
        return self._library

    def _own(self, wanted: Collection[str]) -> Iterator[Sample]:
        process = self._current()
        if process is None:
            return
        times: dict[str, float] = {}
        with contextlib.ExitStack() as stack:
            # Saves psutil from reading a file for each of its lines.
            attempt(lambda: stack.enter_context(process.oneshot()))
            for metric, read, attributes in _PROCESS:
                value = number(read, process) if metric in wanted else None
                if value is None:
                    continue
                if metric == s.M_PROCESS_CPU_TIME:
                    times[attributes[s.CPU_MODE]] = value
                yield Sample(metric, value, attributes)
            created = number(lambda: process.create_time()) if s.M_PROCESS_UPTIME in wanted else None
        if created is not None:
            yield Sample(s.M_PROCESS_UPTIME, max(0.0, self._now() - created), {})
        if s.M_PROCESS_CPU_UTILIZATION not in wanted:
            return
        quota = cpu_quota(self._root)
        cpus = min(self._cpus(), quota) if quota else self._cpus()
        for mode, share in self._process_shares.update(self._clock(), times, cpus).items():
            yield Sample(s.M_PROCESS_CPU_UTILIZATION, share, {s.CPU_MODE: mode})

    def _current(self) -> Any:
        library, pid = self._psutil(), self._pid()
        if library is None:
            return None
        if self._process is None or self._process_pid != pid:
            self._process_pid = pid
            self._process_shares = _Shares()
            self._process = attempt(lambda: library.Process(pid))
        return self._process

    def _host_cpu(self) -> Iterator[Sample]:
        library = self._psutil()
        if library is None:
            return
        times = _host_times(attempt(lambda: library.cpu_times()))
        for mode, value in times.items():
            yield Sample(s.M_SYSTEM_CPU_TIME, value, {s.CPU_MODE: mode})
        cpus = number(lambda: library.cpu_count())
        if cpus:
            for mode, share in self._host_shares.update(self._clock(), times, cpus).items():
                yield Sample(s.M_SYSTEM_CPU_UTILIZATION, share, {s.CPU_MODE: mode})

    def _host_memory(self) -> Iterator[Sample]:
        library = self._psutil()
        memory = None if library is None else attempt(lambda: library.virtual_memory())
        found = {name: number(getattr, memory, name) for name in ("total", "free", "cached", "buffers")}
        total = found.pop("total")
        if total is None:
            return
        states = {name: value for name, value in found.items() if value is not None}
        # psutil's own "used" overlaps with the others from version 7 on; the states of the conventions add up.
        states = {"used": max(0, total - sum(states.values())), **states}
        for state, value in states.items():
            yield Sample(s.M_SYSTEM_MEMORY_USAGE, value, {s.MEMORY_STATE: state})
        yield Sample(s.M_SYSTEM_MEMORY_LIMIT, total, {})
        if total:
            for state, value in states.items():
                yield Sample(s.M_SYSTEM_MEMORY_UTILIZATION, value / total, {s.MEMORY_STATE: state})

    def _cgroup(self) -> Iterator[Sample]:
        """The memory limit of the container or service, and its use; each rank may have one of its own."""
        ours = memory_limit(self._root)
        if ours is None:
            return
        yield Sample(s.M_CGROUP_MEMORY_LIMIT, ours.limit, {})
        if ours.usage is not None:
            yield Sample(s.M_CGROUP_MEMORY_USAGE, ours.usage, {})


def _host_times(times: Any) -> dict[str, float]:
    """CPU time by mode, of the modes that this system has."""
    found: dict[str, float] = {}
    for mode, names in _HOST_CPU.items():
        values = [number(getattr, times, name) for name in names]
        known = [value for value in values if value is not None]
        if known:
            found[mode] = sum(known)
    return found


def _affinity() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def _collector() -> Iterator[Sample]:
    for generation, statistics in enumerate(gc.get_stats()):
        for metric, key in _GC.items():
            yield Sample(metric, statistics[key], {s.GC_GENERATION: generation})


def _faults() -> Iterator[Sample]:
    try:
        import resource
    except ImportError:  # Windows has no such module
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    for kind, name in _FAULTS.items():
        yield Sample(s.M_PROCESS_FAULTS, getattr(usage, name), {s.PAGING_FAULT_TYPE: kind})
