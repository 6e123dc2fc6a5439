"""Zero code: every model that a program builds and calls is instrumented, and the program is not changed.

``opentelemetry-instrument python app.py`` loads :class:`Instrumentor`, ``inferspan run app.py`` starts the program with ``bootstrap`` on
its path. Neither imports torch: classes are patched when the program has imported them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .activation import ZeroCode, activate, deactivate
    from .instrumentor import Instrumentor as Instrumentor

__all__ = ["ZeroCode", "activate", "deactivate"]


def __getattr__(name: str) -> Any:
    """Load what a name needs; ``Instrumentor`` needs the package opentelemetry-instrumentation, nothing else here does."""
    if name != "Instrumentor" and name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(".instrumentor" if name == "Instrumentor" else ".activation", __name__), name)
