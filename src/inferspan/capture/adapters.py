"""The adapters (LoRA and its like) that a call runs with, as PEFT and transformers switch them.

The state is read from the layers themselves, because every way to switch or disable an adapter ends there. Layers that should agree and
do not give no value.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from inferspan.guard import pass_on, read_attribute

__all__ = ["ActiveAdapters", "call_adapters"]

LOOKED_AT = 16
"""Layers that are asked at each call, evenly spread over the model."""
_BASE = "__base__"
"""PEFT's name for rows of a batch that run without an adapter."""


def call_adapters(kwargs: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The adapters that the caller chooses row by row (PEFT's ``adapter_names``); ``None`` if it does not."""
    names = kwargs.get("adapter_names")
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        return None
    return tuple(name for name in dict.fromkeys(names) if name != _BASE)


def _names(value: Any) -> tuple[str, ...]:
    value = value() if callable(value) else value
    if isinstance(value, str):
        return (value,)
    return tuple(str(name) for name in value) if isinstance(value, list | tuple | set) else ()


def _configured(model: nn.Module) -> bool:
    """Whether a model has, or has had, adapters."""
    return "peft_config" in model.__dict__ or any("peft_config" in kind.__dict__ for kind in type(model).__mro__)


def _configurations(model: nn.Module) -> tuple[str, ...]:
    known = read_attribute(model, "peft_config")
    return tuple(map(str, known)) if isinstance(known, Mapping) else ()


class ActiveAdapters:
    """Reads the active adapters of one model; looks for its adapter layers only when the set of adapters has changed."""

    def __init__(self) -> None:
        self._known: tuple[str, ...] | None = None
        self._layers: list[tuple[weakref.ref[nn.Module], str, weakref.ref[nn.Module]]] = []

    def read(self, model: nn.Module) -> tuple[str, ...]:
        """Names of the adapters that are active now, in order; empty without one, and where the layers disagree."""
        if not _configured(model):
            return ()
        if read_attribute(model, "_adapters_disabled", False) is True:
            return ()
        known = _configurations(model)
        if known != self._known or not self._layers or not self._in_place():
            self._layers, self._known = _adapter_layers(model), known
        layers = [layer for _, _, reference in self._layers if (layer := reference()) is not None]
        if layers:
            return _agreed(layers)
        return self._of_model(model)

    def _in_place(self) -> bool:
        """Whether the layers are still parts of the model."""
        for parent, name, reference in self._layers:
            above, layer = parent(), reference()
            if above is None or layer is None or above._modules.get(name) is not layer:
                return False
        return True

    @staticmethod
    def _of_model(model: nn.Module) -> tuple[str, ...]:
        """Adapters that the model itself names: prompt learning has no layers, and other libraries have layers of their own."""
        if _had_layers(model):
            # PEFT's layers have been taken out: merged into the weights, or unloaded.
            return ()
        try:
            return _names(read_attribute(model, "active_adapters"))
        except Exception as error:  # transformers raises where no adapter is loaded
            pass_on(error)
            return ()


def _had_layers(model: nn.Module) -> bool:
    """Whether the adapters are PEFT's and of the kind that has layers; prompt learning has none."""
    known, kind = read_attribute(model, "peft_config"), getattr(sys.modules.get("peft.config"), "PeftConfigMixin", None)
    if kind is None or not isinstance(known, Mapping):
        return False
    return any(isinstance(config, kind) and not read_attribute(config, "is_prompt_learning", False) for config in known.values())


def _layer_class() -> Any:
    return getattr(sys.modules.get("peft.tuners.tuners_utils"), "BaseTunerLayer", None)


def _adapter_layers(model: nn.Module) -> list[tuple[weakref.ref[nn.Module], str, weakref.ref[nn.Module]]]:
    """Some adapter layers, evenly spread, each with the module that holds it."""
    kind = _layer_class()
    if kind is None:
        return []
    children = ((parent, name, child) for parent in model.modules() for name, child in parent.named_children())
    found = [one for one in children if issubclass(type(one[2]), kind)]
    step = max(1, len(found) // LOOKED_AT)
    return [(weakref.ref(parent), name, weakref.ref(child)) for parent, name, child in found[::step][: LOOKED_AT + 1]]


def _agreed(layers: Iterable[Any]) -> tuple[str, ...]:
    states: list[tuple[str, ...]] = []
    for layer in layers:
        if read_attribute(layer, "_disable_adapters", False):
            states.append(())
            continue
        # Merged weights count, in addition to active adapters.
        states.append(_names(read_attribute(layer, "merged_adapters", ())) or _names(read_attribute(layer, "active_adapters", ())))
    if not all(states) and any(states):
        return ()
    return tuple(dict.fromkeys(name for state in states for name in state))
