"""Closed rows about hosts and processes.

Two sources know a host: our samplers (local rank 0 of each program) and the collector's host_metrics receiver (agent.yaml). Where both
have a reading, ours is shown for hosts that have it and the agent's for the others; they are never added. Programs on one host report it
each, so the largest of their readings counts.
"""

from __future__ import annotations

from inferspan import semconv

from ..frame import Row
from ..links import OVERVIEW, to_dashboard
from ..panels import Query, Says, Sized, trend
from ..queries import Queries
from ..units import CORES

__all__ = ["cpu_in_use", "rows"]

NO_HOST = "no program with samplers on these hosts, and no agent with host_metrics"
NO_AGENT = "no agent with host_metrics (collector-config/agent.yaml) on these hosts"
NO_PROCESS = "no program with samplers in this time range"
HOST = ["host_name"]
REQUESTS = to_dashboard(OVERVIEW, instance="instance")


def cpu_in_use(q: Queries) -> str:
    """Share of the CPUs of each host that is in use."""
    idle = q.series(semconv.M_SYSTEM_CPU_UTILIZATION, 'cpu_mode="idle"')
    time = "host_metrics/system.cpu.time"
    agent_idle = q.rate(time, 'state="idle"', by=HOST)
    return f"(1 - min by (host_name) ({idle})) or (1 - {agent_idle} / ({q.rate(time, by=HOST)} > 0))"


def _used(q: Queries) -> str:
    ours = q.series(semconv.M_SYSTEM_MEMORY_UTILIZATION, 'system_memory_state="used"')
    memory = "host_metrics/system.memory.usage"
    agent = q.total(memory, 'state="used"', by=HOST)
    return f"max by (host_name) ({ours}) or ({agent} / ({q.total(memory, by=HOST)} > 0))"


BUSY = Says(
    "Share of the CPUs of the host that is in use, by any process.",
    "1 - idle of `system.cpu.utilization`; from the agent's CPU times where no program of ours samples the host.",
    "Near 100 %: the threads that launch GPU work wait for a CPU, and the GPU for them.",
    empty=NO_HOST,
)
MODES = BUSY._replace(
    what="CPUs of the host by what they do.",
    how="rate of `system.cpu.time` by mode, of the program that saw most.",
    do="`steal` or `iowait`: a busy neighbour or a slow disk.",
)
MEMORY = Says(
    "Share of the memory of the host in use, by all programs.",
    "`system.memory.utilization` of the state used; from the agent where no program of ours samples the host.",
    "Near 100 %: the kernel will kill a program. A container may have less: see *Memory of the container*. Weights that are loaded on the "
    "host first need their size twice.",
    empty=NO_HOST,
)
STATES = MEMORY._replace(
    what="Memory of the host by state, and all of it (dashed).",
    how="`system.memory.usage`, `system.memory.limit`.",
    do="`cached` can be taken back at any time.",
)


def _host_panels(q: Queries) -> list[Sized]:
    times = q.series(semconv.M_SYSTEM_CPU_TIME, 'cpu_mode!="idle"')
    cpu = Query(f"max by (host_name, cpu_mode) (rate({times}[$__rate_interval]))", "{{host_name}} {{cpu_mode}}")
    usage = Query(
        f"max by (host_name, system_memory_state) ({q.series(semconv.M_SYSTEM_MEMORY_USAGE)})", "{{host_name}} {{system_memory_state}}"
    )
    limit = Query(f"max by (host_name) ({q.series(semconv.M_SYSTEM_MEMORY_LIMIT)})", "{{host_name}} limit")
    return [
        trend("CPU of the host", Query(cpu_in_use(q), "{{host_name}}"), unit="percentunit", says=BUSY, width=6, maximum=1),
        trend("CPUs by mode", cpu, unit=CORES, says=MODES, width=6),
        trend(
            "Memory of the host",
            Query(_used(q), "{{host_name}}"),
            unit="percentunit",
            says=MEMORY,
            width=6,
            maximum=1,
            limits=((0.95, "red"),),
        ),
        trend("Memory by state", usage, limit, unit="bytes", says=STATES, width=6, dashed="/ limit$/"),
    ]


