"""The dashboard "GPU and host": is the hardware busy, full, hot, held back or broken, and what does it take from the mains.

A card is reported by every process that uses it, so each reading is reduced to one for each card first. No panel of the first page rests
on utilisation alone: a slice of a card (MIG) has none, memory and power say what can be said.
"""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.models.dashboard import FieldColorModeId

from inferspan import semconv

from ..charts import grid
from ..frame import Row, frame
from ..links import GPU, OVERVIEW, to_dashboard
from ..panels import Query, Says, Sized, stats, trend
from ..queries import or_zero
from . import counters, detail, health, host
from .queries import BUSY, CARD, LEGEND, MEMORY_SHARE, NAMES, NO_GPU, NO_READING, POWER_SHARE, TOTAL_KWH, UTILISATION, Q

__all__ = ["dashboard"]

ID = "hw_id"
LIMIT = semconv.M_GPU_MEMORY_LIMIT
POWER_INSTEAD = f"({POWER_SHARE}) unless on (hw_id) ({UTILISATION})"
"""Where a card tells no utilisation."""
REQUESTS = to_dashboard(OVERVIEW, host="host_name")
NO_CARD, NOT_READ = ("no GPU reports", "text"), ("no such reading", "text")


GPUS = Says(
    "Cards, or slices of cards (MIG), that programs of ours use.",
    "number of `hw.id` with `hw.gpu.memory.limit`.",
    "Fewer than there are: a program does not see a card (CUDA_VISIBLE_DEVICES), or uses none.",
    empty=NO_GPU,
)
SAYS_BUSY = Says(
    "Cards that work now.",
    "utilisation over 5 %; where there is none (MIG), power over 30 % of its limit.",
    "Fewer than *GPUs* under load: requests do not reach all processes.",
    empty=NO_GPU,
)
HELD_BUT_IDLE = Says(
    "Cards of which our programs hold more than 1 GiB and which do no work now.",
    "memory of processes > 1 GiB, and not counted as *Busy*.",
    "For long: somebody else could use them. A slice without utilisation and power counts as idle: look at its requests.",
    empty=NO_GPU,
)
FULLEST_MEMORY = Says(
    "Share of the memory in use on the fullest card, all programs together.",
    "`hw.gpu.memory.usage / hw.gpu.memory.limit`.",
    "Orange from 90 %, red from 97 %: the next long prompt may fail. *Memory of torch* says what holds it.",
    empty=NO_GPU,
)
HOTTEST = Says(
    "Temperature of the hottest card.",
    "max of `hw.temperature` of the sensor `gpu`.",
    "Orange from 80, red from 90 degrees. *Temperature* has the limits that the card itself states.",
    empty=NO_READING,
)
POWER_OF_ALL_CARDS = Says(
    "What all cards draw together now.",
    "sum of `hw.power`, each card once.",
    "At the sum of the limits the clocks are held down, see *Held back*.",
    empty=NO_READING,
)
ENERGY = Says(
    "What all cards took in the whole time range.",
    "increase of `hw.energy` over the range / 3.6e6, each card once.",
    "Tokens for each joule are in *Efficiency*.",
    empty=NO_READING,
)


def _in_use() -> list[Sized]:
    known = f"count ({Q.device(LIMIT, named=False)})"
    # Held by programs that we know, and no work to be seen: neither utilisation nor, where there is none, power.
    driver, torch = Q.total(semconv.M_GPU_PROCESS_MEMORY, by=[ID]), Q.total(semconv.M_TORCH_RESERVED, 'hw_id!=""', by=[ID])
    idle = f"count (({driver} or {torch}) > 1073741824 unless on (hw_id) ({BUSY}))"
    return [
        stats(
            "GPUs",
            Query(known, "GPUs"),
            unit="short",
            says=GPUS,
            width=3,
            missing=NO_CARD,
        ),
        stats(
            "Busy",
            Query(or_zero(f"count ({BUSY})", known), "busy"),
            unit="short",
            says=SAYS_BUSY,
            width=3,
            missing=NO_CARD,
        ),
        stats(
            "Held, but idle",
            Query(or_zero(idle, known), "idle"),
            unit="short",
            says=HELD_BUT_IDLE,
            width=3,
            base="green",
            limits=((1, "orange"),),
            missing=NO_CARD,
        ),
    ]


