"""AMD GPUs through AMD SMI (the package ``amdsmi`` of ROCm): those that this process uses, as ``Sample``s.

Units are those of its documentation: activity in percent, memory in MiB, power in W, energy as a count and its resolution in microjoules.
A reading that is refused, or ``"N/A"``, is absent. Written by the documentation; never run on a card.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from inferspan import semconv as s
from inferspan.records import AttributeValue, Sample
from inferspan.samplers.attempt import attempt, number
from inferspan.samplers.rise import Rises

__all__ = ["AmdSampler"]

_GPU: dict[str, AttributeValue] = {s.HW_TYPE: "gpu"}


class AmdSampler:
    """Readings of this process's AMD GPUs.

    Args:
        all_gpus: report every GPU of the host instead.
        metrics: those to read; default all.
        library: a module like ``amdsmi``, which is imported at the first round if this is ``None``.
        pid: returns our process id.
    """

    def __init__(
        self,
        *,
        all_gpus: bool = False,
        metrics: Collection[str] = frozenset(s.DEVICE_METRICS),
        library: Any = None,
        pid: Callable[[], int] = os.getpid,
    ) -> None:
        self._all_gpus = all_gpus
        self._metrics = metrics
        self._given = library
        self._pid = pid
        self._library: Any = None
        self._opened_by = 0
        self._rises = Rises()
        self._facts: dict[str, dict[str, AttributeValue]] = {}

    def collect(self) -> Sequence[Sample]:
        """Readings of one round; empty without a driver, the package or a GPU of ours."""
        if not self._open():
            return ()
        found: list[Sample] = []
        for handle in self._ask("amdsmi_get_processor_handles") or ():
            uuid = self._ask("amdsmi_get_gpu_device_uuid", handle)
            if isinstance(uuid, str) and (self._all_gpus or self._is_ours(handle)):
                found += self._read(handle, uuid)
        return found

    def close(self) -> None:
        """Shut AMD SMI down if this process initialised it; a later ``collect`` initialises it again."""
        library, self._library = self._library, None
        if library is not None and self._opened_by == self._pid():
            attempt(library.amdsmi_shut_down)

    def _open(self) -> bool:
        if self._library is not None and self._opened_by == self._pid():
            return True
        library = self._given if self._given is not None else attempt(importlib.import_module, "amdsmi")
        if library is None or attempt(lambda: (library.amdsmi_init(), True)) is None:
            return False
        self._library, self._opened_by = library, self._pid()
        return True

    def _ask(self, function: str, *args: Any) -> Any:
        """The answer of a function, which older releases may lack; ``None`` where it is refused."""
        return attempt(lambda: getattr(self._library, function)(*args))

    def _is_ours(self, handle: Any) -> bool:
        listed = self._ask("amdsmi_get_gpu_process_list", handle)
        return any(isinstance(one, Mapping) and one.get("pid") == self._pid() for one in listed or ())

    def _read(self, handle: Any, uuid: str) -> list[Sample]:
        facts = self._describe(handle, uuid)
        rows = ((metric, value, extra) for metric, value, extra in self._rows(handle, uuid) if metric in self._metrics)
        return [Sample(metric, value, {**facts, **extra}) for metric, value, extra in rows if value is not None]

    def _describe(self, handle: Any, uuid: str) -> dict[str, AttributeValue]:
        if uuid not in self._facts:
            asic = self._ask("amdsmi_get_gpu_asic_info", handle) or {}
            name = asic.get("market_name")
            self._facts[uuid] = {s.HW_ID: uuid, s.HW_VENDOR: "AMD", **({s.HW_NAME: name} if isinstance(name, str) else {})}
        return self._facts[uuid]

    def _rows(self, handle: Any, uuid: str) -> Iterator[tuple[str, float | None, Mapping[str, AttributeValue]]]:
        activity = self._ask("amdsmi_get_gpu_activity", handle) or {}
        yield s.M_GPU_UTILIZATION, _scaled(activity, "gfx_activity", 0.01), {s.HW_GPU_TASK: "general"}
        yield s.M_MEMORY_ACTIVITY, _scaled(activity, "umc_activity", 0.01), {}
        memory = self._ask("amdsmi_get_gpu_vram_usage", handle) or {}
        used, total = _scaled(memory, "vram_used", 2**20), _scaled(memory, "vram_total", 2**20)
        yield s.M_GPU_MEMORY_USAGE, used, {}
        yield s.M_GPU_MEMORY_LIMIT, total, {}
        yield s.M_GPU_MEMORY_UTILIZATION, used / total if used is not None and total else None, {}
        power = self._ask("amdsmi_get_power_info", handle) or {}
        names = ("socket_power", "current_socket_power", "average_socket_power")
        yield s.M_POWER, next((value for name in names if (value := _scaled(power, name, 1.0))), None), _GPU
        yield s.M_TEMPERATURE, self._temperature(handle), _GPU
        yield s.M_ENERGY, self._energy(handle, uuid), _GPU

    def _temperature(self, handle: Any) -> float | None:
        library = self._library
        # Some cards have a hotspot sensor, some an edge sensor only.
        for sensor in ("HOTSPOT", "EDGE"):
            kind = attempt(lambda sensor=sensor: getattr(library.AmdSmiTemperatureType, sensor))
            current = attempt(lambda: library.AmdSmiTemperatureMetric.CURRENT)
            value = number(self._ask, "amdsmi_get_temp_metric", handle, kind, current)
            if value is not None:
                # Documented in thousandths of a degree; some releases return degrees.
                return value / 1000 if value >= 1000 else value
        return None

    def _energy(self, handle: Any, uuid: str) -> float | None:
        counter = self._ask("amdsmi_get_energy_count", handle) or {}
        count = _scaled(counter, "energy_accumulator", 1.0)
        if count is None:
            count = _scaled(counter, "power", 1.0)  # its name before ROCm 6.4
        resolution = _scaled(counter, "counter_resolution", 1e-6)
        return None if count is None or resolution is None else self._rises(uuid, count * resolution)


def _scaled(found: Any, name: str, factor: float) -> float | None:
    """A number of a mapping in our unit; ``None`` for ``"N/A"`` and whatever else is no number."""
    value = number(lambda: found.get(name))
    return None if value is None else value * factor
