"""How much of ours is on the modules of a model at the moment: hooks, and what stands where torch looks for a compiled call."""

from __future__ import annotations

from torch import nn

from inferspan.capture.compile.state import SLOT
from inferspan.capture.modules.observer import ObservedCall

__all__ = ["attached"]


def attached(model: nn.Module) -> dict[str, int]:
    """Number of modules with an observer, by kind: in the ``slot`` of a compiled call or ``hooks`` registered; and ``left``, with something else of ours."""
    modules = list(model.modules())
    return {
        "slot": sum(isinstance(one.__dict__.get(SLOT), ObservedCall) for one in modules),
        "hooks": sum(
            any(type(hook).__module__.startswith("inferspan.") for hook in (*one._forward_hooks.values(), *one._forward_pre_hooks.values()))
            for one in modules
        ),
        "left": sum(
            any(key != SLOT and ("inferspan" in key or type(value).__module__.startswith("inferspan.")) for key, value in vars(one).items())
            for one in modules
        ),
    }
