"""The entry point of ``opentelemetry-instrument``, which loads it in each Python process before the program begins.

It needs the package opentelemetry-instrumentation, which that command comes with.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, make_dataclass
from typing import Any

try:
    from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined,unused-ignore]
except ImportError as error:
    raise ImportError("inferspan.zero_code.Instrumentor needs pip install 'inferspan[zero-code]'") from error

from inferspan.settings import Settings

from .activation import activate, deactivate

__all__ = ["Configuration", "Instrumentor"]

PROVIDERS = ("tracer_provider", "meter_provider", "logger_provider")
Configuration = make_dataclass("Configuration", [(item.name, Any, None) for item in fields(Settings)])
"""Options in a declarative configuration: the settings, those that are not given excepted."""


class Instrumentor(BaseInstrumentor):
    """Observes every model of transformers, diffusers and sentence-transformers that the program builds and calls.

    ``instrument()`` takes settings and ``tracer_provider``, ``meter_provider``, ``logger_provider``; it raises ``SettingsError`` for a
    setting that is unknown or wrong. ``uninstrument()`` takes everything off again.
    """

    configuration = Configuration

    def instrumentation_dependencies(self) -> Collection[str]:
        """Nothing that must be there now: what the program imports later is looked at then."""
        return ()

    def _instrument(self, **options: Any) -> None:
        options.pop("skip_dep_check", None)
        options.pop("raise_exception_on_conflict", None)
        providers = {name: options.pop(name, None) for name in PROVIDERS}
        activate(options, **providers)

    def _uninstrument(self, **_: Any) -> None:
        deactivate()
