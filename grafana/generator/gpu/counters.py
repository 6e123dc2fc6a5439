"""The row of counters of the chip: how busy its units were, what went over its links, and errors of its driver."""

from __future__ import annotations

from inferspan import semconv

from ..frame import Row
from ..panels import Query, Says, trend
from ..units import ERRORS
from .queries import LEGEND, Q

__all__ = ["row"]

ABSENT = "no counters: a card before Hopper, a slice (MIG), or no right to read them; see inferspan doctor"


def row() -> Row:
    """Panels of the readings that only some cards have."""
    sms = Says(
        "Share of the multiprocessors (SMs) that worked, and how full of warps they were.",
        "`inferspan.gpu.sm.active`, `sm.occupancy`: means between two readings.",
        "Utilisation of 100 % with few active SMs: kernels are small; batch more requests.",
        empty=ABSENT,
    )
    pipes = Says(
        "Share of time in which a pipe of the SMs worked.",
        "`inferspan.gpu.pipe.active`.",
        "Low `tensor` during prefill: shapes or dtypes that tensor cores do not take.",
        empty=ABSENT,
    )
    dram = Says(
        "Memory bandwidth used, of the highest that the card has.",
        "`inferspan.gpu.dram.active`.",
        "Near 100 % in decode: memory is the limit, larger batches or smaller weights help.",
        empty=ABSENT,
    )
    links = Says(
        "Bytes each second over PCIe and NVLink, as the card counts them.",
        "`inferspan.gpu.pcie.bandwidth`, `inferspan.gpu.nvlink.bandwidth`.",
        "There also where the driver's totals of PCIe are too small to be used; see *Traffic*.",
        empty=ABSENT,
    )
    xid = Says(
        "Errors of the driver by their number (XID), since the program began to watch.",
        "`inferspan.gpu.xid.errors`.",
        "48, 63, 64, 94, 95: memory; 79: the card has left the bus; 13, 31: a fault of a program. NVIDIA's XID catalogue has all.",
        empty="no error since the programs began to watch, or the driver does not deliver them",
    )
    direction = ["network_io_direction"]
    legend = f"{LEGEND} {{{{network_io_direction}}}}"
    panels = [
        trend(
            "Multiprocessors",
            Query(Q.device(semconv.M_SM_ACTIVE), f"{LEGEND} active"),
            Query(Q.device(semconv.M_SM_OCCUPANCY), f"{LEGEND} occupancy"),
            unit="percentunit", says=sms, maximum=1,
        ),
        trend(
            "Pipes",
            Query(Q.device(semconv.M_PIPE_ACTIVE, by=["inferspan_gpu_pipe_name"]), f"{LEGEND} {{{{inferspan_gpu_pipe_name}}}}"),
            unit="percentunit", says=pipes, maximum=1,
        ),
        trend("Memory bandwidth", Query(Q.device(semconv.M_DRAM_ACTIVE), LEGEND), unit="percentunit", says=dram, maximum=1),
        trend(
            "Links",
            Query(Q.device(semconv.M_PCIE_BANDWIDTH, by=direction), f"{legend} PCIe"),
            Query(Q.device(semconv.M_NVLINK_BANDWIDTH, by=direction), f"{legend} NVLink"),
            unit="Bps", says=links,
        ),
        trend(
            "XID errors",
            Query(Q.device(semconv.M_XID_ERRORS, by=["inferspan_gpu_xid_code"]), f"{LEGEND} XID {{{{inferspan_gpu_xid_code}}}}"),
            unit=ERRORS, says=xid,
        ),
    ]  # fmt: skip
    return Row("Counters of the chip", panels, closed=True)
