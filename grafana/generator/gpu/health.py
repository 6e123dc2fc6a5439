"""Closed rows of the GPU dashboard: health, traffic, what energy is worth, list of cards."""

from __future__ import annotations

from inferspan import semconv

from ..charts import bars, states, table
from ..frame import Row
from ..links import OVERVIEW, to_dashboard
from ..panels import Query, Says, mapping, trend
from ..queries import DEVICE
from ..units import ERRORS as OF_ERRORS
from ..units import REPLAYS, TOKENS_J
from ..units import ROWS as OF_ROWS
from .queries import ENERGY_KWH, LEGEND, NO_GPU, NO_READING, TOKENS_PER_JOULE, Q

__all__ = ["rows"]


STATUS = Says(
    "State of each card: ok, slowed down by heat or power, about to fail, or lost.",
    "`hw.status`: the state with the value 1.",
    "`failed`: the driver has lost the card; drain the host. `about to fail`: rows of memory could not be remapped.",
    empty=NO_READING,
)
ERRORS = Says(
    "ECC errors, corrected and not, and where in the card they were.",
    "increase of `hw.errors` and `inferspan.gpu.ecc.errors` over the time range.",
    "Corrected ones happen. Any uncorrected one has stopped a program: watch the card, replace it if more come.",
    empty="no errors counted, or the card has no ECC",
)
ROWS = Says(
    "Rows of memory that were replaced after errors.",
    "`inferspan.gpu.remapped_rows`.",
    "Uncorrected ones, or many: the card is near its end.",
    empty=NO_READING,
)
LIMITS = Says(
    "Temperatures at which the card slows down or stops.", "`hw.temperature.limit`.", "Compare with *Temperature*.", empty=NO_READING
)
PCIE_REPLAYS = ROWS._replace(
    what="Packets on PCIe that had to be sent again.",
    how="increase of `inferspan.gpu.pcie.replays` over the time range.",
    do="Hundreds an hour: a bad slot or riser.",
)


def _health() -> Row:
    word = {"degraded": 1, "predicted_failure": 2, "failed": 3}
    coded = " + ".join(f"{value} * {_state(name)}" for name, value in word.items())
    counted = Q.device_increase(semconv.M_HW_ERRORS, by=["error_type"])
    located = Q.device_increase(semconv.M_ECC_ERRORS, by=["error_type", "inferspan_gpu_memory_location"])
    replays = Q.device_increase(semconv.M_PCIE_REPLAYS)
    texts = mapping(_0=("ok", "green"), _1=("slowed down", "orange"), _2=("about to fail", "red"), _3=("failed", "dark-red"))
    panels = [
        states("State", Query(coded, LEGEND), says=STATUS, mappings=texts, width=12),
        bars(
            "ECC errors",
            Query(counted, f"{LEGEND} {{{{error_type}}}}", instant=True),
            Query(f"{located} > 0", f"{LEGEND} {{{{inferspan_gpu_memory_location}}}} {{{{error_type}}}}", instant=True),
            unit=OF_ERRORS,
            decimals=0,
            says=ERRORS,
            width=12,
            limits=((1, "orange"),),
            base="green",
        ),
        trend(
            "Remapped rows",
            Query(Q.device(semconv.M_REMAPPED_ROWS, by=["error_type"]), f"{LEGEND} {{{{error_type}}}}"),
            unit=OF_ROWS,
            says=ROWS,
        ),
        bars(
            "PCIe replays",
            Query(replays, LEGEND, instant=True),
            unit=REPLAYS,
            decimals=0,
            says=PCIE_REPLAYS,
            base="green",
        ),
        trend(
            "Temperature limits",
            Query(Q.device(semconv.M_TEMPERATURE_LIMIT, by=["hw_limit_type"]), f"{LEGEND} {{{{hw_limit_type}}}}"),
            unit="celsius",
            says=LIMITS,
            minimum=None,
        ),
    ]
    return Row("Health", panels, closed=True)


def _state(name: str) -> str:
    return Q.device(semconv.M_HW_STATUS, f'hw_state="{name}"')


