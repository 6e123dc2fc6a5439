"""What of ours is on a model at this moment, as plain values."""

from __future__ import annotations

from typing import Any

from torch import nn

from inferspan.capture.compile.state import SLOT, SlotObserver

from .hooks import ModuleObservers

__all__ = ["attached_to", "root_hooks"]


def attached_to(model: nn.Module | None, engine: ModuleObservers) -> dict[str, Any]:
    """Paths of the submodules, of those that are selected and of the stages, and the number of observers on them and on the model."""
    return {
        "names": [] if model is None else [name for name, _ in model.named_modules() if name],
        "modules": engine.module_names,
        "stages": engine.stage_names,
        "hooks": engine.hooks,
        "root_hooks": 0 if model is None else root_hooks(model),
    }


def root_hooks(model: nn.Module) -> int:
    """Observers on a model itself: in the slot of its compiled call, or hooks."""
    slot = issubclass(type(model.__dict__.get(SLOT)), SlotObserver)
    hooks = (*model._forward_hooks.values(), *model._forward_pre_hooks.values())
    return slot + sum(type(hook).__module__.startswith("inferspan.") for hook in hooks)
