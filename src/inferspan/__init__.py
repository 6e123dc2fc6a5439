"""inferspan: where did the time, the tokens and the watts go?

``inferspan.instrument(model)`` makes a PyTorch module or transformers model emit OpenTelemetry traces and metrics. Importing this
package loads neither torch nor transformers nor the OpenTelemetry SDK, reads no environment and opens nothing.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .caller import context
    from .capture.inside.results import NonfiniteError
    from .capture.stopping.criterion import stop_on
    from .export.otlp import configure
    from .instrument import Handle, flush, instrument, uninstrument
    from .program.blocks import generation
    from .program.decorators import block_computation, diffusion_step, event_on_return, model_parameters
    from .program.events import event
    from .program.sessions import session
    from .program.stages import method, stage
    from .roofline.costs import Cost, register_cost
    from .settings import Settings, SettingsError
    from .zero_code.loading import instrument_loading

__all__ = [
    "Cost",
    "Handle",
    "NonfiniteError",
    "Settings",
    "SettingsError",
    "__version__",
    "block_computation",
    "configure",
    "context",
    "diffusion_step",
    "event",
    "event_on_return",
    "flush",
    "generation",
    "instrument",
    "instrument_loading",
    "method",
    "model_parameters",
    "register_cost",
    "session",
    "stage",
    "stop_on",
    "uninstrument",
]

_HOMES = {
    "Cost": "roofline.costs",
    "Handle": "instrument",
    "NonfiniteError": "capture.inside.results",
    "Settings": "settings",
    "SettingsError": "settings",
    "block_computation": "program.decorators",
    "configure": "export.otlp",
    "context": "caller",
    "diffusion_step": "program.decorators",
    "event": "program.events",
    "event_on_return": "program.decorators",
    "flush": "instrument",
    "generation": "program.blocks",
    "instrument": "instrument",
    "instrument_loading": "zero_code.loading",
    "method": "program.stages",
    "model_parameters": "program.decorators",
    "register_cost": "roofline.costs",
    "session": "program.sessions",
    "stage": "program.stages",
    "stop_on": "capture.stopping.criterion",
    "uninstrument": "instrument",
}


def __getattr__(name: str) -> Any:
    """Load what a name needs when it is first used."""
    if name == "__version__":
        from .version import version

        return version()
    if name == "graph":
        import importlib

        return importlib.import_module(".graph", __name__)
    if name in _HOMES:
        import importlib

        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, also those that are not loaded yet, and what every module has."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__") and name.endswith("__"))})


class _Package(ModuleType):
    """``inferspan.instrument`` is the function, also after an import of the module of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Called by Python when it has imported a submodule."""
        super().__setattr__(name, value.instrument if name == "instrument" and isinstance(value, ModuleType) else value)

    def __reduce__(self) -> Any:
        # cloudpickle (Ray, Dask, Spark) knows exact modules only, and a function that is sent holds the modules that it uses.
        return __import__, (self.__name__,)


sys.modules[__name__].__class__ = _Package
