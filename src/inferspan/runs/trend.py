"""Archived recordings -> the runs of each program in order of time, with what changed from run to run.

In come session files and JSON reports. Runs that can be compared stand in one group: same models, tags, machine and settings. Of each
run: time to first token, time per token, tokens/s, peak memory, utilisation of the GPUs and energy per token, with the change to the run
before and to the median of the group. Versions are no part of the group, for they are what one compares: runs whose versions differ say
so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferspan.metrics.summary import percentile
from inferspan.report.figures.document import SCHEMA as REPORT_SCHEMA
from inferspan.report.figures.document import document
from inferspan.report.files import session_files
from inferspan.report.session import SessionFileError, read_session
from inferspan.text.numbers import counted

__all__ = ["FIGURES", "SCHEMA", "Group", "Run", "Trend", "trend"]

SCHEMA = 1
"""Number of the JSON form: raised when a key changes its meaning or goes."""
LARGEST = 256 << 20
"""Bytes of a JSON report."""
_VERSIONS = ("torch", "transformers", "cuda", "cudnn", "driver", "python", "inferspan")
_NOT_OF_GROUP = ("session_file", "report_dir", "session_tags")


@dataclass(frozen=True)
class Kind:
    """A figure of a run: its unit, and whether more of it is better, which tells an improvement from a regression."""

    unit: str
    more_is_better: bool


FIGURES: Mapping[str, Kind] = {
    "ttft": Kind("s", False),
    "tpot": Kind("s", False),
    "tokens_per_second": Kind("{token}/s", True),
    "peak_memory": Kind("By", False),
    "utilization": Kind("1", True),
    "joules_per_token": Kind("J/{token}", False),
}


@dataclass(slots=True)
class Run:
    """One recording.

    Attributes:
        path: its file.
        start_ns: its begin in nanoseconds since the epoch, 0 if it is not known.
        requests: their number.
        figures: those of ``FIGURES`` that are known; times are medians.
        versions: of libraries, by name.
        key: what runs of one group have in common.
    """

    path: Path
    start_ns: int
    requests: int
    figures: dict[str, float]
    versions: dict[str, str]
    key: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Group:
    """Runs that can be compared, by time."""

    key: tuple[tuple[str, str], ...]
    runs: list[Run] = field(default_factory=list)

    def median(self, name: str) -> float | None:
        """Of the runs that have the figure."""
        return percentile([run.figures[name] for run in self.runs if name in run.figures], 0.5)

    def change(self, index: int, name: str) -> float | None:
        """Share by which a figure is above that of the last run before that has it; negative if it is below."""
        before = next((run.figures[name] for run in reversed(self.runs[:index]) if name in run.figures), None)
        return _share(self.runs[index].figures.get(name), before)

    def to_median(self, index: int, name: str) -> float | None:
        """The same against the median of the group."""
        return _share(self.runs[index].figures.get(name), self.median(name))

    def new_versions(self, index: int) -> dict[str, tuple[str | None, str | None]]:
        """Versions that differ from those of the run before, as (before, now)."""
        if not index:
            return {}
        before, now = self.runs[index - 1].versions, self.runs[index].versions
        names = [name for name in _VERSIONS if before.get(name) != now.get(name)]
        return {name: (before.get(name), now.get(name)) for name in names}


@dataclass(slots=True)
class Trend:
    """Groups of runs, the one with the newest run first; ``refused`` are files that could not be used, with the reason."""

    groups: list[Group]
    refused: list[tuple[Path, str]]

    def as_dict(self) -> dict[str, Any]:
        """The JSON form, documented in ``docs/looking/ranks.md``."""
        return {
            "schema": SCHEMA,
            "groups": [
                {
                    "of": dict(group.key),
                    "median": {name: group.median(name) for name in FIGURES},
                    "runs": [_run(group, index) for index in range(len(group.runs))],
                }
                for group in self.groups
            ],
            "refused": [{"file": str(path), "reason": reason} for path, reason in self.refused],
        }


def _run(group: Group, index: int) -> dict[str, Any]:
    run = group.runs[index]
    return {
        "file": run.path.name,
        "start_ns": str(run.start_ns) if run.start_ns else None,
        "requests": run.requests,
        "figures": {
            name: {
                "value": run.figures.get(name),
                "unit": kind.unit,
                "change": group.change(index, name),
                "to_median": group.to_median(index, name),
            }
            for name, kind in FIGURES.items()
        },
        "versions": run.versions,
        "new_versions": {name: list(pair) for name, pair in group.new_versions(index).items()},
    }


def _share(now: float | None, before: float | None) -> float | None:
    share = None if now is None or not before else now / before - 1
    return share if share is not None and math.isfinite(share) else None


def trend(paths: Sequence[Path], *, told: Callable[[Path], object] = lambda _: None) -> Trend:
    """Read recordings and put them into groups.

    Args:
        paths: session files, JSON reports, and folders of both.
        told: called with each file before it is read.

    Raises:
        SessionFileError: nothing can be used.
    """
    groups: dict[tuple[tuple[str, str], ...], Group] = {}
    refused: list[tuple[Path, str]] = []
    files = list(_files(paths))
    for path in files:
        told(path)
        try:
            run = _read(path)
        except SessionFileError as error:
            refused.append((path, str(error)))
            continue
        groups.setdefault(run.key, Group(run.key)).runs.append(run)
    if not groups:
        reason = f"; the first: {refused[0][1]}" if refused else ""
        number = counted(len(files), "file")
        raise SessionFileError(f"none of {number} is a recording with requests{reason}. Give session files or JSON reports")
    for group in groups.values():
        group.runs.sort(key=lambda run: run.start_ns)
    return Trend(sorted(groups.values(), key=lambda group: -group.runs[-1].start_ns), refused)


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found: set[Path] = {file for file in path.iterdir() if file.is_file() and file.suffix == ".json"}
        try:
            found |= set(session_files([path]))
        except SessionFileError:
            if not found:
                raise
        yield from sorted(found)


def _read(path: Path) -> Run:
    found = _report(path) if path.suffix == ".json" else None
    if found is None:
        found = document(read_session(path))
    return _of(path, found)


def _report(path: Path) -> Mapping[str, Any] | None:
    """A JSON report; ``None`` if the file is something else."""
    try:
        if path.stat().st_size > LARGEST:
            raise SessionFileError(f"{path} is larger than {LARGEST >> 20} MiB: give the session file it was made of")
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise SessionFileError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("schema"), int) or "requests" not in found:
        return None
    if found["schema"] > REPORT_SCHEMA:
        raise SessionFileError(f"{path} has schema {found['schema']}, of a later version of inferspan; {REPORT_SCHEMA} is the last known")
    return found


def _of(path: Path, found: Mapping[str, Any]) -> Run:
    requests = [request for request in _list(found.get("requests")) if not request.get("nested")]
    if not requests:
        raise SessionFileError(f"{path} holds no request of an instrumented model")
    systems, session = _list(found.get("system")), _mapping(found.get("session"))
    totals = _mapping(session.get("totals"))
    figures = {
        "ttft": _median(request.get("ttft") for request in requests if not request.get("failed")),
        "tpot": _median(request.get("tpot") for request in requests if not request.get("failed")),
        "tokens_per_second": _number(totals.get("tokens_per_second")),
        "peak_memory": _number(totals.get("peak_memory")),
        "utilization": _utilization(found),
        "joules_per_token": _joules(requests),
    }
    start = session.get("start_ns")
    return Run(
        path=path,
        start_ns=int(start) if isinstance(start, str) and start.isascii() and start.isdigit() and len(start) < 20 else 0,
        requests=len(requests),
        figures={name: value for name, value in figures.items() if value is not None and 0 <= value < math.inf},
        versions=_versions(found, systems),
        key=_key(requests, session, systems),
    )


def _key(requests: list[Mapping[str, Any]], session: Mapping[str, Any], systems: list[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    system = systems[0] if systems else {}
    tags: dict[str, Any] = {}
    for one in _list(session.get("sessions")):
        tags.update(_mapping(one.get("tags")))
    gpus = [str(gpu.get("name") or gpu.get("model")) for gpu in _list(system.get("gpus"))]
    settings = {
        str(row.get("name")): row.get("value")
        for row in _list(system.get("settings"))
        if row.get("source") != "default" and row.get("name") not in _NOT_OF_GROUP
    }
    parts = {
        "models": ", ".join(sorted({str(request["model"]) for request in requests if request.get("model")})),
        "tags": ", ".join(f"{key}={value}" for key, value in sorted(tags.items())),
        "machine": ", ".join(filter(None, [str(system.get("host") or ""), *gpus])),
        "settings": ", ".join(f"{key}={value}" for key, value in sorted(settings.items())),
    }
    return tuple(parts.items())


def _versions(found: Mapping[str, Any], systems: list[Mapping[str, Any]]) -> dict[str, str]:
    system = systems[0] if systems else {}
    drivers = {str(gpu["driver"]) for gpu in _list(system.get("gpus")) if gpu.get("driver")}
    every = {**system, "driver": ", ".join(sorted(drivers)) or system.get("driver")}
    return {name: str(every[name]) for name in _VERSIONS if every.get(name)}


def _utilization(found: Mapping[str, Any]) -> float | None:
    metrics = _list(_mapping(found.get("statistics")).get("metrics"))
    values = [
        (_number(metric.get("average")), _number(metric.get("count")))
        for metric in metrics
        if metric.get("name") == "hw.gpu.utilization" and _mapping(metric.get("attributes")).get("hw.gpu.task", "general") == "general"
    ]
    known = [(average, count) for average, count in values if average is not None and count]
    return sum(average * count for average, count in known) / sum(count for _, count in known) if known else None


def _joules(requests: list[Mapping[str, Any]]) -> float | None:
    known = [(_number(request.get("energy")), _number(request.get("output_tokens"))) for request in requests]
    both = [(energy, tokens) for energy, tokens in known if energy is not None and tokens]
    return sum(energy for energy, _ in both) / sum(tokens for _, tokens in both) if both else None


def _median(values: Iterable[Any]) -> float | None:
    return percentile([value for value in map(_number, values) if value is not None], 0.5)


def _number(value: Any) -> float | None:
    """A finite figure of a report that may be anybody's."""
    try:
        known = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None
    return known if known is not None and math.isfinite(known) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
