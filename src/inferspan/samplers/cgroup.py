"""Limits that a container or service manager has set on this process, from the files of cgroup versions 1 and 2.

Only reads files under an injected root. A file that is missing, unreadable, or says "no limit" gives ``None``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

__all__ = ["MemoryLimit", "cpu_quota", "memory_limit"]

_UNLIMITED = 2**60
"""Version 1 says "no limit" by the largest multiple of a page that fits in 63 bits."""


class MemoryLimit(NamedTuple):
    """The limit in bytes, and the bytes in use under it without the caches that the kernel can drop at once."""

    limit: int
    usage: int | None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def _number(text: str | None) -> int | None:
    # int() refuses texts of thousands of digits, and reads some that are no number to a kernel.
    if text is None or len(text) > 20 or not text.isdecimal():
        return None
    value = int(text)
    return value if value < _UNLIMITED else None


def _folders(root: Path, controller: str) -> Iterator[tuple[bool, Path]]:
    """Folders whose limits apply to this process, its own first, then those around it; true for version 2."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            mounts = (True, root / "sys/fs/cgroup"), (True, root / "sys/fs/cgroup/unified")
        elif controller in controllers.split(","):
            mounts = (False, root / "sys/fs/cgroup" / controller), (False, root / "sys/fs/cgroup" / controllers)
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        for version, mount in mounts:
            # Inside a container the path may be the host's, which does not exist here; the mount then is our own folder.
            for folder in (own, *own.parents) if own.parts else (own,):
                yield version, mount / folder


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """The tightest memory limit on this process; ``None`` if there is none."""
    tightest: MemoryLimit | None = None
    for unified, folder in _folders(root, "memory"):
        limit = _number(_read(folder / ("memory.max" if unified else "memory.limit_in_bytes")))
        if limit is None or (tightest is not None and limit >= tightest.limit):
            continue
        usage = _number(_read(folder / ("memory.current" if unified else "memory.usage_in_bytes")))
        if usage is not None:
            droppable = "inactive_file" if unified else "total_inactive_file"
            statistics = (line.partition(" ") for line in (_read(folder / "memory.stat") or "").splitlines())
            usage = max(0, usage - next((_number(value) or 0 for name, _, value in statistics if name == droppable), 0))
        tightest = MemoryLimit(limit, usage)
    return tightest


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The tightest quota of CPU time on this process, in CPUs; ``None`` if there is none."""
    quotas = []
    for unified, folder in _folders(root, "cpu"):
        if unified:
            quota, _, period = (_read(folder / "cpu.max") or "max").partition(" ")
        else:
            quota, period = _read(folder / "cpu.cfs_quota_us") or "", _read(folder / "cpu.cfs_period_us") or ""
        allowed, length = _number(quota), _number(period)
        if allowed and length:
            quotas.append(allowed / length)
    return min(quotas, default=None)
