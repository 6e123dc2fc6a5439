"""The table of NVML readings: one row per metric and attribute set, with its reader and its scale to base units.

A row's reader asks a ``Query``, which calls each NVML function once per round however many rows share it, and may raise
any NVMLError, or AttributeError when the installed binding is older than the function. Values that NVML uses to say "not
available" come out as ``None``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from inferspan import semconv as s

from .groups import CHEAP_GPU

__all__ = ["FAILED", "ROWS", "Query", "Row", "Unavailable", "clean", "is_cheap", "is_unsupported", "state", "status"]

_UNSUPPORTED = frozenset({2, 3, 4, 13, 25, 26})
"""Invalid argument, not supported, no permission, function not found, version mismatch, deprecated: these stay as they are."""
_NOT_SUPPORTED = 3
_ABSENT = frozenset({2**64 - 1, 2**63 - 1, 2**32 - 1})
_VALUE_NAMES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_ALL_LINKS = 2**32 - 1

ANYWHERE = "anywhere"
"""Readable on a card, on a card split by MIG, and on a MIG instance."""
CARD = "card"
"""A property of the physical card; a MIG instance has none of its own."""
UNSPLIT = "unsplit"
"""Only on a card that is not split: NVML reports no utilisation under MIG, and some drivers return 0 instead of an error."""

FAILED = "failed"
_STATES = ("ok", "degraded", "failed", "predicted_failure")


class Unavailable(Exception):
    """NVML answered a batched field with an error code instead of a value."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


def is_unsupported(error: Exception) -> bool:
    """Whether asking again is pointless: the device, the driver, the binding or our rights lack the function."""
    return isinstance(error, AttributeError | TypeError) or getattr(error, "value", None) in _UNSUPPORTED


def clean(value: Any) -> float | None:
    """A number NVML means, or ``None`` for its ways to say "not available"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value) or value < 0 or value in _ABSENT:
        return None
    return value


class Query:
    """One device in one round."""

    def __init__(self, library: Any, handle: Any, *, pid: int, fields: Sequence[int]) -> None:
        self._library = library
        self._handle = handle
        self._fields = fields
        self._answers: dict[Any, tuple[Any, Exception | None]] = {}
        self.pid = pid

    def _once(self, key: Any, ask: Callable[[], Any]) -> Any:
        if key not in self._answers:
            try:
                self._answers[key] = (ask(), None)
            except Exception as error:
                self._answers[key] = (None, error)
        answer, failure = self._answers[key]
        if failure is not None:
            raise failure.with_traceback(None)
        return answer

    def call(self, function: str, *args: Any) -> Any:
        """Result of an NVML function of this device; raises the exception of NVML at each call."""
        return self._once((function, args), lambda: getattr(self._library, function)(self._handle, *args))

    def newest(self, *functions: str) -> Any:
        """Result of the first of several names of one function that driver and binding know."""
        for function in functions[:-1]:
            try:
                return self.call(function)
            except Exception as error:
                if not is_unsupported(error):
                    raise
        return self.call(functions[-1])

    def memory(self) -> Any:
        """Memory of the device; version 2 leaves out what the driver reserves, which version 1 counts as used."""

        def ask() -> Any:
            try:
                return self._library.nvmlDeviceGetMemoryInfo(self._handle, version=self._library.nvmlMemory_v2)
            except Exception as error:
                if not is_unsupported(error):
                    raise
            return self._library.nvmlDeviceGetMemoryInfo(self._handle)

        return self._once("memory", ask)

    def temperature(self) -> Any:
        """Temperature of the chip, °C."""
        try:
            return self.call("nvmlDeviceGetTemperature", 0)
        except Exception as error:
            if not is_unsupported(error):
                raise
        return self.call("nvmlDeviceGetTemperatureV", 0)

    def field(self, number: int, *, wide: bool = False) -> Any:
        """Value of a batched field; all fields of a round are asked for in one call.

        ``wide``: a value of 32 bits counts as not supported.
        """

        def ask() -> dict[int, Any]:
            wanted = [(item, _ALL_LINKS) if item in (138, 139) else item for item in self._fields]
            return {int(item.fieldId): item for item in self._library.nvmlDeviceGetFieldValues(self._handle, wanted)}

        item = self._once("fields", ask).get(number)
        if item is None:
            return None
        if item.nvmlReturn != 0:
            raise Unavailable(int(item.nvmlReturn))
        if wide and _VALUE_NAMES[item.valueType] == "uiVal":
            raise Unavailable(_NOT_SUPPORTED)
        return getattr(item.value, _VALUE_NAMES[item.valueType])

    def processes(self) -> Sequence[Any]:
        """Processes that compute on the device, as far as NVML shows them to us."""
        found: Sequence[Any] = self.call("nvmlDeviceGetComputeRunningProcesses")
        return found

    def reasons(self) -> int | None:
        """Bit mask of the reasons that hold the clocks down."""
        mask = clean(self.newest("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"))
        return None if mask is None else int(mask)


class Row(NamedTuple):
    """One reading: ``times`` and ``per`` bring it to the metric's unit, ``counter`` readings only rise from their first value."""

    metric: str
    read: Callable[[Query], Any]
    times: int = 1
    per: int = 1
    attributes: Mapping[str, str] = {}
    counter: bool = False
    where: str = CARD
    field: int | None = None

    def value(self, query: Query) -> float | None:
        """The reading in the metric's unit, ``None`` if NVML has none; raises what NVML raises."""
        raw = clean(self.read(query))
        return None if raw is None else raw * self.times / self.per


