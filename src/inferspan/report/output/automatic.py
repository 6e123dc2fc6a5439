"""Settings ``report`` and ``report_dir`` -> reports that are made by themselves: at the end of the outermost session, and of the process.

``AutomaticReports.prepare`` comes before export is set up: it tries the folder, and gives settings with a session file to read from, a
temporary one in that folder if the program has named none. ``session`` and ``process_ends`` write the reports. A failure then is one line
in the log that names path and cause; it raises nothing and changes no exit code.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from inferspan import semconv
from inferspan.ranks import filled, ranks

# Not loaded when the process ends: a module that runs exec() then, as those with dataclasses do, makes Python forget that a
# KeyboardInterrupt ends it, and with that its exit code.
from inferspan.report.figures.document import write_document
from inferspan.report.html import preload, write_report
from inferspan.report.session import read_sessions
from inferspan.setting_checks import shown, warn_once
from inferspan.settings import Settings, SettingsError

__all__ = ["AutomaticReports"]

_log = logging.getLogger("inferspan")
_KINDS = {"html": (".html",), "json": (".json",), "both": (".html", ".json")}
_LONGEST_NAME = 160
"""Bytes; file systems take 255, and time, id, rank and suffix follow."""
_HAND_OVER = 10.0
"""Longest time in seconds to wait until what was recorded is in the session file."""


class _Plan(NamedTuple):
    """What was asked for, and where the telemetry is."""

    kinds: tuple[str, ...]
    folder: Path
    recording: Path
    temporary: bool
    points: int
    begun_ns: int
    pid: int


class AutomaticReports:
    """Makes the reports of this process; the first call of ``prepare`` that asks for them decides.

    Args:
        flush: has everything recorded so far written; is given seconds.
        clock: nanoseconds since the epoch.
    """

    def __init__(self, flush: Callable[[float], bool], *, clock: Callable[[], int] = time.time_ns) -> None:
        self._flush, self._clock = flush, clock
        self._plan: _Plan | None = None
        self._open_sessions = 0
        self._reported: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    def prepare(self, settings: Settings) -> Settings:
        """Settings with a session file, if they ask for reports.

        Raises:
            SettingsError: the folder was given as an argument and cannot be written.
        """
        if settings.report is None:
            return settings
        with self._lock:
            if self._plan is not None and self._plan.pid == os.getpid():
                # One recording for a process, whatever models it has.
                return settings if settings.session_file is not None else settings.override({"session_file": str(self._plan.recording)})
            folder = Path(filled(settings.report_dir or ".", os.environ))
            try:
                # Raises as well where the working directory has been removed.
                folder = folder.absolute()
                _try(folder)
            except OSError as error:
                return _refused(settings, folder, error)
            preload()
            temporary = settings.session_file is None
            named = filled(str(settings.session_file), os.environ)
            recording = folder / f".inferspan-{os.getpid()}-{os.urandom(4).hex()}.jsonl" if temporary else Path(named)
            kinds, points = _KINDS[settings.report], settings.max_data_points
            self._plan = _Plan(kinds, folder, recording.absolute(), temporary, points, self._clock(), os.getpid())
            self._reported, self._open_sessions = [], 0
            return settings.override({"session_file": str(recording)}) if temporary else settings

    def session(self, name: str, identity: str) -> Callable[[], None]:
        """A session has begun; returns what is called when it has ended. The outermost one of the process is reported then."""
        begun = self._clock()
        with self._lock:
            self._open_sessions += 1

        def ended() -> None:
            with self._lock:
                self._open_sessions -= 1
                plan = self._plan if self._open_sessions == 0 else None
            if plan is not None and plan.pid == os.getpid():
                window = (begun, self._clock())
                self._reported.append(window)
                self._make(plan, name, identity, window)

        return ended

    def process_ends(self) -> None:
        """The process ends: report what no session has reported, and remove the temporary file."""
        with self._lock:
            plan, self._plan = self._plan, None
        if plan is None or plan.pid != os.getpid():
            return
        done = self._make(plan, None, f"{plan.pid}", (plan.begun_ns, self._clock()))
        if plan.temporary and done:
            with contextlib.suppress(OSError):
                plan.recording.unlink()

    def forked(self) -> None:
        """Called in a forked child, where no thread is left to release the lock; the parent makes the report."""
        self._lock = threading.Lock()

    def _make(self, plan: _Plan, name: str | None, identity: str, window: tuple[int, int]) -> bool:
        """Write the reports of a time; whether that went well."""
        place: Path = plan.folder
        try:
            self._flush(_HAND_OVER)
            if not plan.recording.exists() or plan.recording.stat().st_size == 0:
                return True  # nothing was recorded
            # A session file with a limit has its older part beside it.
            older = plan.recording.with_name(f"{plan.recording.name}.1")
            session = read_sessions([*([older] if older.exists() else []), plan.recording], between=window, points=plan.points)
            starts = [request.span.start_ns for request in session.requests]
            if name is None and starts and all(any(low <= start <= high for low, high in self._reported) for start in starts):
                return True  # the reports of the sessions have it all
            if not session.tally.levels and (name is None or not session.series):
                return True
            stem = _stem(name or str((session.resources or [{}])[0].get("service.name", "inferspan")), window[0], identity)
            for suffix in plan.kinds:
                place = plan.folder / f"{stem}{suffix}"
                if suffix == ".html":
                    write_report(session, place, title=name)
                else:
                    write_document(session, place)
                _log.info("inferspan wrote report %s", place)
        except Exception as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}"
            kept = f"; the recording is kept in {plan.recording}" if plan.temporary else ""
            with contextlib.suppress(Exception):  # of a log handler of the program
                _log.warning("inferspan cannot write report %s: %s%s", place, reason, kept)
            return False
        return True


def _stem(name: str, begun_ns: int, identity: str) -> str:
    """Name, start time, id and rank, as a file name."""
    safe = re.sub(r"[^\w.-]+", "-", name).strip(".-").encode("utf-8", "replace")[:_LONGEST_NAME].decode("utf-8", "ignore") or "session"
    moment = datetime.fromtimestamp(begun_ns / 1e9, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    rank = ranks(os.environ).get(semconv.RANK)
    return f"{safe}-{moment}-{identity[:8]}" + (f"-rank{rank}" if rank is not None else "")


def _try(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".inferspan-{os.urandom(6).hex()}"
    os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    probe.unlink()


def _refused(settings: Settings, folder: Path, error: OSError) -> Settings:
    name = "report" if settings.report_dir is None else "report_dir"
    problem = f"no report can be written to {folder}: {error.strerror or error}"
    variable = settings.source(name) or settings.source("report")
    if variable is None:
        raise SettingsError(f"inferspan setting {name!r}: {problem}; name another folder with report_dir") from None
    warn_once("%s is ignored: %s", variable, shown(problem))
    return settings.override({"report": None})
