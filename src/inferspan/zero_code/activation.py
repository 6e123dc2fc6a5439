"""Zero code, switched on and off: import hooks, patches of libraries and the models they find, put together.

In: options and providers. Out: a :class:`ZeroCode` that ``remove()`` takes off again. torch and transformers are imported by the program
or not at all.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from inferspan.capture.passes.imports import ImportWatch
from inferspan.guard import contain
from inferspan.setting_checks import warn_once
from inferspan.settings import Settings, environment_name

from .candidates import Candidates
from .loading import LoadingHandle, observe_loading
from .patches import Patches
from .patterns import Patterns

__all__ = ["ZeroCode", "activate", "active", "deactivate"]

LAUNCHERS = ("torch.distributed.", "accelerate.")
"""Programs that start those which run models."""
_lock = threading.RLock()
_active: ZeroCode | None = None


class ZeroCode:
    """Observes every model of the known libraries that the program builds and calls.

    Args:
        settings: of every model.
        providers: ``tracer_provider``, ``meter_provider``, ``logger_provider``; the global ones where there is none.

    Raises:
        SettingsError: an option is unknown or wrong.
    """

    def __init__(self, settings: Settings, providers: Mapping[str, Any]) -> None:
        self._include, self._exclude = Patterns(settings.include), Patterns(settings.exclude)
        self._providers = {name: provider for name, provider in providers.items() if provider is not None}
        self.candidates = Candidates(settings, self._instrument, self._include, self._exclude)
        self._settings = settings
        self._loading: LoadingHandle | None = None
        self._set_up = False
        self._watch = ImportWatch()
        self._patches = Patches(
            self.candidates,
            self._watch,
            self._include,
            content=settings.capture_content != "NO_CONTENT",
            methods=settings.methods,
        )

    def install(self) -> None:
        """Begin; models that are called for the first time from now on are observed."""
        self._watch.install()
        self._patches.install()
        self._loading = observe_loading(self._settings, self._providers.get("tracer_provider"), self._before_a_load)
        self._watch.after("inferspan.instrument", self._follow)
        self._watch.after("inferspan.composition", self._keep_file)
        if self._include or self._exclude:
            atexit.register(self.tell_unused)

    def remove(self) -> None:
        """Take everything off all classes and models, those excepted that the program has instrumented itself."""
        atexit.unregister(self.tell_unused)
        self._watch.remove()
        if self._loading is not None:
            self._loading.uninstrument()
        self.candidates.close()
        self._patches.remove()
        composition: Any = sys.modules.get("inferspan.instrument")
        if composition is not None and composition.automatic is self.candidates:
            composition.automatic = None
        exporting: Any = sys.modules.get("inferspan.composition")
        if exporting is not None and exporting.always is self._settings:
            exporting.always = None

    def forked(self) -> None:
        """Called in a forked child."""
        self.candidates.forked()
        self._patches.forked()

    def _follow(self, composition: Any) -> None:
        """Hear of the models that the program instruments itself."""
        composition.automatic = self.candidates

    def _keep_file(self, composition: Any) -> None:
        """Have our session file written also where the program names one of its own."""
        composition.always = self._settings

    def _before_a_load(self) -> None:
        """Set up the destinations, as the first model that is instrumented would."""
        if not self._set_up:
            self._set_up = True
            from inferspan.composition import set_up_export

            given = self._providers.get
            set_up_export(self._settings, (given("tracer_provider"), given("meter_provider"), given("logger_provider")))

    def _instrument(self, model: Any, settings: Settings) -> Any:
        from inferspan.instrument import instrument

        return instrument(model, settings=settings, **self._providers)

    def tell_unused(self) -> None:
        """Warn once of patterns that have matched nothing, in a process that runs models."""
        if not self.candidates.decided and not _is_the_program():
            return
        for name, patterns in (("include", self._include), ("exclude", self._exclude)):
            if patterns.unused:
                found = ", ".join(patterns.unused)
                warn_once("%s: no model matches %s; patterns are of class names and of names of models", environment_name(name), found)


def _is_the_program() -> bool:
    """Whether this process is one that was to run models: torch is loaded, and it neither starts nor serves others that do."""
    main = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "")
    parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", lambda: None)
    return "torch" in sys.modules and parent() is None and not main.startswith(LAUNCHERS)


def activate(options: Mapping[str, Any] | None = None, **providers: Any) -> ZeroCode:
    """Switch zero code on, unless it is on.

    Args:
        options: single settings, stronger than every other source.
        providers: ``tracer_provider``, ``meter_provider``, ``logger_provider``; default the global ones.

    Returns:
        What is on now; with other options if it was on before.

    Raises:
        SettingsError: an option is unknown or wrong.
    """
    global _active
    with _lock:
        if _active is None:
            settings = Settings.resolve(options)
            if "training" not in (options or {}) and settings.source("training") is None:
                settings = settings.override({"training": False})
            made = ZeroCode(settings, providers)
            if settings.enabled:
                made.install()
            _active = made
        return _active


def active() -> ZeroCode | None:
    """What is on now."""
    return _active


def deactivate() -> None:
    """Switch it off, and take everything off again."""
    global _active
    with _lock:
        found, _active = _active, None
    if found is not None:
        with contain("uninstrument"):
            found.remove()


def _forked() -> None:
    global _lock
    _lock = threading.RLock()
    if _active is not None:
        _active.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