def _traffic() -> Row:
    traffic = Says(
        "Bytes each second over PCIe, to (receive) and from (transmit) the card.",
        "rate of `hw.gpu.io`.",
        "High during decode: weights or cache are moved to and from the host, which is slow.",
        empty=NO_READING,
    )
    nvlink = traffic._replace(
        what="Bytes each second between cards, over all NVLinks.",
        how="rate of `inferspan.gpu.nvlink.io`.",
        do="Uneven among ranks: see *Fleet and ranks*.",
        empty="no NVLink, or the driver does not count it",
    )
    link = Says(
        "Generation and width of the PCIe link.",
        "`inferspan.gpu.pcie.link.generation`, `link.width`.",
        "Idle cards go to generation 1 to save power. A smaller width is a bad slot.",
        empty=NO_READING,
    )
    direction = ["network_io_direction"]
    legend = f"{LEGEND} {{{{network_io_direction}}}}"
    panels = [
        trend("PCIe", Query(Q.device_rate(semconv.M_GPU_IO, by=direction), legend), unit="Bps", says=traffic),
        trend("NVLink", Query(Q.device_rate(semconv.M_NVLINK_IO, by=direction), legend), unit="Bps", says=nvlink),
        trend(
            "PCIe link",
            Query(Q.device(semconv.M_PCIE_GENERATION), f"{LEGEND} generation"),
            Query(Q.device(semconv.M_PCIE_WIDTH), f"{LEGEND} width"),
            unit="short",
            says=link,
        ),
    ]
    return Row("Traffic", panels, closed=True)


def _efficiency() -> Row:
    energy = Says(
        "Energy by card over the whole time range.",
        "increase of `hw.energy` / 3.6e6.",
        "Cards that idle take a quarter of a busy one's: switch off or fill.",
        empty=NO_READING,
    )
    joule = Says(
        "Output tokens for each joule.",
        "tokens/s of all models / sum of the rates of `hw.energy`, each card once; other programs on the cards count.",
        "Falls when batches are small.",
        empty="no tokens, or no energy counter",
    )
    bus = Says(
        "Share of time in which the memory of the card was read or written.",
        "`inferspan.gpu.memory.activity`.",
        "High in decode, which reads all weights for each token: that is its limit.",
        empty=NO_READING,
    )
    units = Says(
        "Utilisation of the units for video and images.",
        "`hw.gpu.utilization` of tasks other than general.",
        "Above 0: another program uses the card.",
        empty=NO_READING,
    )
    other = Q.device(semconv.M_GPU_UTILIZATION, 'hw_gpu_task!="general"', by=["hw_gpu_task"])
    panels = [
        bars("Energy by card", Query(ENERGY_KWH, LEGEND, instant=True), unit="kwatth", says=energy, width=6),
        trend(
            "Output tokens per joule",
            Query(TOKENS_PER_JOULE, "tokens/J"),
            unit=TOKENS_J,
            says=joule,
            width=6,
            links=[to_dashboard(OVERVIEW)],
        ),
        trend("Memory bus", Query(Q.device(semconv.M_MEMORY_ACTIVITY), LEGEND), unit="percentunit", says=bus, width=6, maximum=1),
        trend("Other units", Query(other, f"{LEGEND} {{{{hw_gpu_task}}}}"), unit="percentunit", says=units, width=6, maximum=1),
    ]
    return Row("Efficiency", panels, closed=True)


def _list() -> Row:
    says = Says(
        "Every card: model, driver, memory.",
        "labels of `hw.gpu.memory.limit`; share by the driver.",
        "Different drivers or models under one job explain different speeds.",
        empty=NO_GPU,
    )
    labels = (*DEVICE, "hw_model", "hw_driver_version", "hw_firmware_version", "hw_parent")
    by = ", ".join(labels)
    size, share = (f"max by ({by}) ({Q.series(key)})" for key in (semconv.M_GPU_MEMORY_LIMIT, semconv.M_GPU_MEMORY_UTILIZATION))
    columns: dict[str, dict[str, object]] = {
        "host_name": {"displayName": "Host", "custom__width": 180},
        "hw_name": {"displayName": "Name", "custom__width": 90},
        "hw_model": {"displayName": "Model"},
        "hw_id": {"displayName": "Id", "custom__width": 350},
        "hw_parent": {"displayName": "Slice of"},
        "hw_driver_version": {"displayName": "Driver", "custom__width": 120},
        "hw_firmware_version": {"displayName": "Firmware", "custom__width": 150},
        "Value #A": {"displayName": "Memory", "unit": "bytes", "custom__width": 110},
        "Value #B": {"displayName": "Used", "unit": "percentunit", "custom__width": 100},
    }
    return Row(
        "List of cards",
        [table("Cards", Query(size, ""), Query(share, ""), says=says, columns=columns, sort_by="Used", height=8)],
        closed=True,
    )


def rows() -> list[Row]:
    """The rows, in order."""
    return [_health(), _traffic(), _efficiency(), _list()]
