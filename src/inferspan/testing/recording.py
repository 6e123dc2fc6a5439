"""What a model does in a block, as requests with their phases, steps and modules.

In comes a model; out comes a ``Recording`` whose file is a session file like any other. Exceptions of the block pass unchanged.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferspan.report.session import Request, Session, Span, read_session

if TYPE_CHECKING:
    from inferspan.export.files.recording_file import FileProviders
    from inferspan.instrument import Handle

__all__ = ["Recording", "record"]


class Recording:
    """Requests of a model, while they are recorded and afterwards.

    Attributes:
        path: the session file, for ``inferspan report`` and ``inferspan diff``.
    """

    def __init__(self, path: Path, providers: FileProviders) -> None:
        self.path = path
        self.handle: Handle | None = None
        """Of the instrumented model; ``None`` once the block has ended."""
        self._providers = providers

    def session(self) -> Session:
        """Everything that has ended so far.

        Raises:
            SessionFileError: nothing has been recorded.
        """
        if self.handle is not None:
            self.handle.flush()
            self._providers.flush()
        return read_session(self.path)

    @property
    def requests(self) -> list[Request]:
        """Requests in order of their start, each with ``span``, ``phases`` and ``steps``; empty if there is none."""
        return self.session().requests if self._written() else []

    def spans(self, name: str | None = None) -> list[Span]:
        """Spans of requests and of what is inside them, by start.

        Args:
            name: of the spans; default: all.
        """
        waiting, found = [request.span for request in self.requests], {}
        while waiting:
            span = waiting.pop()
            found[span.trace_id, span.span_id] = span
            waiting.extend(span.children)
        chosen = (span for span in found.values() if name is None or span.name == name)
        return sorted(chosen, key=lambda span: (span.start_ns, -span.end_ns))

    def metric(self, name: str) -> list[tuple[dict[str, Any], float | int]]:
        """Attributes and newest value of each series of a metric; for a histogram the number of its values.

        Args:
            name: of the metric, such as ``hw.power``.
        """
        found: list[tuple[dict[str, Any], float | int]] = []
        for series in self.session().series if self._written() else ():
            value = series.last if series.histogram is None else series.histogram.count
            if series.name == name and value is not None:
                found.append((dict(series.attributes), value))
        return found

    def _written(self) -> bool:
        if self.handle is not None:
            self.handle.flush()
            self._providers.flush()
        return self.path.exists() and self.path.stat().st_size > 0


@contextmanager
def record(
    model: Any, tokenizer: Any = None, *, path: str | os.PathLike[str] | None = None, **settings: Any
) -> Iterator[Recording]:
    """Instrument a model for a block, with providers of its own: no global provider is set or used.

    Args:
        model: as for ``inferspan.instrument``; it must not be instrumented already.
        tokenizer: likewise.
        path: session file to append to; default: a temporary one that goes with the ``Recording``.
        **settings: of inferspan; readings of the host are off unless ``host=True`` is given.

    Yields:
        The recording. Two blocks around two models record both in turns.

    Raises:
        TypeError, SettingsError: as ``inferspan.instrument``; the file cannot be written.
    """
    from inferspan.export.files.recording_file import FileProviders
    from inferspan.export.files.system_record import record_system
    from inferspan.instrument import instrument

    folder = None if path is not None else tempfile.mkdtemp(prefix="inferspan-")
    file = Path(path) if path is not None else Path(str(folder)) / "session.jsonl"
    try:
        providers = FileProviders(file)
        found = Recording(file, providers)
        if folder is not None:
            weakref.finalize(found, shutil.rmtree, folder, ignore_errors=True)
        try:
            handle = instrument(
                model, tokenizer, tracer_provider=providers.tracer, meter_provider=providers.meter, auto_configure=False,
                **{"host": False, **settings},
            )  # fmt: skip
        except BaseException:
            providers.close()
            raise
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    found.handle = handle
    record_system(replace(handle.settings, session_file=str(file)), providers.tracer)
    try:
        yield found
    finally:
        handle.flush()
        found.handle = None
        # Metrics of the GPUs are read a last time while their thread runs.
        providers.flush()
        handle.uninstrument()
        providers.close()
