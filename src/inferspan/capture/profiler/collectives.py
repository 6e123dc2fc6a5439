"""Time in collectives of a profiled pass: which events are collectives, and for how long at least one of them ran.

In: rows of ``torch_profiler`` and the module calls that they belong to. Out: nanoseconds. A collective waits for the other ranks and moves
data in one kernel or operation, so its time is both together. No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["HOST_COLLECTIVES", "by_module", "covered", "is_collective_kernel", "is_collective_op"]

HOST_COLLECTIVES = re.compile(r"gloo:")
"""Names of the ranges in which torch marks a collective that a thread of the host runs. Those of NCCL mark its launch alone."""
_OPS = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::")
_KERNELS = re.compile(r"(?:void\s+)?(?:nccl|rccl)", re.IGNORECASE)

Owned = tuple[int, int, int]
"""Number of the module call, -1 without one; start and end."""


def is_collective_op(name: str) -> bool:
    """Whether an operation of the host launches a collective or waits for one."""
    return name.startswith(_OPS)


def is_collective_kernel(name: str) -> bool:
    """Whether a kernel belongs to NCCL or RCCL."""
    return _KERNELS.match(name) is not None


def covered(intervals: Iterable[tuple[int, int]]) -> int:
    """Nanoseconds in which at least one of the intervals lasts."""
    total, until = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


def by_module(found: Sequence[Owned], parents: Mapping[int, int]) -> dict[int, float]:
    """Seconds by the number of a module call, those of the calls inside it included.

    Args:
        found: collectives with the innermost call around their start.
        parents: number of the call around each call, -1 without one.
    """
    inside: dict[int, list[tuple[int, int]]] = {}
    for number, start, end in found:
        while number >= 0:
            inside.setdefault(number, []).append((start, end))
            number = parents.get(number, -1)
    return {number: seconds for number, intervals in inside.items() if (seconds := covered(intervals) / 1e9) > 0}
