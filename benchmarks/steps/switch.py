"""Takes what inferspan has put in the way of a decode step off, between two steps of a running request, and puts it back.

In: a model to which nothing is attached yet. Afterwards, whatever instruments it, ``take_off`` leaves a step that runs as without inferspan,
but for the list of stopping criteria, whose method looks at an attribute and says nothing. It stands on internals of ``capture/``.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Switch"]

HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
"""Tables of a module; the first two hold hooks, the others facts about them."""
REPORTS = "_inferspan"
"""What a list of stopping criteria that reports to a request has."""
_MISSING = object()


def _is_ours(thing: object) -> bool:
    return type(thing).__module__.partition(".")[0] == "inferspan"


class Switch:
    """What inferspan has on one model, its modules and its class.

    Args:
        model: as it is without.

    Raises:
        ValueError: something is attached already, or a module was compiled, so that nobody could tell what a plain step is.
    """

    def __init__(self, model: Any) -> None:
        from inferspan.capture.compile.state import SLOT
        from inferspan.capture.generate.wrappers import METHODS

        self._slot = SLOT
        self._kind = type(model)
        self._modules = [*model.modules()]
        self._plain = {name: vars(self._kind).get(name, _MISSING) for name in METHODS}
        if any(SLOT in vars(module) for module in self._modules):
            raise ValueError("a module was compiled, or is being observed")
        if any(hasattr(method, "__inferspan__") for method in self._plain.values()):
            raise ValueError("the class of the model is instrumented already")
        self._criteria: Any = None
        self._off = False
        self._taken: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        """Dictionaries, and the entries that each of them had."""
        self._wrappers: dict[str, Any] = {}

    def watch(self, criteria: Any) -> None:
        """Switch these stopping criteria, those of the running request, as well."""
        self._criteria = criteria

    def take_off(self) -> None:
        """Let the coming steps run without inferspan."""
        if self._off:
            return
        self._off = True
        for module in self._modules:
            if _is_ours(vars(module).get(self._slot)):
                self._take(vars(module), [self._slot])
            hooks = [key for name in HOOKS[:2] for key, hook in getattr(module, name).items() if _is_ours(hook)]
            for name in HOOKS if hooks else ():
                table = getattr(module, name)
                self._take(table, [key for key in hooks if key in table])
        if REPORTS in getattr(self._criteria, "__dict__", {}):
            self._take(vars(self._criteria), [REPORTS])
        for name, plain in self._plain.items():
            method = vars(self._kind).get(name)
            if hasattr(method, "__inferspan__"):
                self._wrappers[name] = method
                if plain is _MISSING:
                    delattr(self._kind, name)
                else:
                    setattr(self._kind, name, plain)

    def put_back(self) -> None:
        """Let the coming steps run with all that was taken off."""
        self._off = False
        for table, entries in self._taken:
            table.update(entries)
        for name, wrapper in self._wrappers.items():
            setattr(self._kind, name, wrapper)
        self._taken, self._wrappers = [], {}

    def forget(self) -> None:
        """Take off, for good, what a request has left that was interrupted while something was off; after an ordinary one that is nothing."""
        self.take_off()
        self._off, self._criteria, self._taken, self._wrappers = False, None, [], {}

    def _take(self, table: dict[Any, Any], keys: list[Any]) -> None:
        self._taken.append((table, {key: table.pop(key) for key in keys}))
