"""How much of ours is on the modules of a model at the moment: hooks, and whatever stands in the place of a ``forward``."""

from __future__ import annotations

from torch import nn

from inferspan.capture.observed_forward import OWNED, ObservedForward

__all__ = ["attached"]


def attached(model: nn.Module) -> dict[str, int]:
    """Number of modules with an observer, by kind: ``forward`` replaced, ``hooks`` registered, ``left`` for keys of ours without one."""
    modules = list(model.modules())
    return {
        "forward": sum(isinstance(one.__dict__.get("forward"), ObservedForward) for one in modules),
        "hooks": sum(
            type(hook).__module__.startswith("inferspan.")
            for one in modules
            for hook in (*one._forward_hooks.values(), *one._forward_pre_hooks.values())
        ),
        "left": sum(OWNED in one.__dict__ and not isinstance(one.__dict__.get("forward"), ObservedForward) for one in modules),
    }