def _call(function: str, *args: Any) -> Callable[[Query], Any]:
    return lambda query: query.call(function, *args)


def _item(function: str, place: int) -> Callable[[Query], Any]:
    return lambda query: query.call(function)[place]


def _part(function: str, name: str) -> Callable[[Query], Any]:
    return lambda query: getattr(query.call(function), name)


def _memory_ratio(query: Query) -> float | None:
    memory = query.memory()
    used, total = clean(memory.used), clean(memory.total)
    return None if used is None or not total else used / total


def _process_memory(query: Query) -> float | None:
    mine = [clean(process.usedGpuMemory) for process in query.processes() if process.pid == query.pid]
    known = [size for size in mine if size is not None]
    return sum(known) if known else None


def _performance_state(query: Query) -> Any:
    number = query.call("nvmlDeviceGetPerformanceState")
    return number if number != 32 else None  # 32 is NVML's "unknown"


def _reason(bit: int) -> Callable[[Query], Any]:
    def read(query: Query) -> int | None:
        mask = query.reasons()
        return None if mask is None else int(bool(mask & bit))

    return read


def _fields(metric: str, key: str, numbers: Mapping[str, int], *, times: int = 1, per: int = 1, wide: bool = False) -> list[Row]:
    def reader(number: int) -> Callable[[Query], Any]:
        return lambda query: query.field(number, wide=wide)

    return [Row(metric, reader(number), times, per, {key: word}, True, CARD, number) for word, number in numbers.items()]


_TASKS = {"encoder": "Encoder", "decoder": "Decoder", "jpeg": "Jpg", "ofa": "Ofa"}
_CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}
_LIMITS = {"high.critical": 0, "high.degraded": 1, "max": 3}
_ECC_TYPES = {"corrected": 0, "uncorrected": 1}
_LOCATIONS = {"l1": 0, "l2": 1, "dram": 2, "register_file": 3, "texture": 4, "cbu": 6, "sram": 7}
_REASONS = {
    "idle": 0x1,
    "app_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display_clock": 0x100,
}
_THROTTLE_FIELDS = {"sw_power_cap": 74, "thermal": 75, "sync_boost": 76, "sw_thermal": 269, "hw_thermal": 270, "hw_power_brake": 271}
_GPU = {s.HW_TYPE: "gpu"}

