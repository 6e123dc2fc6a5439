"""Closed rows of the GPU dashboard: memory and torch's allocator, clocks and what holds them back."""

from __future__ import annotations

from inferspan import semconv

from ..charts import states
from ..frame import Row
from ..panels import Query, Says, mapping, trend
from .queries import LEGEND, NO_GPU, NO_READING, Q

__all__ = ["rows"]

NO_CUDA = "no program here has initialised CUDA"
PROCESS = ["host_name", "service_name", "instance", "inferspan_device_id"]


def _each(key: str, name: str) -> Query:
    """A reading that a process has of its own use of a card."""
    return Query(f"sum by (inferspan_device_id, instance) ({Q.series(key)})", f"{{{{inferspan_device_id}}}} {{{{instance}}}} {name}")


USAGE = Says(
    "Memory in use on each card, all programs, and what there is (dashed).",
    "`hw.gpu.memory.usage`, `hw.gpu.memory.limit`.",
    "More than our processes hold (next panel): another program is on the card.",
    empty=NO_GPU,
)
MEMORY_PROCESS = Says(
    "Memory of each of our processes on each card, as the driver counts it.",
    "`inferspan.gpu.process.memory.usage`.",
    "More than torch reserved: CUDA itself, libraries, other allocators.",
    empty="the driver does not tell memory of processes (containers, MIG)",
)
TORCH = Says(
    "What torch's caching allocator holds: asked for by the program, allocated for tensors, active, reserved from the card.",
    "`inferspan.torch.memory.*`, summed over processes on a card.",
    "Reserved far above allocated: fragmentation; see the next panel.",
    empty=NO_CUDA,
)
WASTE = Says(
    "Share of the reserved memory that no tensor uses.",
    "1 - allocated / reserved.",
    "High just before an out-of-memory error: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use fewer lengths.",
    empty=NO_CUDA,
)
PEAK = Says(
    "Highest allocated and reserved memory since the process started.",
    "`inferspan.torch.memory.peak.allocated`, `peak.reserved`; never reset by us.",
    "Near the size of the card: the next larger request fails.",
    empty=NO_CUDA,
)
TROUBLE = Says(
    "Allocations that had to empty the cache first, and those that failed.",
    "rates of `inferspan.torch.memory.alloc_retries` and `ooms`.",
    "Each retry stops the model for milliseconds; any failure is a failed request: smaller batches or shorter inputs.",
    empty=NO_CUDA,
)


def _memory() -> Row:
    by = ["hw_id", "inferspan_device_id"]
    kinds = ((semconv.M_TORCH_REQUESTED, "asked for"), (semconv.M_TORCH_ALLOCATED, "allocated"), (semconv.M_TORCH_ACTIVE, "active"))
    parts = [*kinds, (semconv.M_TORCH_RESERVED, "reserved")]
    # A scrape may catch the collector between the two metrics, and then more seems allocated than reserved.
    unused = f"clamp_min(1 - {Q.total(semconv.M_TORCH_ALLOCATED, by=PROCESS)} / ({Q.total(semconv.M_TORCH_RESERVED, by=PROCESS)} > 0), 0)"
    panels = [
        trend(
            "Memory of the cards",
            Query(Q.device(semconv.M_GPU_MEMORY_USAGE), LEGEND),
            Query(Q.device(semconv.M_GPU_MEMORY_LIMIT), f"{LEGEND} size"),
            unit="bytes",
            says=USAGE,
            dashed="/ size$/",
        ),
        trend(
            "Memory of our processes",
            Query(Q.total(semconv.M_GPU_PROCESS_MEMORY, by=["hw_name", "instance"]), "{{hw_name}} {{instance}}"),
            unit="bytes",
            says=MEMORY_PROCESS,
            stacked=True,
        ),
        trend(
            "Memory of torch",
            *(Query(Q.total(key, by=by), f"{{{{inferspan_device_id}}}} {name}") for key, name in parts),
            unit="bytes",
            says=TORCH,
        ),
        trend(
            "Unused part of what torch reserved",
            Query(unused, "{{inferspan_device_id}} {{instance}}"),
            unit="percentunit",
            says=WASTE,
            maximum=1,
        ),
        trend(
            "Peaks of torch",
            _each(semconv.M_TORCH_ALLOCATED_PEAK, "allocated"),
            _each(semconv.M_TORCH_RESERVED_PEAK, "reserved"),
            unit="bytes",
            says=PEAK,
        ),
        trend(
            "Retries and failures of the allocator",
            Query(Q.rate(semconv.M_TORCH_RETRIES, by=["inferspan_device_id"]), "{{inferspan_device_id}} retries"),
            Query(Q.rate(semconv.M_TORCH_OOMS, by=["inferspan_device_id"]), "{{inferspan_device_id}} out of memory"),
            unit="ops",
            maximum=1,
            says=TROUBLE,
        ),
    ]
    return Row("Memory", panels, closed=True)


