"""The part of a handle that looks inside its model: settings that change while the program runs.

In: calls of the program. Out: settings of the model's instrumentation, which all handles of the model share.
"""

from __future__ import annotations

from typing import Any

from inferspan.settings import Settings

__all__ = ["InsideHandle"]


class InsideHandle:
    """Base of ``Handle``."""

    _instrumentation: Any
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
