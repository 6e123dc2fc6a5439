"""Where a measurement was made: card, versions, date, revision, and how busy the machine was; and the peak memory of a run.

Everything here is read; what is set is the kernel's mark of the peak, back to what the process uses now, and the number of torch's threads.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["busy", "describe", "has_gpu", "one_thread", "peak", "reset_peak"]

PACKAGES = ("inferspan", "torch", "transformers", "triton", "opentelemetry-sdk", "opentelemetry-exporter-otlp")
HERE = Path(__file__).resolve().parent


def describe() -> dict[str, str]:
    """Facts that belong beside every figure, in the order in which they are printed."""
    import torch

    from inferspan import extension

    facts = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{_processor()}, {_cores()} cores usable, torch uses {torch.get_num_threads()} threads, {platform.system()} {platform.machine()}",
    }
    if torch.cuda.is_available():
        facts["card"] = torch.cuda.get_device_name()
    found = [f"{name} {version}" for name in PACKAGES if (version := _version(name))]
    facts["versions"] = ", ".join([f"Python {platform.python_version()}", *found])
    facts["module calls are recorded by"] = str(extension.find())
    facts["revision"] = _revision()
    if load := _load():
        facts["load before"] = f"{load:.2f}"
    return facts


def has_gpu() -> bool:
    """Whether there is an NVIDIA GPU that torch can use."""
    import torch

    return torch.cuda.is_available()


def busy() -> str | None:
    """A warning, if others use the machine already."""
    load, cores = _load(), _cores()
    if load is None or load < 0.25 * cores:
        return None
    return f"this machine is busy (load {load:.2f} on {cores} cores): intervals will be wide, and ratios of the fastest runs say more than medians"


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: small operations only lose by more, most of all where others use the machine too."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def reset_peak() -> None:
    """Begin a new peak, of the process and of the device, where that is possible."""
    import torch

    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak() -> tuple[int | None, int | None]:
    """Greatest number of bytes of the process and of torch on the device since the last reset; ``None`` where it cannot be read."""
    import torch

    host = None
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        host = 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    return host, torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    usable: Any = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _revision() -> str:
    """What the variable says, for a copy whose history is not its own, else what git says."""
    if named := os.environ.get("BENCHMARK_REVISION"):
        return named
    try:
        run = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown: no git here"
    return run.stdout.strip()