ROWS: tuple[Row, ...] = (
    # Energy first: requests are charged by it, so its reading should be as close as possible to the start of the round.
    Row(s.M_ENERGY, _call("nvmlDeviceGetTotalEnergyConsumption"), per=1000, attributes=_GPU, counter=True),
    Row(s.M_GPU_UTILIZATION, _part("nvmlDeviceGetUtilizationRates", "gpu"), per=100, attributes={s.HW_GPU_TASK: "general"}, where=UNSPLIT),
    *(
        Row(s.M_GPU_UTILIZATION, _item(f"nvmlDeviceGet{name}Utilization", 0), per=100, attributes={s.HW_GPU_TASK: task}, where=UNSPLIT)
        for task, name in _TASKS.items()
    ),
    Row(s.M_MEMORY_ACTIVITY, _part("nvmlDeviceGetUtilizationRates", "memory"), per=100, where=UNSPLIT),
    Row(s.M_GPU_MEMORY_USAGE, lambda query: query.memory().used, where=ANYWHERE),
    Row(s.M_GPU_MEMORY_LIMIT, lambda query: query.memory().total, where=ANYWHERE),
    Row(s.M_GPU_MEMORY_UTILIZATION, _memory_ratio, where=ANYWHERE),
    Row(s.M_GPU_PROCESS_MEMORY, _process_memory, where=ANYWHERE),
    # The PCIe throughput function is a sample that blocks for 20 ms; these are totals.
    # Driver 580 gives 32 bits on an H200, in which a busy link wraps 15 times a second: so readings cannot count the wraps.
    *_fields(s.M_GPU_IO, s.PCIE_DIRECTION, {"transmit": 197, "receive": 198}, wide=True),
    *_fields(s.M_NVLINK_IO, s.NETWORK_IO_DIRECTION, {"transmit": 138, "receive": 139}, times=1024),
    *_fields(s.M_THROTTLE_TIME, s.THROTTLE_REASON, _THROTTLE_FIELDS, per=10**9),
    Row(s.M_POWER, _call("nvmlDeviceGetPowerUsage"), per=1000, attributes=_GPU),
    Row(s.M_POWER_LIMIT, _call("nvmlDeviceGetEnforcedPowerLimit"), per=1000),
    Row(s.M_TEMPERATURE, lambda query: query.temperature(), attributes={s.HW_SENSOR_LOCATION: "gpu"}),
    Row(s.M_TEMPERATURE, lambda query: query.field(82), attributes={s.HW_SENSOR_LOCATION: "memory"}, field=82),
    *(
        Row(s.M_TEMPERATURE_LIMIT, _call("nvmlDeviceGetTemperatureThreshold", number), attributes={s.HW_LIMIT_TYPE: limit})
        for limit, number in _LIMITS.items()
    ),
    Row(s.M_FAN_RATIO, _call("nvmlDeviceGetFanSpeed_v2", 0), per=100),
    Row(s.M_FAN_SPEED, _call("nvmlDeviceGetFanSpeedRPM")),
    *(
        Row(metric, _call(function, number), 10**6, attributes={s.CLOCK_DOMAIN: domain})
        for metric, function in ((s.M_CLOCK, "nvmlDeviceGetClockInfo"), (s.M_CLOCK_LIMIT, "nvmlDeviceGetMaxClockInfo"))
        for domain, number in _CLOCKS.items()
    ),
    *(Row(s.M_THROTTLE_ACTIVE, _reason(bit), attributes={s.THROTTLE_REASON: reason}) for reason, bit in _REASONS.items()),
    *(
        Row(s.M_HW_ERRORS, _call("nvmlDeviceGetTotalEccErrors", number, 0), attributes={**_GPU, s.ERROR_TYPE: kind}, counter=True)
        for kind, number in _ECC_TYPES.items()
    ),
    *(
        Row(
            s.M_ECC_ERRORS,
            _call("nvmlDeviceGetMemoryErrorCounter", number, 0, place),
            attributes={s.MEMORY_LOCATION: location, s.ERROR_TYPE: kind},
            counter=True,
        )
        for location, place in _LOCATIONS.items()
        for kind, number in _ECC_TYPES.items()
    ),
    *(
        Row(s.M_REMAPPED_ROWS, _item("nvmlDeviceGetRemappedRows", number), attributes={s.ERROR_TYPE: kind})
        for kind, number in _ECC_TYPES.items()
    ),
    Row(s.M_PCIE_REPLAYS, _call("nvmlDeviceGetPcieReplayCounter"), counter=True),
    Row(s.M_PCIE_GENERATION, _call("nvmlDeviceGetCurrPcieLinkGeneration")),
    Row(s.M_PCIE_WIDTH, _call("nvmlDeviceGetCurrPcieLinkWidth")),
    Row(s.M_PERFORMANCE_STATE, _performance_state),
)
"""Every reading of a device, except its status."""


def is_cheap(row: Row) -> bool:
    """Whether a reading is taken at each round of a short interval: no batched field, and of the engines the general one alone."""
    return row.metric in CHEAP_GPU and row.field is None and row.attributes.get(s.HW_GPU_TASK, "general") == "general"


def state(query: Query) -> str:
    """State of a card that answers: ``ok``, ``degraded`` or ``predicted_failure``; functions that fail are ignored."""

    def asked(ask: Callable[[], Any], default: Any) -> Any:
        try:
            return ask()
        except Exception:
            return default

    if asked(lambda: any(map(clean, query.call("nvmlDeviceGetRemappedRows")[2:4])), False):
        return "predicted_failure"
    held_by_hardware = _REASONS["hw_thermal"] | _REASONS["hw_power_brake"]
    return "degraded" if (asked(query.reasons, 0) or 0) & held_by_hardware else "ok"


def status(current: str) -> list[tuple[float, Mapping[str, str]]]:
    """Values of the status metric: one point per state, 1 for the current one."""
    return [(int(word == current), {**_GPU, s.HW_STATE: word}) for word in _STATES]
