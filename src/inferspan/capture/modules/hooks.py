"""Observers of the submodules of a model, attached only while a recorded forward pass runs; each module call appends one row.

By default an ``ObservedCall`` occupies the module's ``_compiled_call_impl`` slot. Where torch would bypass the slot, or using it is unsafe,
a pair of forward hooks is registered instead. Both write to the log of the request that runs on their thread and do nothing without one.
Attaching is counted over the recorded requests.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import nn

from inferspan.capture.compile.state import SlotObserver, holds_compiled, is_compiled, is_optimized
from inferspan.capture.compile.watch import compiling
from inferspan.capture.data_flow.hooks import Flows
from inferspan.capture.inside.functions import ModuleFunction
from inferspan.capture.inside.hooks import Inside
from inferspan.guard import contain
from inferspan.records import ModuleInfo
from inferspan.setting_checks import warn_once
from inferspan.settings import Settings

from .groups import FlowGroup, Held, InsideGroup, Observed, in_hooks_of_a_failure, iterates_hooks
from .patterns import matches, paths_of
from .recorder import same_structure
from .routers import UNREADABLE, Router, Routing, find_router, has_experts
from .selection import select, select_stages, walk
from .stages import Wanted

__all__ = ["STAGES_COMPILED", "ModuleObservers", "Observed", "in_hooks_of_a_failure", "iterates_hooks"]

STAGES_COMPILED = "stages: compiled"


def _forward_of(module: nn.Module) -> Any:
    """``forward`` of a module's class, ``None`` if the module has one of its own."""
    return None if "forward" in module.__dict__ else getattr(type(module), "forward", None)


class _Wanted(NamedTuple):
    """Modules that get spans: ``Settings.modules`` and ``module_span_name``, and whether routers of experts are among them."""

    modules: str | Sequence[Any]
    style: str
    routers: bool


def _wanted(settings: Settings) -> _Wanted:
    steps = settings.steps != "none"
    return _Wanted(settings.modules if steps else "none", settings.module_span_name, settings.routing and steps)


