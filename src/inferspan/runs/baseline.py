"""Session files -> a baseline of their outputs, or their outputs against one.

In come the requests of session files; nested and failed ones are left out. Out come figures by model and version, and lines of text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from inferspan import semconv
from inferspan.analysis.baseline import LEAST, Baseline, Outputs, Shift, figures_of_request, shifts
from inferspan.report.session import SessionFileError, read_sessions
from inferspan.report.terminal import clean
from inferspan.text.numbers import counted

__all__ = ["DRIFT", "FINE", "UNDECIDED", "Comparison", "compare", "few", "outputs_of"]

FINE, DRIFT, UNDECIDED = "fine", "drift", "undecided"


def outputs_of(paths: Sequence[Path]) -> list[Outputs]:
    """The outputs in session files, by model and version.

    Raises:
        SessionFileError: there are none.
    """
    rows: dict[tuple[str, str], list[Any]] = {}
    for request in read_sessions(paths).requests:
        figures = figures_of_request(request.span.attributes)
        model = request.model
        if model is None or not figures or request.flag(semconv.NESTED) or request.flag(semconv.FAILED):
            continue
        key = (model, request.text(semconv.MODEL_REVISION) or "")
        rows.setdefault(key, []).append((figures, request.texts(semconv.HEALTH_KINDS)))
    if not rows:
        raise SessionFileError(
            "no request of these files has figures of its output: record generate() of a model with a name, with `analysis` on"
        )
    return [Outputs.of(model, version, found) for (model, version), found in rows.items()]


def few(found: Sequence[Outputs]) -> Iterator[str]:
    """A line for each model with fewer requests than a comparison needs."""
    for one in found:
        if one.requests < LEAST:
            yield f"{one.model}: {counted(one.requests, 'request')}, {LEAST} are needed to compare with it"


class Comparison:
    """Outputs of later requests against a baseline.

    Attributes:
        rows: of each model its outputs, those of the baseline, and the shifts; without a baseline ``None`` and none.
    """

    def __init__(self, rows: Sequence[tuple[Outputs, Outputs | None, list[Shift]]]) -> None:
        self.rows = rows

    @property
    def drifted(self) -> bool:
        """Whether any figure has."""
        return any(shift.drifted for _, _, found in self.rows for shift in found)

    @property
    def verdict(self) -> str:
        """``drift`` if any figure has drifted; else ``undecided`` if a model could not be compared; else ``fine``."""
        if self.drifted:
            return DRIFT
        return FINE if all(found for _, _, found in self.rows) else UNDECIDED

    def as_dict(self) -> dict[str, Any]:
        """The JSON form: ``verdict``, ``drifted``, and for each model its requests and shifts."""
        return {
            "verdict": self.verdict,
            "drifted": self.drifted,
            "models": [
                {
                    "model": now.model,
                    "version": now.version,
                    "requests": now.requests,
                    "baseline": None if before is None else {"version": before.version, "requests": before.requests},
                    "figures": [shift.as_dict() for shift in found],
                }
                for now, before, found in self.rows
            ],
        }

    def lines(self) -> Iterator[str]:
        """The comparison as text."""
        for now, before, found in self.rows:
            named = clean(f"{now.model} {now.version[:12]}".strip())
            if before is None:
                yield f"{named}: not in the baseline"
                continue
            saved = clean(f"baseline {before.version[:12]}".strip())
            yield f"{named}: {counted(now.requests, 'request')}, {saved}: {counted(before.requests, 'request')}"
            if not found:
                yield f"  cannot be compared, too few requests: {LEAST} are needed on each side"
            else:
                drifted = sum(shift.drifted for shift in found)
                yield f"  {counted(drifted, 'figure')} of {len(found)} drifted" if drifted else "  no figure has drifted"
                yield f"        {'':24} {'before':>10}    {'now':>10}"
            for shift in found:
                mark = "DRIFT" if shift.drifted else "     "
                yield f"  {mark} {clean(shift.figure):24} {shift.before:10.4g} -> {shift.now:10.4g}  {_size(shift.deviations)}"


def _size(deviations: float) -> str:
    return f"{deviations:+.2f} standard deviations" if abs(deviations) < 1e6 else "did not vary before"


def compare(baseline: Baseline, found: Sequence[Outputs]) -> Comparison:
    """Compare outputs with a baseline."""
    rows = []
    for now in found:
        before = baseline.of(now.model, now.version)
        rows.append((now, before, [] if before is None else shifts(before, now)))
    return Comparison(rows)
