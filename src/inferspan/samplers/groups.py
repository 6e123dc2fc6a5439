"""Which metrics belong to each word of the settings ``gpu_metrics`` and ``host_metrics``, and which are cheap to read.

Cheap ones are read at each round of an interval below one second. On an H200 they take less than 1 ms together, the others 30 ms: a
reading of the energy 4 ms, one of the PCIe fields 21 ms.
"""

from __future__ import annotations

from collections.abc import Collection

from inferspan import semconv as s

__all__ = ["CHEAP_GPU", "CHEAP_HOST", "GPU_GROUPS", "HOST_GROUPS", "chosen"]

GPU_GROUPS: dict[str, tuple[str, ...]] = {
    "memory": (s.M_GPU_MEMORY_USAGE, s.M_GPU_MEMORY_LIMIT, s.M_GPU_MEMORY_UTILIZATION, s.M_GPU_PROCESS_MEMORY),
    "utilization": (s.M_GPU_UTILIZATION, s.M_MEMORY_ACTIVITY),
    "temperature": (s.M_TEMPERATURE, s.M_TEMPERATURE_LIMIT),
    "power": (s.M_POWER, s.M_POWER_LIMIT),
    "energy": (s.M_ENERGY,),
    "clocks": (s.M_CLOCK, s.M_CLOCK_LIMIT),
    "throttling": (s.M_THROTTLE_ACTIVE, s.M_THROTTLE_TIME),
    "fan": (s.M_FAN_RATIO, s.M_FAN_SPEED),
    "io": (s.M_GPU_IO, s.M_NVLINK_IO, s.M_PCIE_REPLAYS, s.M_PCIE_GENERATION, s.M_PCIE_WIDTH),
    "errors": (s.M_HW_ERRORS, s.M_ECC_ERRORS, s.M_REMAPPED_ROWS),
    "units": (s.M_SM_ACTIVE, s.M_SM_OCCUPANCY, s.M_PIPE_ACTIVE, s.M_DRAM_ACTIVE, s.M_PCIE_BANDWIDTH, s.M_NVLINK_BANDWIDTH),
    "xid": (s.M_XID_ERRORS,),
    "state": (s.M_HW_STATUS, s.M_PERFORMANCE_STATE),
}
CHEAP_GPU = frozenset({
    s.M_GPU_MEMORY_USAGE, s.M_GPU_MEMORY_LIMIT, s.M_GPU_MEMORY_UTILIZATION, s.M_GPU_UTILIZATION, s.M_MEMORY_ACTIVITY, s.M_TEMPERATURE,
    s.M_POWER,
})  # fmt: skip

HOST_GROUPS: dict[str, tuple[str, ...]] = {
    "cpu": (s.M_PROCESS_CPU_TIME, s.M_PROCESS_CPU_UTILIZATION, s.M_SYSTEM_CPU_TIME, s.M_SYSTEM_CPU_UTILIZATION),
    "memory": (
        s.M_SYSTEM_MEMORY_USAGE, s.M_SYSTEM_MEMORY_LIMIT, s.M_SYSTEM_MEMORY_UTILIZATION, s.M_CGROUP_MEMORY_LIMIT, s.M_CGROUP_MEMORY_USAGE,
    ),
    "process": (
        s.M_PROCESS_MEMORY, s.M_PROCESS_VIRTUAL, s.M_PROCESS_THREADS, s.M_PROCESS_FDS, s.M_PROCESS_SWITCHES, s.M_PROCESS_FAULTS,
        s.M_PROCESS_UPTIME,
    ),
    "io": (s.M_PROCESS_IO, s.M_PROCESS_OPERATIONS),
    "gc": (s.M_GC_COLLECTIONS, s.M_GC_COLLECTED, s.M_GC_UNCOLLECTABLE),
}  # fmt: skip
CHEAP_HOST = frozenset((*HOST_GROUPS["cpu"], *HOST_GROUPS["memory"], s.M_PROCESS_MEMORY))


def chosen(groups: dict[str, tuple[str, ...]], words: Collection[str] | None) -> frozenset[str]:
    """The metrics of some groups; of all of them if ``words`` is ``None``."""
    return frozenset(metric for word, metrics in groups.items() if words is None or word in words for metric in metrics)