LOAD = Says(
    "Threads that run or wait for a CPU, and the number of CPUs (dashed).",
    "`system.cpu.load_average.1m`, `system.cpu.logical.count`.",
    "Above the number of CPUs: too many threads; set OMP_NUM_THREADS for each process.",
    empty=NO_AGENT,
)
TRAFFIC = Says(
    "Bytes each second, by direction.",
    "rates of `system.disk.io` and `system.network.io`, all devices together, loopback left out.",
    "Reads for minutes after a start are the weights. Later ones: memory is short, see *Paging*.",
    empty=NO_AGENT,
)
TROUBLE = Says(
    "Pages moved to or from disk, and packets that failed.",
    "rates of `system.paging.operations` and `system.network.errors`.",
    "Major paging under load: the host is out of memory. Failed packets: collectives between hosts will be slow.",
    empty=NO_AGENT,
)
SPACE = Says(
    "Share of each file system that is used.",
    "`system.filesystem.usage`: used / all.",
    "Full: the queues of the agent on disk and the cache of models have no place.",
    empty=NO_AGENT,
)


def _agent_panels(q: Queries) -> list[Sized]:

    def by_direction(key: str, *matchers: str) -> str:
        return q.rate(f"host_metrics/{key}", *matchers, by=["host_name", "direction"])

    place = ["host_name", "mountpoint"]
    usage = "host_metrics/system.filesystem.usage"
    share = q.total(usage, 'state="used"', by=place) + f" / ({q.total(usage, by=place)} > 0)"
    one, count = q.total("host_metrics/system.cpu.load_average.1m", by=HOST), q.total("host_metrics/system.cpu.logical.count", by=HOST)
    legend = "{{host_name}} {{direction}}"
    return [
        trend("Load", Query(one, "{{host_name}}"), Query(count, "{{host_name}} CPUs"), unit="short", says=LOAD, dashed="/ CPUs$/"),
        trend("Disk", Query(by_direction("system.disk.io"), legend), unit="Bps", says=TRAFFIC),
        trend("Network", Query(by_direction("system.network.io", 'device!="lo"'), legend), unit="Bps", says=TRAFFIC),
        trend("Paging", Query(by_direction("system.paging.operations", 'type="major"'), legend), unit="ops", says=TROUBLE),
        trend("Network errors", Query(by_direction("system.network.errors"), legend), unit="ops", says=TROUBLE),
        trend(
            "File systems",
            Query(share, "{{host_name}} {{mountpoint}}"),
            unit="percentunit",
            says=SPACE,
            maximum=1,
            limits=((0.85, "orange"), (0.95, "red")),
        ),
    ]


CPU = Says(
    "Share of the CPUs that the process may use, by mode.",
    "`process.cpu.utilization`, user and system.",
    "One CPU of many at its limit (1 / number): Python is what the GPU waits for.",
    empty=NO_PROCESS,
)
PROCESS_PANELS_MEMORY = Says(
    "Resident (and virtual) memory of the process.",
    "`process.memory.usage`, `process.memory.virtual`.",
    "Resident memory that only rises is a leak; virtual memory of CUDA programs is large and means nothing.",
    empty=NO_PROCESS,
)
COUNTS = Says(
    "Threads and open files.",
    "`process.thread.count`, `process.unix.file_descriptor.count`.",
    "Rise without end: something is opened for each request and never closed.",
    empty=NO_PROCESS,
)
WAITS = Says(
    "Context switches and page faults each second.",
    "rates of `process.context_switches` and `process.paging.faults`.",
    "Many involuntary switches: too many threads for the CPUs. Major faults: memory is short.",
    empty=NO_PROCESS,
)
DISK = Says(
    "Bytes that the process reads and writes each second.",
    "rate of `process.disk.io`.",
    "Reads after the start: weights that are mapped, not loaded.",
    empty="no rights to read it, or no samplers",
)
OPERATIONS = DISK._replace(
    what="Reads and writes of the process each second.",
    how="rate of `process.disk.operations`.",
    do="Many for few bytes: small files or pages, read one by one.",
)
CONTAINER = Says(
    "Memory of the container or service that each process runs in, and its limit (dashed).",
    "`inferspan.cgroup.memory.usage`, without what the kernel can drop at once; `inferspan.cgroup.memory.limit`.",
    "Near the limit: the kernel will kill the process, however much the host has left.",
    empty="no memory limit on the processes here",
)
COLLECTOR = Says(
    "Python's garbage collector: collections each second by generation, objects it found and objects it could not free.",
    "rates of `cpython.gc.*`.",
    "Generation 2 often: each stops the program for milliseconds; gc.freeze() after loading helps.",
    empty=NO_PROCESS,
)
UPTIME = Says("Time since each process started.", "`process.uptime`.", "Falls to zero: it was restarted; see its log.", empty=NO_PROCESS)
CPU_TIME_BY_MODE = CPU._replace(what="CPUs that the process keeps busy, by mode.", how="rate of `process.cpu.time`.")


