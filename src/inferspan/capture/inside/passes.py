"""What is followed through whole passes of a model: gradients, and control flow.

In: the settings ``gradients`` and ``control_flow``, and requests. Out: hooks of modules, and what they have found at the end of a request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from inferspan import semconv
from inferspan.capture.compile.state import holds_compiled, is_compiled, is_optimized, may_hook
from inferspan.capture.control_flow.hooks import FlowHook, hooks_of_model
from inferspan.capture.control_flow.log import FlowLog, FlowWatch
from inferspan.capture.gradients.hooks import hooks_of
from inferspan.capture.gradients.state import GradientWatch
from inferspan.capture.modules.selection import select
from inferspan.guard import contain
from inferspan.records import ModuleInfo, RequestEnd
from inferspan.settings import Settings

__all__ = ["PassLog", "PassWatch"]

Entry = tuple[nn.Module, ModuleInfo, nn.Module]


def _selected(root: nn.Module, wanted: Any, setting: str) -> list[Entry]:
    return select(root, wanted, "layer", setting=setting) if wanted != "none" else []


class PassWatch:
    """What is followed in one model.

    Attributes:
        gradients: of its modules.
        flow: its control flow.
    """

    def __init__(self, settings: Settings) -> None:
        self.gradients = GradientWatch(settings)
        self.flow = FlowWatch(settings)
        self._numbers: dict[str, int] = {}
        self._differentiated: dict[str, ModuleInfo] = {}
        self._compiled = False

    @property
    def active(self) -> bool:
        """Whether anything is followed."""
        return self.gradients.active or self.flow.active

    def check(self, root: nn.Module, settings: Settings) -> bool:
        """Whether settings are those in force.

        Raises:
            SettingsError: a pattern matches no module.
        """
        _selected(root, settings.gradients, "gradients")
        _selected(root, settings.control_flow, "control_flow")
        return (settings.gradients, settings.control_flow) == (self.gradients.watched, self.flow.watched)

    def configure(self, settings: Settings) -> None:
        """Follow other modules from the next request on."""
        self.gradients.watched, self.flow.watched = settings.gradients, settings.control_flow

    def entries(self, root: nn.Module) -> list[Entry]:
        """The modules that are followed, as ``select`` returns them; raises ``SettingsError`` as ``check`` does."""
        followed = _selected(root, self.flow.watched, "control_flow")
        differentiated = _selected(root, self.gradients.watched, "gradients")
        self.flow.select(info for _, info, _ in followed)
        self._numbers = {info.name: number for number, (_, info, _) in enumerate(followed)}
        self._differentiated = {info.name: info for _, info, _ in differentiated}
        self._compiled = self.active and any(is_compiled(one) or is_optimized(one) or holds_compiled(one) for one in root.modules())
        return [*followed, *differentiated]

    def wants(self, name: str) -> bool:
        """Whether a module is followed."""
        return name in self._numbers or name in self._differentiated

    def attach(self, module: nn.Module, name: str, engine: Any) -> list[Any]:
        """Hook a module; handles of the hooks."""
        handles: list[Any] = []
        if (number := self._numbers.get(name)) is not None:
            handles.append(module.register_forward_pre_hook(FlowHook(number, engine), with_kwargs=True))
        if (info := self._differentiated.get(name)) is not None:
            handles.extend(hooks_of(module, info, engine))
        return handles

    def attach_model(self, root: nn.Module | None, engine: Any) -> list[Any]:
        """Hook the model itself; handles of the hooks."""
        if not self._numbers or root is None or issubclass(type(root), torch.jit.ScriptModule) or not may_hook(root):
            return []
        return hooks_of_model(root, engine)

    def begin(self, call: Any, step: Callable[[], int | None]) -> PassLog:
        """What the hooks write to in a request; ``step`` returns the number of the open step."""
        return PassLog(self, call, step)

    def take_over(self, other: PassWatch) -> None:
        """Go on with what another one has found."""
        self.gradients.take_over(other.gradients)

    def close(self) -> None:
        """Take the hooks off the graphs that wait."""
        self.gradients.close()

    def forked(self) -> None:
        """Called in a forked child."""
        self.gradients.forked()
        self.flow.forked()

    def unobserved(self, log: PassLog, end: RequestEnd, *, compiled: bool) -> str | None:
        """What was not seen in a request, with that of the request itself."""
        compiled = compiled or self._compiled
        reasons = [end.attributes[semconv.UNOBSERVED]] if semconv.UNOBSERVED in end.attributes else []
        reason = self.gradients.end(log.gradients)
        if reason is not None or (compiled and log.gradients is not None):
            reasons.append(reason or "gradients: compiled")
        if compiled and log.flow is not None:
            reasons.append("control flow: compiled")
        return "; ".join(map(str, reasons)) or None


class PassLog:
    """What was followed in one request.

    Attributes:
        gradients: calls that wait for them; ``None`` without.
        flow: the paths of its passes; likewise.
    """

    def __init__(self, watch: PassWatch, call: Any, step: Callable[[], int | None]) -> None:
        self._watch = watch
        self.step = step
        self.gradients = watch.gradients.begin(call)
        self.flow = FlowLog(watch.flow, call) if watch.flow.active else None

    def returned(self, output: Any) -> None:
        """The model has returned. Contains errors of its own."""
        if self.gradients is not None:
            with contain("gradients"):
                self.gradients.returned(output)

    def read(self) -> None:
        """A step, or the request, has ended."""
        if self.flow is not None and self.step() is None:
            self.flow.close()

    def settle(self, end: RequestEnd, *, compiled: bool) -> RequestEnd:
        """The end of the request with what was found."""
        unobserved = self._watch.unobserved(self, end, compiled=compiled)
        attributes = dict(end.attributes)
        if unobserved is not None:
            attributes[semconv.UNOBSERVED] = unobserved
        if self.flow is None:
            return replace(end, attributes=attributes)
        return replace(end, attributes={**attributes, **self.flow.attributes()}, events=(*end.events, *self.flow.events))
