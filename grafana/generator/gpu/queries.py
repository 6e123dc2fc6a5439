"""What the rows of the GPU dashboard have in common: its variables and the readings that several panels show."""

from __future__ import annotations

from inferspan import semconv

from ..queries import Queries
from ..variables import COMMON

__all__ = [
    "BUSY", "CARD", "ENERGY_KWH", "LEGEND", "MEMORY_SHARE", "NAMES", "NO_GPU", "NO_READING", "POWER_SHARE", "TOKENS_PER_JOULE", "TOTAL_KWH",
    "UTILISATION", "Q",
]  # fmt: skip

NAMES = (*COMMON, "gpu")
Q = Queries(NAMES)
NO_GPU = "no NVIDIA GPU reported by these programs"
NO_READING = "no NVIDIA GPU reported by these programs, or it has no such reading (MIG, driver)"
LEGEND = "{{host_name}} {{hw_name}}"
CARD = 'hw_sensor_location="gpu"'


def _utilisation(named: bool) -> str:
    return Q.device(semconv.M_GPU_UTILIZATION, 'hw_gpu_task="general"', named=named)


def _power_share(named: bool) -> str:
    return f"{Q.device(semconv.M_POWER, named=named)} / ({Q.device(semconv.M_POWER_LIMIT, named=named)} > 0)"


UTILISATION = _utilisation(True)
POWER_SHARE = _power_share(True)
MEMORY_SHARE = f"{Q.device(semconv.M_GPU_MEMORY_USAGE)} / ({Q.device(semconv.M_GPU_MEMORY_LIMIT)} > 0)"
ENERGY_KWH = f"{Q.device_increase(semconv.M_ENERGY)} / 3.6e6"
TOTAL_KWH = f"sum ({Q.device_increase(semconv.M_ENERGY, named=False)}) / 3.6e6"
TOKENS_PER_JOULE = f"{Q.tokens('output')} / (sum ({Q.device_rate(semconv.M_ENERGY, named=False)}) > 0)"
# Idle cards draw 10 to 20 % of their limit.
BUSY = f"({_utilisation(False)} > 0.05) or (({_power_share(False)}) > 0.3 unless on (hw_id) {_utilisation(False)})"
"""Cards that work, by ``hw_id`` alone."""