class ModuleObservers:
    """Observers of the selected submodules and of the stages of one model, attached while at least one recorded call needs them.

    Modules and stages are attached apart: stages are observed in every pass that may run them, modules in sampled passes only.
    """

    def __init__(self, root: nn.Module, settings: Settings, stages: Wanted = ()) -> None:
        self._root = weakref.ref(root)
        self._wanted = _wanted(settings)
        self.routing: Routing | None = None
        """The routers of experts, if those are observed."""
        self._stages = stages
        self._lock = threading.Lock()
        self._closed = False
        self.groups = (Observed(self), Observed(self), InsideGroup(self), FlowGroup(self))
        self._of_modules, self._of_stages, self._of_inside, self._of_flow = self.groups
        self.flows = Flows(root, settings.data_flow)
        self.inside = Inside(root, settings)
        self._above: list[tuple[weakref.ref[nn.Module], bool, list[int], Any]] = []
        """Modules that may have children: whether each was compiled, the identities of its children, and its class's ``forward``."""
        self._parents: list[Any] = []
        self.compiled_inside = False
        """Whether something was compiled while a request of this model ran: it may have run modules without observers."""
        self._unobserved: str | None = None
        self._stages_compiled = False
        self.structure = 0
        """Rises when modules have been added, taken out or replaced."""
        self._changed = False
        """Whether other modules are wanted than are selected."""
        self.refresh()

    @property
    def root(self) -> nn.Module | None:
        """The model; ``None`` once it has been collected."""
        return self._root()

    @property
    def unobserved(self) -> str | None:
        """Why some modules cannot be observed; ``None`` if all can."""
        inside = "modules: compiled in parts" if self.compiled_inside and self.expected else None
        hooked = "modules: with your hooks" if self._of_modules.refused else None
        fused = "modules: fused" if self._of_modules.fused else None
        experts = UNREADABLE if self.routing is not None and self.routing.unread else None
        watched = f"{'numerics' if self.inside.looks else 'memory'}: some modules" if self._of_inside.refused else None
        flow = "data flow: some modules" if self._of_flow.refused else None
        head = "top_k_positions: no language head" if self.inside.headless else None
        rest = (fused, experts, watched, flow, head, self.stages_unobserved)
        return "; ".join(filter(None, (self._unobserved or inside, hooked, *rest))) or None

    def fused_modules(self) -> set[int]:
        """Identities of modules that torch runs as one operation while none of them has a hook: others would give other last bits."""
        root = self._root()
        layers = [] if root is None else [one for one in root.modules() if issubclass(type(one), nn.TransformerEncoderLayer)]
        return {id(part) for layer in layers if not layer.training for part in layer.modules()}

    @property
    def stages_unobserved(self) -> str | None:
        """Why some stages cannot be observed."""
        if self._stages_compiled:
            return STAGES_COMPILED
        return "stages: hooked" if self._of_stages.refused else None

    @property
    def expected(self) -> int:
        """Module calls of one forward pass, if each selected module is called once."""
        return len(self._of_modules.selection)

    @property
    def has_stages(self) -> bool:
        """Whether the model has stages, observed or not."""
        return self._stages_compiled or bool(self._of_stages.selection)

    @property
    def stages(self) -> int:
        """Stages that can be observed."""
        return len(self._of_stages.selection)

    @property
    def hooks(self) -> int:
        """Observers that are on modules and stages now."""
        return sum(group.hooks for group in self.groups)

    @property
    def module_names(self) -> list[str]:
        """Paths of the selected modules."""
        return self._of_modules.names

    @property
    def stage_names(self) -> list[str]:
        """Paths of the stages that can be observed."""
        return self._of_stages.names

    def configure(self, settings: Settings) -> None:
        """Select by other settings from the next request on.

        Raises:
            SettingsError: a name pattern matches no module.
        """
        wanted, root = _wanted(settings), self._root()
        with self._lock:
            if root is not None:
                select(root, wanted.modules, wanted.style, routers=wanted.routers)
                self.inside.check(root, settings)
            differs = self.inside.differs(settings) or settings.data_flow != self.flows.wanted
            self._changed = self._changed or wanted != self._wanted or differs
            self._wanted, self.flows.wanted = wanted, settings.data_flow
            self.inside.configure(settings)

    def refresh(self) -> None:
        """Select anew.

        Raises:
            SettingsError: a name pattern matches no module.
        """
        self.structure += 1
        self._changed = False
        root = self._root()
        if root is None:
            return
        modules, style, routers = self._wanted
        stages, hidden = select_stages(root, self._stages)
        self._of_stages.select(stages)
        entries = select(root, modules, style, {id(module) for module, _, _ in stages}, routers=routers)
        self._of_modules.select(entries)
        self._of_inside.select(self.inside.entries(root))
        self.flows.active = self.flows.wanted != "none"
        self._of_flow.select([*entries, *stages] if self.flows.active else [])
        self.routing = self._routing_of(root, entries) if routers else None
        self._above = [
            (weakref.ref(module), is_compiled(module), [*map(id, module._modules.values())], _forward_of(module))
            for module in root.modules()
            if module._modules or module is root or not type(module).__module__.startswith("torch.")
        ]
        self._parents = [entry for group in self.groups for entry in group.by_parent]
        self._unobserved = self._what_is_compiled(root)
        above = is_compiled(root) or (not is_optimized(root) and holds_compiled(root))
        self._stages_compiled = hidden or (bool(stages) and above)

    @staticmethod
    def _routing_of(root: nn.Module, entries: Iterable[tuple[nn.Module, ModuleInfo, nn.Module]]) -> Routing:
        found: dict[str, Router] = {}
        for module, info, parent in entries:
            router = find_router(info.name.rpartition(".")[2], module, parent)
            if router is not None:
                found[info.name] = router
        return Routing(found, hidden=not found and has_experts(root))

    def _what_is_compiled(self, root: nn.Module) -> str | None:
        if self._wanted.modules == "none":
            return None
        if is_optimized(root):
            # Its calls are compiled and have `inferspan.unobserved`; generate() of the model in it runs that model as it is.
            root = root._modules["_orig_mod"] or root
        if is_compiled(root):
            return "modules: compiled"
        compiled = any(is_compiled(module) or is_optimized(module) or holds_compiled(module) for module in root.modules())
        return "modules: compiled in parts" if compiled else None

    def prepare(self) -> None:
        """Select again if the structure has changed or a part was compiled since the last request."""
        with self._lock:
            if self._is_current():
                return
            if any(group.users for group in self.groups):
                self.structure += 1  # the selection waits for the requests that use it
                return
            with contain("module selection"):
                self.refresh()

    def _is_current(self) -> bool:
        if self._changed:
            return False
        if same_structure(self._above, self._parents, SlotObserver):
            return True
        for reference, compiled, children, _ in self._above:
            module = reference()
            if module is None or is_compiled(module) is not compiled or [*map(id, module._modules.values())] != children:
                return False
        return all(group.is_current() for group in self.groups)

    def acquire(self, held: Held = None) -> None:
        """Attach to the modules, unless another recorded call has done so; ``held`` as for the groups, also below."""
        with self._lock:
            if not self._closed:
                self._of_modules.acquire(held)
                if self.flows.active:
                    self._of_flow.acquire(held)

    def acquire_stages(self, held: Held = None) -> None:
        """Attach to the stages, unless another recorded call has done so."""
        with self._lock:
            if self._closed:
                return
            # What follows tensors comes after the observers, whose number of a call it takes.
            again = self._of_flow.attached and not self._of_stages.users
            if again:
                self._of_flow.detach()
            self._of_stages.acquire(held)
            if again:
                self._of_flow.attach()

    def add_function(self, function: ModuleFunction) -> None:
        """Run a function at modules from the next request on; warns where none matches."""
        root = self._root()
        if root is not None:
            found, paths = walk(root), paths_of(root)
            function.modules = tuple(
                path for path, module, _ in found if matches(path, module, function.pattern, "handle.on_module()", paths)
            )
        with self._lock:
            self.inside.functions.append(function)
            self._changed = True
        if root is not None and not function.modules:
            warn_once("handle.on_module(%r): no module that can be observed matches: %s will not run", function.pattern, function.name)

    def remove_function(self, function: ModuleFunction) -> None:
        """Run it no more."""
        with self._lock:
            if function in self.inside.functions:
                self.inside.functions.remove(function)
                self._changed = True

    def acquire_inside(self, held: Held = None) -> None:
        """Attach what looks at outputs in every step, unless another recorded call has done so."""
        with self._lock:
            if not self._closed:
                self._of_inside.acquire(held)

    def hook_instead(self, module: nn.Module) -> None:
        """See ``InsideGroup.hook_instead``; the lock is held."""
        self._of_inside.hook_instead(module)

    def release_inside(self, held: Held = None) -> None:
        """Detach it, if no other recorded call needs it."""
        with self._lock:
            self._of_inside.release(held)

    def release_held(self, held: list[Observed]) -> None:
        """Release what a call that ends has acquired and, because of an interrupt, not released."""
        with self._lock:
            while held:
                held[-1].release(held)

    def compilation_begins(self) -> None:
        """A compilation begins, perhaps in the middle of a pass: detach everything, so that Dynamo does not see it."""
        with self._lock:
            for group in self.groups:
                if group.attached:
                    group.detach()

    def compilation_ends(self) -> None:
        """Attach again, for the rest of the interrupted pass."""
        with self._lock:
            for group in self.groups:
                if group.users and not self._closed:
                    group.attach()

    def scripting(self, *, begins: bool) -> None:
        """TorchScript would compile hooks: detach, or attach again."""
        (self.compilation_begins if begins else self.compilation_ends)()

    def release(self, held: Held = None) -> None:
        """Detach from the modules, if no other recorded call needs the observers."""
        with self._lock:
            if self._of_flow.users:
                self._of_flow.release(held)
            self._of_modules.release(held)

    def release_stages(self, held: Held = None) -> None:
        """Detach from the stages, if no other recorded call needs the observers."""
        with self._lock:
            self._of_stages.release(held)

    def close(self) -> None:
        """Detach everything, for good."""
        self._closed = True
        self.close_in_child()
        self.inside.passes.close()
        compiling.leave(self)

    def forked(self) -> None:
        """Called in a forked child, where no thread is left to release the lock."""
        self._lock = threading.Lock()
        self.inside.forked()
        self.flows.forked()

    def close_in_child(self) -> None:
        """Detach the observers of requests on other threads of the parent: those threads do not run in a forked child."""
        with self._lock:
            for group in self.groups:
                group.users = 0
                group.detach()
