"""Whether the outputs of the latest requests have drifted from a baseline, request by request.

In: the attributes of each request that ends. Out: the shift of each figure, and a finding in the request with which one begins to drift.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from inferspan import semconv
from inferspan.setting_checks import SettingsError, warn_once
from inferspan.settings import Settings

from .baseline import LEAST, Baseline, BaselineError, Outputs, Shift, figures_of_request, shifts
from .findings import Finding

__all__ = ["Drift", "DriftMonitor", "monitor_for"]

WINDOW = 100
"""Latest requests of a model that are compared."""
_NOTHING: Mapping[str, float] = {}


class Drift(NamedTuple):
    """What one request has shown.

    ``shifts``: standard deviations by figure, once there are enough requests; ``finding``: of the figures that begin to drift with it.
    """

    shifts: Mapping[str, float] = _NOTHING
    finding: Finding | None = None


class _Model:
    def __init__(self) -> None:
        self.rows: deque[tuple[dict[str, float], tuple[str, ...]]] = deque(maxlen=WINDOW)
        self.drifting: set[str] = set()
        self.answers: deque[tuple[object, Drift]] = deque(maxlen=64)


class DriftMonitor:
    """Follows the outputs of models that a baseline has."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self._models: dict[tuple[str, str], _Model] = {}
        self._lock = threading.Lock()

    def renew_lock(self) -> None:
        """Replace the lock in a forked child: the thread that held it does not exist there."""
        self._lock = threading.Lock()

    def look(self, request: object, model: str | None, version: str, attributes: Mapping[str, Any], kinds: Sequence[str]) -> Drift:
        """Add a request, once; asked again of the latest ones it gives the same answer.

        Args:
            request: identifies it.
            model: name of the model.
            version: commit of its repository, empty if it is not known.
            attributes: of the request.
            kinds: of its findings.
        """
        before = None if model is None else self._baseline.of(model, version)
        if before is None:
            return Drift()
        with self._lock:
            known = self._models.setdefault((before.model, version), _Model())
            for earlier, answer in known.answers:
                if earlier is request:
                    return answer
            known.rows.append((figures_of_request(attributes), tuple(kinds)))
            answer = self._compare(known, before)
            known.answers.append((request, answer))
            return answer

    @staticmethod
    def _compare(known: _Model, before: Outputs) -> Drift:
        if len(known.rows) < LEAST:
            return Drift()
        found = shifts(before, Outputs.of(before.model, before.version, known.rows))
        drifting = {one.figure for one in found if one.drifted}
        begun = [one for one in found if one.figure in drifting - known.drifting]
        known.drifting = drifting
        return Drift({one.figure: one.deviations for one in found}, _finding(begun, len(known.rows), before) if begun else None)


def _finding(begun: Sequence[Shift], requests: int, before: Outputs) -> Finding:
    worst = begun[0]
    said = (
        f"{worst.figure} {worst.now:.3g} in the last {requests} requests, {worst.before:.3g} in {before.requests} of the baseline:"
        f" {worst.deviations:.2g} standard deviations"
    )
    others = f"; {len(begun) - 1} more figures" if len(begun) > 1 else ""
    return Finding(semconv.EVALUATION_DRIFT, semconv.FINDING_DRIFT, worst.deviations, said + others)


def monitor_for(settings: Settings) -> DriftMonitor | None:
    """The monitor that the setting ``baseline`` asks for.

    Raises:
        SettingsError: an argument names a file that is no baseline; of the environment it is a warning.
    """
    if settings.baseline is None or not settings.analysis:
        return None
    try:
        return DriftMonitor(Baseline.load(Path(settings.baseline)))
    except BaselineError as error:
        variable = settings.source("baseline")
        if variable is None:
            raise SettingsError(f"inferspan setting 'baseline' cannot be used: {error}") from None
        warn_once("%s is ignored: %s", variable, str(error))
        return None