CLOCKS = Says(
    "Clocks by domain, and the highest possible ones (dashed).",
    "`inferspan.gpu.clock.frequency`, `inferspan.gpu.clock.limit`.",
    "Below the highest under load: see *Held back* for the reason.",
    empty=NO_READING,
)
REASONS = Says(
    "When something held the clocks down, and what; only reasons that held in this time range, without idling and set clocks.",
    "`inferspan.gpu.throttle.active`, 1 while the reason holds.",
    "sw_power_cap: at the power limit, as intended. sw_thermal, hw_thermal: cooling. hw_power_brake, hw_slowdown: power supply.",
    empty=NO_READING,
)
SHARE = Says(
    "Share of time in which each reason held the clocks down.",
    "rate of `inferspan.gpu.throttle.time`: seconds per second.",
    "Thermal reasons at more than 10 % raise the alert InferspanGPUThrottled.",
    empty=f"{NO_READING}: older drivers count no time",
)
LEVEL = Says(
    "P-state: 0 is the fastest, 8 and more are idle.",
    "`inferspan.gpu.performance_state`.",
    "Above 0 under load: power management is on, or the card is in trouble.",
    empty=NO_READING,
)
FANS = Says(
    "Fans, as share of their highest speed and in turns a minute.",
    "`hw.fan.speed_ratio`, `hw.fan.speed`.",
    "At 100 %: see the air around.",
    empty="cards of servers have no fans of their own",
)


def _clocks() -> Row:
    why = 'inferspan_gpu_throttle_reason!~"idle|app_clocks|display_clock"'
    reason = ["inferspan_gpu_throttle_reason"]
    ever = Q.device_max(semconv.M_THROTTLE_ACTIVE, why, by=reason)
    active = f"{Q.device(semconv.M_THROTTLE_ACTIVE, why, by=reason)} and ({ever} > 0)"
    domain = "{{inferspan_gpu_clock_domain}}"
    panels = [
        trend(
            "Clocks",
            Query(Q.device(semconv.M_CLOCK, by=["inferspan_gpu_clock_domain"]), f"{LEGEND} {domain}"),
            Query(Q.device(semconv.M_CLOCK_LIMIT, by=["inferspan_gpu_clock_domain"]), f"{LEGEND} {domain} highest"),
            unit="hertz",
            says=CLOCKS,
            width=12,
            dashed="/ highest$/",
        ),
        states(
            "Held back",
            Query(active, f"{LEGEND} {{{{inferspan_gpu_throttle_reason}}}}"),
            says=REASONS,
            mappings=mapping(_0=("no", "transparent"), _1=("held back", "orange")),
        ),
        trend(
            "Time held back",
            Query(
                Q.device_rate(semconv.M_THROTTLE_TIME, by=["inferspan_gpu_throttle_reason"]),
                f"{LEGEND} {{{{inferspan_gpu_throttle_reason}}}}",
            ),
            unit="percentunit",
            says=SHARE,
            maximum=1,
        ),
        trend("P-state", Query(Q.device(semconv.M_PERFORMANCE_STATE), LEGEND), unit="short", says=LEVEL, maximum=8),
        trend("Fans", Query(Q.device(semconv.M_FAN_RATIO), LEGEND), unit="percentunit", says=FANS, width=4, maximum=1),
        trend("Fan speed", Query(Q.device(semconv.M_FAN_SPEED), LEGEND), unit="rotrpm", says=FANS, width=4),
    ]
    return Row("Clocks, and what holds them back", panels, closed=True)


def rows() -> list[Row]:
    """The rows, in order."""
    return [_memory(), _clocks()]
