"""Groups of modules that are observed together, and what is attached to them."""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn

from inferspan.capture.compile.state import SLOT, may_hook
from inferspan.capture.compile.watch import compiling
from inferspan.capture.data_flow import hooks as data_flow
from inferspan.capture.inside.attaching import WatchHook, attach
from inferspan.records import ModuleInfo

from .hook_pair import CopiedAway, EnterHook, ExitHook
from .observer import ObservedCall, can_observe
from .recorder import IN_C, attach_callers, current, detach_callers
from .stages import device_of, with_device

__all__ = ["FlowGroup", "Held", "InsideGroup", "Observed", "in_hooks_of_a_failure", "iterates_hooks"]


def _end_of_normal_path() -> int:
    """Last line of the normal path in ``_call_impl``, 0 if that is another function.

    Up to torch 2.5 both paths are one function, where the variable of the loop over the hooks is still set long after the loop.
    """
    implementation = getattr(nn.Module._call_impl, "__code__", None)
    if implementation is None:  # replaced by other code
        return 0
    last = [one.offset for one in dis.get_instructions(implementation) if one.argval == "_maybe_warn_non_full_backward_hook"]
    return max((line or 0 for offset, line in dis.findlinestarts(implementation) if last and offset <= last[-1]), default=0)


_NORMAL_PATH = _end_of_normal_path()


def in_hooks_of_a_failure(frame: FrameType) -> bool:
    """Whether ``frame`` is torch's call of a module that failed, where torch iterates the table of hooks itself.

    On the normal path it iterates a snapshot.
    """
    return frame.f_code is getattr(nn.Module._call_impl, "__code__", None) and frame.f_lineno > _NORMAL_PATH and "hook" in frame.f_locals


def iterates_hooks() -> bool:
    """Whether torch iterates over the hooks of a failed call on this thread: their tables must not change meanwhile."""
    if sys.exc_info()[1] is None:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if in_hooks_of_a_failure(frame):
            return True
        frame = frame.f_back
    return False


Held = list[Any] | None
"""Groups that a recorded call has acquired and not released; ``None`` where nobody keeps them."""


