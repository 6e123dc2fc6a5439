"""Training and eval mode of the modules whose operations a graph holds: it keeps those of the mode in which it was traced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from ..errors import TraceError
from ..selection import inside

_MOST = 3


def modes(model: nn.Module, leaves: Iterable[str]) -> dict[str, bool]:
    """Whether each module is in training mode, by path, without leaves, which are called and follow their own mode."""
    away = tuple(leaves)
    return {path: module.training for path, module in model.named_modules() if not any(inside(path, leaf) for leaf in away)}


def check_modes(model: nn.Module, traced: Mapping[str, bool]) -> None:
    """Refuse a model in another mode than in its trace.

    Raises:
        TraceError: a module is in another mode.
    """
    modules = dict(model.named_modules())
    changed = [path for path, training in traced.items() if path in modules and modules[path].training != training]
    if changed:
        then, now = ("training", "eval") if traced[changed[0]] else ("eval", "training")
        names = ", ".join(path or type(model).__name__ for path in changed[:_MOST])
        more = f" and {len(changed) - _MOST} more" if len(changed) > _MOST else ""
        raise TraceError(
            f"traced in {then} mode, and now in {now} mode: {names}{more}. The graph keeps dropout and the like of the trace: "
            f"trace again, or restore the mode",
            "state",
        )