def _process_panels(q: Queries) -> list[Sized]:
    each = "{{service_name}} {{instance}}"
    per = ["service_name", "instance"]

    def rate(key: str, label: str) -> Query:
        return Query(q.rate(key, by=[*per, label]), f"{each} {{{{{label}}}}}")

    def now(key: str, name: str = "") -> Query:
        return Query(q.total(key, by=per), f"{each} {name}".rstrip())

    collections = [Query(q.rate(key, by=["cpython_gc_generation"]), f"{name} {{{{cpython_gc_generation}}}}") for key, name in _GC]
    return [
        trend(
            "CPU of the process",
            Query(q.total(semconv.M_PROCESS_CPU_UTILIZATION, by=per), each),
            unit="percentunit",
            says=CPU,
            width=6,
            maximum=1,
            links=[REQUESTS],
        ),
        trend(
            "CPU time by mode",
            rate(semconv.M_PROCESS_CPU_TIME, "cpu_mode"),
            unit=CORES,
            says=CPU_TIME_BY_MODE,
            width=6,
        ),
        trend("Memory of the process", now(semconv.M_PROCESS_MEMORY), unit="bytes", says=PROCESS_PANELS_MEMORY, width=6, links=[REQUESTS]),
        trend("Virtual memory", now(semconv.M_PROCESS_VIRTUAL), unit="bytes", says=PROCESS_PANELS_MEMORY, width=6),
        trend(
            "Threads and files",
            now(semconv.M_PROCESS_THREADS, "threads"),
            now(semconv.M_PROCESS_FDS, "files"),
            unit="short",
            says=COUNTS,
            width=6,
        ),
        trend(
            "Switches and faults",
            rate(semconv.M_PROCESS_SWITCHES, "process_context_switch_type"),
            rate(semconv.M_PROCESS_FAULTS, "system_paging_fault_type"),
            unit="ops",
            says=WAITS,
            width=6,
        ),
        trend("Disk of the process", rate(semconv.M_PROCESS_IO, "disk_io_direction"), unit="Bps", says=DISK, width=6),
        trend("Disk operations", rate(semconv.M_PROCESS_OPERATIONS, "disk_io_direction"), unit="ops", says=OPERATIONS, width=6),
        trend(
            "Memory of the container",
            now(semconv.M_CGROUP_MEMORY_USAGE),
            now(semconv.M_CGROUP_MEMORY_LIMIT, "limit"),
            unit="bytes",
            says=CONTAINER,
            dashed="/ limit$/",
        ),
        trend("Garbage collector", *collections, unit="ops", says=COLLECTOR),
        trend("Uptime", now(semconv.M_PROCESS_UPTIME), unit="s", says=UPTIME),
    ]


_GC = ((semconv.M_GC_COLLECTIONS, "collections"), (semconv.M_GC_COLLECTED, "objects freed"), (semconv.M_GC_UNCOLLECTABLE, "objects left"))


def rows(q: Queries) -> list[Row]:
    """Two rows: hosts, processes."""
    return [Row("Hosts", [*_host_panels(q), *_agent_panels(q)], closed=True), Row("Processes", _process_panels(q), closed=True)]