def _strained() -> list[Sized]:
    return [
        stats(
            "Fullest memory",
            Query(f"max ({MEMORY_SHARE})", "used"),
            unit="percentunit",
            says=FULLEST_MEMORY,
            width=3,
            base="green",
            limits=((0.9, "orange"), (0.97, "red")),
            decimals=1,
            missing=NO_CARD,
        ),
        stats(
            "Hottest",
            Query(f"max ({Q.device(semconv.M_TEMPERATURE, CARD)})", "temperature"),
            unit="celsius",
            says=HOTTEST,
            width=4,
            base="green",
            limits=((80, "orange"), (90, "red")),
            missing=NOT_READ,
        ),
        stats(
            "Power of all cards",
            Query(f"sum ({Q.device(semconv.M_POWER, named=False)})", "power"),
            unit="watt",
            says=POWER_OF_ALL_CARDS,
            width=4,
            missing=NOT_READ,
        ),
        stats(
            "Energy",
            Query(TOTAL_KWH, "energy", instant=True),
            unit="kwatth",
            says=ENERGY,
            width=4,
            decimals=1,
            sparkline=False,
            missing=NOT_READ,
        ),
    ]


CARDS_UTILISATION = Says(
    "Share of time in which the card did anything at all. Where it reports none (MIG): power as share of its limit.",
    "`hw.gpu.utilization` of the task general, or `hw.power / inferspan.gpu.power.limit`.",
    "100 % is not full use: compare with power. Low under load: the program waits for the host, see *CPU of the process*.",
    empty=NO_READING,
)
MEMORY = Says(
    "Share of the memory in use, all programs together.",
    "`hw.gpu.memory.usage / hw.gpu.memory.limit`.",
    "Steps upwards that never come down: a cache that grows. *Memory of torch* says whether tensors or the allocator hold it.",
    empty=NO_GPU,
)
POWER = Says(
    "What each card draws, and its limit (dashed).",
    "`hw.power`, `inferspan.gpu.power.limit`.",
    "At the limit: clocks are held down, which is how a busy card runs. Far below under load: the card waits.",
    empty=NO_READING,
)
TEMPERATURE = Says(
    "Temperature of each card and of its memory.",
    "`hw.temperature`; the limits that the card states are in *Temperature limits*.",
    "Near the limit: fans, air flow, neighbours. From there the card slows down.",
    empty=NO_READING,
)
CELLS = CARDS_UTILISATION._replace(what=f"{CARDS_UTILISATION.what} One line for each card: stragglers and idle cards are seen at once.")


def _cards() -> list[Sized]:
    return [
        trend(
            "Utilisation",
            Query(UTILISATION, LEGEND),
            Query(POWER_INSTEAD, f"{LEGEND} (power)"),
            unit="percentunit",
            says=CARDS_UTILISATION,
            width=12,
            height=7,
            maximum=1,
            links=[REQUESTS],
        ),
        trend(
            "Memory used",
            Query(MEMORY_SHARE, LEGEND),
            unit="percentunit",
            says=MEMORY,
            width=12,
            height=7,
            maximum=1,
            limits=((0.9, "orange"), (0.97, "red")),
        ),
    ]


def _power_and_heat() -> list[Sized]:
    return [
        trend(
            "Power",
            Query(Q.device(semconv.M_POWER), LEGEND),
            Query(Q.device(semconv.M_POWER_LIMIT), f"{LEGEND} limit"),
            unit="watt",
            says=POWER,
            width=12,
            height=7,
            dashed="/ limit$/",
        ),
        trend(
            "Temperature",
            Query(Q.device(semconv.M_TEMPERATURE, by=["hw_sensor_location"]), f"{LEGEND} {{{{hw_sensor_location}}}}"),
            unit="celsius",
            says=TEMPERATURE,
            width=12,
            height=7,
            minimum=None,
            limits=((80, "orange"), (90, "red")),
        ),
        grid(
            "Utilisation of all cards (blue: idle, purple: busy)",
            Query(f"{UTILISATION} or {POWER_INSTEAD}", LEGEND),
            unit="percentunit",
            says=CELLS,
            height=6,
            minimum=0,
            maximum=1,
            color=FieldColorModeId.CONTINUOUS_BL_PU,  # to be busy is no alarm
            links=[REQUESTS],
        ),
    ]


def dashboard() -> dict[str, Any]:
    """The dashboard as JSON."""
    rows = [
        Row("At a glance", [*_in_use(), *_strained()]),
        Row("Cards", [*_cards(), *_power_and_heat()]),
        *detail.rows(),
        counters.row(),
        *health.rows(),
        *host.rows(Q),
    ]
    return frame(GPU, "GPUs, their memory, power and health, and the hosts and processes around them.", rows, NAMES)
