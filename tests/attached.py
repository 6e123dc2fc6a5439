"""How much of ours is on the modules of a model at the moment: hooks, and whatever stands in the place of a ``forward``."""

from __future__ import annotations

from torch import nn

from inferspan.capture.observed_forward import OWNED, ObservedForward

__all__ = ["attached"]


def attached(model: nn.Module) -> dict[str, int]:
    """Number of modules with an observer, by kind: ``forward`` replaced or ``hooks`` registered; and ``left``, with a key of ours only."""
    modules = list(model.modules())
    return {
        "forward": sum(isinstance(one.__dict__.get("forward"), ObservedForward) for one in modules),
        "hooks": sum(
            any(type(hook).__module__.startswith("inferspan.") for hook in (*one._forward_hooks.values(), *one._forward_pre_hooks.values()))
            for one in modules
        ),
        "left": sum(OWNED in one.__dict__ and not isinstance(one.__dict__.get("forward"), ObservedForward) for one in modules),
    }