class Observed:
    """Some of the selected modules, and what is attached to them; the lock of ``ModuleObservers`` is held around each call."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.users = 0
        self.selection: list[tuple[weakref.ref[nn.Module], ModuleInfo, weakref.ref[nn.Module], bool]] = []
        self._placed: dict[ModuleInfo, ModuleInfo] = {}
        self._known: dict[tuple[int, torch.device | None], ModuleInfo] = {}
        """Those of the selection by identity: the hash of one goes over all of its fields."""
        self.refused = self.fused = False
        """Whether some of the modules got no hooks when this was attached last: they have others, or are run as one operation."""
        self._handles: list[Any] = []
        self._observed: list[ObservedCall] = []
        self._below: dict[int, ObservedCall] = {}
        """By the identity of an observer, the one that was in the slot before it, and only looks at outputs."""
        self._spare: dict[int, ObservedCall] = {}
        """Observers that are off their modules, by the identity of their facts: they know inputs and outputs of the last calls."""
        self.by_parent: list[tuple[weakref.ref[nn.Module], list[str], list[weakref.ref[nn.Module]]]] = []
        """The selection by parent: the names of its children, and these."""

    def select(self, entries: Iterable[tuple[nn.Module, ModuleInfo, nn.Module]]) -> None:
        """Take these modules; they are held weakly, because the selection must not keep a detached child alive."""
        self._known.clear()
        self._spare.clear()
        self.selection = [
            (weakref.ref(module), info, weakref.ref(parent), can_observe(module)) for module, info, parent in entries
        ]
        children: dict[int, tuple[weakref.ref[nn.Module], list[str], list[weakref.ref[nn.Module]]]] = {}
        for reference, info, parent, _ in self.selection:
            _, names, references = children.setdefault(id(parent()), (parent, [], []))
            names.append(info.name.rpartition(".")[2])
            references.append(reference)
        self.by_parent = list(children.values())

    def is_current(self) -> bool:
        """Whether each of them is where it was."""
        for parent, names, references in self.by_parent:
            above = parent()
            if above is None:
                return False
            # Lists compare by identity first, and a module has no other equality.
            present, modules = [*map(above._modules.get, names)], [reference() for reference in references]
            if present != modules or None in modules:
                return False
        return True

    @property
    def attached(self) -> bool:
        """Whether anything is."""
        return bool(self._observed or self._handles)

    @property
    def hooks(self) -> int:
        """How many observers that is; a pair of hooks is two."""
        return len(self._observed) + len(self._handles)

    @property
    def names(self) -> list[str]:
        """Paths of the modules."""
        return [info.name for _, info, _, _ in self.selection]

    def acquire(self, held: Held = None) -> None:
        """Attach, unless another recorded call has done so.

        Args:
            held: groups that the recorded call has acquired; this one joins them, whatever interrupt comes.
        """
        self.users += 1
        if held is not None:
            held.append(self)  # no interrupt comes between this call and the line above
        if self.users > 1:
            return
        try:
            self.attach()
        except BaseException:
            self.users = 0
            if held is not None:
                held.remove(self)
            self.detach()
            self._take_off_the_unknown()
            raise

    def release(self, held: Held = None) -> None:
        """Detach, if no other recorded call needs the observers; does nothing for a call that has not acquired them."""
        if held is not None and self not in held:
            return
        if self.users:
            self.users -= 1
        if held is not None:
            held.remove(self)
        if not self.users:
            self.detach()

    def release_all(self, held: list[Any]) -> None:
        """Release what a call that ends has acquired and, because of an interrupt, not released; takes the lock."""
        self._engine.release_held(held)

    def _take_off_the_unknown(self) -> None:
        """After an interrupt: take off hooks of ours whose handle was lost between torch and here."""
        known = {handle.id for group in self._engine.groups for handle in group._handles}
        for reference, *_ in self.selection:
            module = reference()
            tables: tuple[Any, ...] = () if module is None else (module._forward_pre_hooks, module._forward_hooks)
            for hooks in tables:
                for number, hook in [*hooks.items()]:
                    if number not in known and isinstance(hook, CopiedAway) and getattr(hook, "_engine", None) is self._engine:
                        hooks.pop(number, None)

    def attach(self) -> None:
        """Attach to all of the modules."""
        self.detach()
        self.refused = self.fused = False
        observe = compiling.watch(self._engine)
        fused = set() if observe else self._engine.fused_modules()
        left = attach_callers(self.selection, self._spare, self._observed) if observe else self.selection
        for reference, info, _, observable in left:
            module = reference()
            if module is None:
                continue
            if info.stage is not None:
                info = self._where_it_is(info, device_of(module))
            # If the user has hooks, ours must see the input and output that those return, and their failures.
            if observe and observable and not module._forward_pre_hooks and self._only_watched(module._forward_hooks):
                observed = self._spare.pop(id(info), None)
                if observed is None:
                    observed = ObservedCall(module, info, self._engine)
                else:
                    observed.take_module(module)
                self._observed.append(observed)
                names = module.__dict__
                taken: Any = names.get(SLOT)
                if IN_C:
                    observed.watch, observed.number = None, -1
                    if type(taken) is ObservedCall and taken.attached and not taken.records and taken.engine is self._engine:
                        observed.watch, observed.number = taken.watch, taken.number
                        self._below[id(observed)] = taken
                        taken = None
                if taken is None:
                    names[SLOT] = observed
                    observed.attached = True
                    continue
                if observed.attach():
                    continue
                self._observed.pop()
            if id(module) in fused:
                self.fused = True
            elif may_hook(module):
                self._engine.hook_instead(module)
                self._handles.append(module.register_forward_pre_hook(EnterHook(info, self._engine), with_kwargs=True))
                self._handles.append(module.register_forward_hook(ExitHook(info, self._engine)))
            else:
                self.refused = True

    def _only_watched(self, hooks: Mapping[int, Any]) -> bool:
        """Whether no hook is there but ours that looks at outputs and changes none: what surrounds it sees the same."""
        return not hooks or all(type(hook) is WatchHook and hook._engine is self._engine for hook in hooks.values())

    def _where_it_is(self, info: ModuleInfo, device: torch.device | None) -> ModuleInfo:
        """The facts of a stage with its device; one object each, by which a packer knows the structure of a pass again."""
        known = self._known.get((id(info), device))
        if known is None:
            known = with_device(info, device)
            known = self._known[id(info), device] = self._placed.setdefault(known, known)
        return known

    def detach(self) -> None:
        """Detach whatever is attached."""
        # Each is forgotten once it is detached: after an interrupt in between the next call detaches the others.
        if not self._below:
            detach_callers(self._observed, self._spare)
        while self._observed:
            observed = self._observed[-1]
            # What the program has put into the slot meanwhile stays there.
            observed.attached = False
            names = observed.module.__dict__
            below = self._below.pop(id(observed), None)
            if names.get(SLOT) is observed:
                if below is not None and below.attached:
                    names[SLOT] = below
                else:
                    names.pop(SLOT, None)  # another thread may do the same
            del below
            self._observed.pop()
            # Known to nobody but this frame and the call: the program may have taken it out of the slot, and call it.
            if sys.getrefcount(observed) == 2 and observed.info.stage is None and observed.release_module():
                self._spare[id(observed.info)] = observed
        # Hooks that stay for now do nothing without a recorded request, and are removed the next time.
        if not self._handles or iterates_hooks():
            return
        while self._handles:
            self._handles[-1].remove()
            self._handles.pop()


class InsideGroup(Observed):
    """Modules that are looked at in every step: see ``inside.attaching``; with them the functions that compute attention."""

    def select(self, entries: Iterable[tuple[nn.Module, ModuleInfo, nn.Module]]) -> None:
        """Take these modules."""
        super().select(entries)
        self._engine.inside.kept.select(info.name for _, info, _, _ in self.selection)

    def attach(self) -> None:
        """Attach to all of the modules."""
        self.detach()
        observe = self._observe if compiling.watch(self._engine) and IN_C else None
        self._engine.inside.attention.patch()
        self.refused = attach(self.selection, self._engine, self._engine.fused_modules(), self._handles, observe)

    def hook_instead(self, module: nn.Module) -> None:
        """Look at outputs of a module by a hook from now on, if that is done from its slot: before hooks that come later."""
        taken: Any = module.__dict__.get(SLOT)
        if IN_C and type(taken) is ObservedCall and taken.attached and not taken.records and taken.engine is self._engine:
            # In this order an interrupt, or a call on another thread, leaves no output that is counted twice.
            watch, taken.watch = taken.watch, None
            taken.attached = False
            module.__dict__.pop(SLOT, None)
            self._handles.append(module.register_forward_hook(watch))

    def _observe(self, module: nn.Module, info: ModuleInfo, hook: WatchHook, number: int) -> bool:
        """Look at outputs of a module from its slot, which costs less than a hook; false if that is occupied, or the program has hooks."""
        if module._forward_pre_hooks or module._forward_hooks:
            return False
        observed = self._spare.pop(id(info), None)
        if observed is None:
            observed = ObservedCall(module, info, self._engine)
        else:
            observed.take_module(module)
        observed.watch, observed.number, observed.records = hook, number, False
        self._observed.append(observed)
        if observed.attach():
            return True
        self._observed.pop()
        return False

    def detach(self) -> None:
        """Detach whatever is attached."""
        self._engine.inside.attention.unpatch()
        super().detach()

    @property
    def attached(self) -> bool:
        """Whether anything is."""
        return super().attached or bool(self._engine.inside.attention.patched)


class FlowGroup(Observed):
    """Modules whose inputs and outputs are followed: see ``data_flow.hooks``. Attached with the observers of modules, after them."""

    def attach(self) -> None:
        """Attach to all of the modules, and to the model itself."""
        self.detach()
        self.refused = data_flow.attach(self._engine.root, self.selection, self._engine, self._engine.fused_modules(), self._handles)

    def detach(self) -> None:
        """Detach whatever is attached."""
        call: Any = current.call
        if self._handles and call is not None and call.engine is self._engine and call.flow is not None:
            call.flow.compiling()
        super().detach()
