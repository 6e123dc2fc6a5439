"""Limits of containers, read from folders laid out as the kernel lays them out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from inferspan.samplers.cgroup import MemoryLimit, cpu_quota, memory_limit

V2 = {
    "proc/self/cgroup": "0::/system.slice/app.scope\n",
    "sys/fs/cgroup/system.slice/app.scope/memory.max": "max\n",
    "sys/fs/cgroup/system.slice/app.scope/memory.current": "300\n",
    "sys/fs/cgroup/system.slice/app.scope/cpu.max": "max 100000\n",
    "sys/fs/cgroup/system.slice/memory.max": "1000\n",
    "sys/fs/cgroup/system.slice/memory.current": "700\n",
    "sys/fs/cgroup/system.slice/memory.stat": "anon 100\ninactive_file 250\nactive_file 20\n",
    "sys/fs/cgroup/system.slice/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/cpu.stat": "usage_usec 1\n",
}
V2_CONTAINER = {
    "proc/self/cgroup": "0::/\n",
    "sys/fs/cgroup/memory.max": "2000\n",
    "sys/fs/cgroup/memory.current": "500\n",
    "sys/fs/cgroup/cpu.max": "50000 100000\n",
}
V1 = {
    "proc/self/cgroup": "11:memory:/docker/0123\n4:cpu,cpuacct:/docker/0123\n1:name=systemd:/docker/0123\n",
    # Inside the container the path of the host does not exist: the mount is our own folder.
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "4000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "3000\n",
    "sys/fs/cgroup/memory/memory.stat": "inactive_file 7\ntotal_inactive_file 1000\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
}
V1_UNLIMITED = {
    "proc/self/cgroup": "4:memory:/\n1:cpu:/\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "3000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
}


def lay_out(root: Path, files: Mapping[str, str]) -> Path:
    """Write a tree of files, and return its root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "memory", "cpus"),
    [
        pytest.param(V2, MemoryLimit(1000, 450), 1.5, id="version 2, limits of an outer group"),
        pytest.param(V2_CONTAINER, MemoryLimit(2000, 500), 0.5, id="version 2, own namespace"),
        pytest.param(V1, MemoryLimit(4000, 2000), 2.0, id="version 1"),
        pytest.param(V1_UNLIMITED, None, None, id="version 1, no limit"),
        pytest.param({**V2_CONTAINER, "sys/fs/cgroup/memory.max": "garbage", "sys/fs/cgroup/cpu.max": ""}, None, None, id="garbage"),
        pytest.param({}, None, None, id="not Linux"),
    ],
)
def test_limits(tmp_path: Path, files: Mapping[str, str], memory: MemoryLimit | None, cpus: float | None) -> None:
    """The tightest limit of the groups around us counts, in both versions; "max", -1 and nonsense are no limit."""
    root = lay_out(tmp_path, files)
    assert (memory_limit(root), cpu_quota(root)) == (memory, cpus)
