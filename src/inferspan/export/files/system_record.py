"""What the machine and the settings of this process are, once, as a log record in its session file.

In come settings; out goes one line of OTLP JSON with the resource of the spans, so that readers know whose it is. No command line, no user
name and no environment is in it; of paths only the last part. Nothing raises.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from inferspan import semconv
from inferspan.export.files.json_lines import record_line
from inferspan.export.files.session_file import SessionFile
from inferspan.export.providers import current_provider
from inferspan.guard import contain
from inferspan.samplers.cgroup import cpu_quota, memory_limit
from inferspan.settings import Settings, SettingsError
from inferspan.version import version

__all__ = ["facts", "record_system", "settings_in_force"]

_recorded: set[tuple[int, str]] = set()
_PATHS = ("session_file", "report_dir")


def record_system(settings: Settings, tracer_provider: Any = None) -> None:
    """Write the record to the session file of the settings, once for each process and file.

    Args:
        settings: those in force.
        tracer_provider: whose resource the spans have; default: the global one.
    """
    path = settings.session_file
    if path is None or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return
    key = (os.getpid(), os.path.abspath(path))
    if key in _recorded:
        return
    _recorded.add(key)
    # The code that opened the file for the spans has already reported one that cannot be written.
    with contain("system record"), contextlib.suppress(SettingsError):
        resource = getattr(tracer_provider or current_provider("traces"), "resource", None)
        attributes = {**facts(), "settings": json.dumps(settings_in_force(settings), separators=(",", ":"))}
        line = record_line(resource, semconv.SYSTEM_EVENT, attributes, time.time_ns())
        file = SessionFile(path)
        try:
            file.append(line, 1)
        finally:
            file.close()


def facts(root: Path = Path("/")) -> dict[str, Any]:
    """Facts of the machine by name: texts, counts and bytes; what is not known is absent.

    Args:
        root: where the files of the kernel are.
    """
    memory, quota = memory_limit(root), cpu_quota(root)
    found = {
        "os": f"{platform.system()} {platform.release()}".strip() or None,
        "architecture": platform.machine() or None,
        "python": platform.python_version(),
        "inferspan": version(),
        "pid": os.getpid(),
        "cpu": _cpu_model(root),
        "cores": os.cpu_count(),
        "cores_available": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory": _memory(),
        "container.memory_limit": memory.limit if memory is not None else None,
        "container.cpu_quota": quota,
    }
    return {name: value for name, value in found.items() if value is not None}


def settings_in_force(settings: Settings) -> list[tuple[str, Any, str]]:
    """Rows (name, value, source): the variable it comes from, ``program`` or ``default``."""
    rows = []
    for item in fields(settings):
        value = getattr(settings, item.name)
        source = settings.source(item.name) or ("default" if value == item.default else "program")
        rows.append((item.name, _shown(item.name, value), source))
    return rows


def _shown(name: str, value: Any) -> Any:
    if name in _PATHS and isinstance(value, str):
        return os.path.basename(value) or None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={part}" for key, part in value.items())
    if isinstance(value, tuple | list):
        return ", ".join("=".join(map(str, part)) if isinstance(part, tuple) else str(part) for part in value)
    return str(value)


def _cpu_model(root: Path) -> str | None:
    try:
        with (root / "proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in ("model name", "Model") and value.strip():
                    return value.strip()[:200]
    except OSError:
        pass
    return (platform.processor() or None) if sys.platform != "linux" else None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
