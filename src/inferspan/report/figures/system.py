"""A session -> what is known of the machine and the settings of each process: the section *System* and the key ``system``.

In comes a ``Session``; out comes one mapping for each process. Facts come from its resource, from the record that inferspan writes into
session files (``semconv.SYSTEM_EVENT``), and from the attributes of GPU metrics. What is not known is absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inferspan import semconv
from inferspan.report.plain import plain
from inferspan.report.session import Session

__all__ = ["process_labels", "systems_of"]

_OF_RESOURCE = {
    "host": semconv.HOST_NAME, "service": "service.name", "instance": "service.instance.id", "rank": semconv.RANK,
    "local_rank": semconv.LOCAL_RANK, "world_size": semconv.WORLD_SIZE, "torch": semconv.TORCH_VERSION,
    "transformers": semconv.TRANSFORMERS_VERSION, "cuda": semconv.CUDA_VERSION, "cudnn": semconv.CUDNN_VERSION,
}  # fmt: skip
_OF_GPU = {"name": semconv.HW_NAME, "model": semconv.HW_MODEL, "driver": semconv.HW_DRIVER_VERSION}
_GPU_FIGURES = {semconv.M_GPU_MEMORY_LIMIT: "memory", semconv.M_POWER_LIMIT: "power_limit"}


def process_labels(session: Session) -> list[str]:
    """A short name for each process, told apart by rank, process id or number where several are alike."""
    labels = [_label(resource, session.systems.get(number, {})) for number, resource in enumerate(session.resources)]
    return [label if labels.count(label) == 1 else f"{label} #{number + 1}" for number, label in enumerate(labels)]


def _label(resource: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    rank, pid = resource.get(semconv.RANK), facts.get("pid")
    named = str(resource.get("service.name", "unnamed service"))
    return named + (f" rank {rank}" if rank is not None else f" ({pid})" if isinstance(pid, int) else "")


def systems_of(session: Session) -> list[dict[str, Any]]:
    """The facts of each process, in the order of the session's resources."""
    return [_facts(session, number, label) for number, label in enumerate(process_labels(session))]


def _facts(session: Session, number: int, label: str) -> dict[str, Any]:
    resource = session.resources[number]
    record = {name: value for name, value in session.systems.get(number, {}).items() if name not in ("container", "gpus")}
    settings = record.pop("settings", None)
    found: dict[str, Any] = {"process": label}
    found |= {name: resource[key] for name, key in _OF_RESOURCE.items() if key in resource}
    found |= {name: value for name, value in record.items() if name not in found}
    container = {name: record[f"container.{name}"] for name in ("memory_limit", "cpu_quota") if f"container.{name}" in record}
    for name in container:
        del found[f"container.{name}"]
    if container:
        found["container"] = container
    gpus = _gpus(session, number)
    if gpus:
        found["gpus"] = gpus
    read = _settings(settings)
    if read:
        found["settings"] = read
    plained: dict[str, Any] = plain({key: value for key, value in found.items() if key not in _NESTED})
    return plained | {key: found[key] for key in _NESTED if key in found}


_NESTED = ("container", "gpus", "settings")


def _gpus(session: Session, number: int) -> list[dict[str, Any]]:
    """The GPUs that metrics of a process name, with memory in bytes and power limit in watts."""
    found: dict[str, dict[str, Any]] = {}
    for series in session.series:
        identity = series.attributes.get(semconv.HW_ID)
        if series.resource != number or not isinstance(identity, str):
            continue
        gpu = found.setdefault(identity, {"id": identity})
        gpu |= {name: plain(series.attributes[key]) for name, key in _OF_GPU.items() if key in series.attributes}
        if series.name in _GPU_FIGURES and series.last is not None:
            gpu[_GPU_FIGURES[series.name]] = plain(series.last)
    return [found[identity] for identity in sorted(found)]


def _settings(text: object) -> list[dict[str, Any]]:
    """The settings of a record: JSON of rows (name, value, source)."""
    try:
        rows = json.loads(text) if isinstance(text, str) else []
    except (ValueError, RecursionError):
        return []
    if not isinstance(rows, list):
        return []
    return [
        {"name": row[0], "value": plain(row[1]), "source": row[2]}
        for row in rows[:1_000]
        if isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) and isinstance(row[2], str)
    ]
