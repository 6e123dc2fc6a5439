"""The part of a handle that looks inside its model: settings that change while the program runs.

In: calls of the program. Out: settings of the model's instrumentation, which all handles of the model share.
"""

from __future__ import annotations

import fnmatch
from typing import Any

from inferspan import composition
from inferspan.capture.inside.results import NumericsVerdict
from inferspan.settings import Settings
from inferspan.summaries.activations import Activations

__all__ = ["InsideHandle"]


class InsideHandle:
    """Base of ``Handle``."""

    _instrumentation: Any
    _recorder: Any
    _settings: Settings

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        instrumentation = self._instrumentation
        found: Settings = self._settings if instrumentation is None else instrumentation.settings
        return found

    def set(self, **settings: Any) -> None:
        """Change settings from the next request on, for all handles of the model; requests that run keep theirs.

        ``docs/settings.md`` says which settings can change. Where nothing is attached (``enabled=False``, or after ``uninstrument()``) only
        the values are checked.

        Args:
            **settings: single settings, as for ``instrument()``.

        Raises:
            SettingsError: a setting is unknown, wrong or cannot change at run time, or a pattern matches no module. All settings stay as
                they were then.
        """
        instrumentation = self._instrumentation
        if instrumentation is None:
            self._settings = self._settings.switched(settings)
        else:
            instrumentation.switch(settings)

    def activations(self, module: str = "*") -> Activations:
        """Shapes of the recorded modules, and with ``output_stats`` figures of their outputs: of all calls, of the last one, and a history.

        In the order of the model, for calls that were recorded as spans; ``print()`` shows a line for each module with four decimals.
        Figures are of the first floating point tensor of an output and its finite values; std is the population's. At most 4,000 modules.

        Args:
            module: path of a module, or a glob.
        """
        if self._recorder is None:
            return Activations(())
        composition.hand_over()
        return Activations(row for row in self._recorder.recording.modules() if fnmatch.fnmatchcase(row.name, module))

    def numerics(self) -> NumericsVerdict:
        """Whether outputs of modules had NaN or Inf in the requests so far, and where first; needs the setting ``numerics``."""
        instrumentation = self._instrumentation
        if instrumentation is None:
            return NumericsVerdict()
        found: NumericsVerdict = instrumentation.target.engine.inside.numerics.verdict()
        return found
