"""Forward hooks on submodules, attached only while a recorded forward pass runs; each call appends one tuple.

A hook pair sits on each selected module and writes into the :class:`~inferspan.capture.call.Call` that runs on its thread; without one
it does nothing. Hooks return ``None``, take any arguments (torch calls a hook removed after its snapshot without kwargs), carry no state of
a call, and turn into importable no-ops when the model is copied or pickled. Attaching is counted over the recorded calls: while one
of them is inside the model, nothing is detached.
"""

from __future__ import annotations

import fnmatch
import re
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from time import perf_counter_ns
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from ..guard import contain, report
from ..records import ModuleInfo
from ..settings import SettingsError
from .call import current
from .compilation import is_compiled, is_optimized
from .shapes import describe

__all__ = ["CopiedAway", "HookEngine", "iterates_hooks", "no_hook", "select"]

_SMALL = 64
"""A model without numbered layers and of at most this many modules is shown whole under ``modules="layers"``."""


def no_hook(*_: Any, **__: Any) -> None:
    """What a hook of ours becomes in a copied or unpickled model."""


def _make_no_hook() -> Any:
    return no_hook


def iterates_hooks() -> bool:
    """Whether torch is going through the hooks of a failed call on this thread: their tables must not change under it."""
    if sys.exc_info()[1] is None:
        return False
    implementation = nn.Module._call_impl.__code__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        # On the normal path torch goes through a snapshot, in a function of its own.
        if frame.f_code is implementation and "hook" in frame.f_locals:
            return True
        frame = frame.f_back
    return False


class CopiedAway:
    """Base of hooks: a copy of the model must not write into the original's requests."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return no_hook

    def __reduce__(self) -> Any:
        return _make_no_hook, ()


class _Enter(CopiedAway):
    """Pre-hook of a submodule. Written for few instructions: between two large matrix products each of them is a cache miss."""

    __slots__ = ("_last", "info")

    def __init__(self, info: ModuleInfo) -> None:
        self.info = info
        self._last: Any = None

    def __call__(self, module: nn.Module, args: Any = (), kwargs: Any = None, *rest: Any) -> None:
        if is_dynamo_compiling():
            return
        call = current.call
        if call is None:
            return
        if call.room <= 0:
            call.missed += 1
            return
        try:
            call.room -= 1
            number = call.count
            call.count = number + 1
            if kwargs:
                inputs = describe((*args[:8], *kwargs.values()))
            elif len(args) == 1 and type(args[0]) is Tensor and not args[0].is_nested:
                inputs = self._last
                if not inputs or inputs[0][0] != args[0].shape or inputs[0][1] is not args[0].dtype:
                    inputs = self._last = describe(args)
            else:
                inputs = describe(args)
            call.stack.append((number, self.info, perf_counter_ns(), inputs))
            if call.clock is not None:
                call.clock.enter(number)
        except Exception as error:
            report("module hook", error)


class _Exit(CopiedAway):
    """Forward hook of a submodule; see ``_Enter``."""

    __slots__ = ("_last", "info")

    def __init__(self, info: ModuleInfo) -> None:
        self.info = info
        self._last: Any = None

    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        if is_dynamo_compiling():
            return
        call = current.call
        if call is None or not call.stack:
            return
        try:
            now = perf_counter_ns()
            output = rest[-1]
            stack = call.stack
            if stack[-1][1] is not self.info and not call.unwind_to(self.info, now):
                return
            number, info, start, inputs = stack.pop()
            if call.clock is not None:
                call.clock.leave(number)
            if type(output) is Tensor and not output.is_nested:
                outputs = self._last
                if not outputs or outputs[0][0] != output.shape or outputs[0][1] is not output.dtype:
                    outputs = self._last = describe(output)
            else:
                outputs = describe(output)
            collector = call.output_stats
            statistics = collector.append(output) if collector is not None else None
            call.calls.extend((number, stack[-1][0] if stack else -1, info, start, now, inputs, outputs, None, statistics))
        except Exception as error:
            report("module hook", error)


def _walk(root: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    """Name, module and parent of each submodule that a hook can see, each object once."""
    seen: set[int] = {id(root)}
    pending: list[tuple[str, nn.Module]] = [("", root)]
    while pending:
        prefix, parent = pending.pop(0)
        if is_compiled(parent) or isinstance(parent, torch.jit.ScriptModule):
            continue
        # Inside an OptimizedModule everything is one compiled region; the module itself may be hooked.
        if is_optimized(parent) and parent is not root:
            continue
        for name, child in parent._modules.items():
            if child is None or id(child) in seen:
                continue
            seen.add(id(child))
            path = f"{prefix}.{name}" if prefix else name
            if not isinstance(child, torch.jit.ScriptModule) and not is_compiled(child):
                yield path, child, parent
            pending.append((path, child))


def _outer_layer(path: str) -> tuple[str, int, str] | None:
    """Prefix, index and rest at the outermost numbered part of a path."""
    match = re.match(r"^(?:(.*?)\.)??(\d+)(?:\.(.*))?$", path)
    return (match[1] or "", int(match[2]), match[3] or "") if match else None


def _stacks(paths: Sequence[str]) -> dict[str, str]:
    """A short word for each list of layers, empty where the model has only one: it tells encoder from decoder layers."""
    prefixes = sorted({layer[0] for path in paths if (layer := _outer_layer(path)) is not None})
    if len(prefixes) < 2:
        return dict.fromkeys(prefixes, "")
    parts = [prefix.split(".") for prefix in prefixes]
    common = 0
    while all(len(one) > common + 1 for one in parts) and len({one[common] for one in parts}) == 1:
        common += 1
    words = [".".join(one[common:-1] or one[common:]) for one in parts]
    if len(set(words)) < len(words):
        words = prefixes
    return {prefix: f"{word} " if word else "" for prefix, word in zip(prefixes, words, strict=True)}


def _info(path: str, module: nn.Module, style: str, stacks: dict[str, str]) -> ModuleInfo:
    kind = type(module).__name__
    layer = _outer_layer(path)
    if style == "type":
        name = kind
    elif style == "path" or layer is None:
        name = path
    else:
        name = f"{stacks.get(layer[0], '')}layer {layer[1]}" + (f" {layer[2]}" if layer[2] else "")
    return ModuleInfo(path, kind, layer[1] if layer else None, name)


def _layers_and_blocks(found: list[tuple[str, nn.Module, nn.Module]]) -> list[tuple[str, nn.Module, nn.Module]]:
    """Layers, and in a layer its blocks (attention, MLP); leaves only of a layer that has no block."""
    placed = [(entry, _outer_layer(entry[0])) for entry in found]
    blocks = {layer[:2] for (_, module, _), layer in placed if layer and layer[2] and module._modules}
    chosen = []
    for entry, layer in placed:
        if layer is None:
            continue
        rest = layer[2]
        if not rest or (re.fullmatch(r"[^.]+(?:\.\d+)?", rest) and (entry[1]._modules or layer[:2] not in blocks)):
            chosen.append(entry)
    return chosen


def select(root: nn.Module, modules: str | tuple[str, ...], style: str) -> list[tuple[nn.Module, ModuleInfo, nn.Module]]:
    """Modules that get spans, as (module, static facts, parent).

    Args:
        root: the instrumented model; it is not part of the result.
        modules: ``"layers"``, ``"all"``, ``"none"`` or name patterns (``fnmatch``).
        style: ``Settings.module_span_name``.

    Raises:
        SettingsError: a pattern matches no module.
    """
    if modules == "none":
        return []
    found = [entry for entry in _walk(root) if not isinstance(entry[1], nn.ModuleList | nn.ModuleDict)]
    if isinstance(modules, tuple):
        chosen = []
        for pattern in modules:
            matched = [entry for entry in found if fnmatch.fnmatchcase(entry[0], pattern)]
            if not matched:
                names = ", ".join(path for path, _, _ in found[:6]) or "none: the model has no submodule that can be observed"
                raise SettingsError(f"inferspan setting 'modules': pattern {pattern!r} matches no module; names look like {names}")
            chosen.extend(matched)
        kept = {id(module): (path, module, parent) for path, module, parent in chosen}
        found = [entry for entry in found if id(entry[1]) in kept]
    elif modules == "layers":
        if any(_outer_layer(path) for path, _, _ in found):
            found = _layers_and_blocks(found)
        elif len(found) > _SMALL:
            found = [entry for entry in found if "." not in entry[0]]
    stacks = _stacks([path for path, _, _ in found])
    return [(module, _info(path, module, style, stacks), parent) for path, module, parent in found]


class HookEngine:
    """Hooks on the selected submodules of one model, attached while at least one recorded call needs them."""

    def __init__(self, root: nn.Module, modules: str | tuple[str, ...], style: str) -> None:
        self._root = weakref.ref(root)
        self._modules = modules
        self._style = style
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False
        self._handles: list[Any] = []
        self._selection: list[tuple[weakref.ref[nn.Module], ModuleInfo, weakref.ref[nn.Module], _Enter, _Exit]] = []
        self._above: list[tuple[weakref.ref[nn.Module], bool, list[int]]] = []
        self.unobserved: str | None = None
        """What of the modules cannot be seen, and why."""
        self.refresh()

    @property
    def expected(self) -> int:
        """Module calls of one forward pass, if each selected module is called once."""
        return len(self._selection)

    def refresh(self) -> None:
        """Select anew.

        Raises:
            SettingsError: a name pattern matches no module.
        """
        root = self._root()
        if root is None:
            return
        # Held weakly: the selection must not keep a detached child alive.
        self._selection = [
            (weakref.ref(module), info, weakref.ref(parent), _Enter(info), _Exit(info))
            for module, info, parent in select(root, self._modules, self._style)
        ]
        self._above = [
            (weakref.ref(module), is_compiled(module), [*map(id, module._modules.values())]) for module in root.modules() if module._modules
        ]
        self.unobserved = self._what_is_compiled(root)

    def _what_is_compiled(self, root: nn.Module) -> str | None:
        if self._modules == "none":
            return None
        if is_compiled(root) or is_optimized(root):
            return "modules: compiled"
        compiled = any(is_compiled(module) or is_optimized(module) for module in root.modules())
        return "modules: compiled in parts" if compiled else None

    def prepare(self) -> None:
        """Select again if the structure has changed or a part was compiled since the last request."""
        with self._lock:
            if self._users == 0 and not self._is_current():
                with contain("module selection"):
                    self.refresh()

    def _is_current(self) -> bool:
        for reference, compiled, children in self._above:
            module = reference()
            if module is None or is_compiled(module) is not compiled or [*map(id, module._modules.values())] != children:
                return False
        for reference, info, parent, _, _ in self._selection:
            above, module = parent(), reference()
            if above is None or module is None or above._modules.get(info.name.rpartition(".")[2]) is not module:
                return False
        return True

    def acquire(self) -> None:
        """Attach, unless another recorded call has done so."""
        with self._lock:
            if self._closed:
                return
            self._users += 1
            if self._users > 1:
                return
            try:
                self._attach()
            except BaseException:
                self._users = 0
                self._detach()
                raise

    def _attach(self) -> None:
        self._detach()
        for module, _, _, enter, leave in self._selection:
            one = module()
            if one is not None:
                self._handles.append(one.register_forward_pre_hook(enter, with_kwargs=True))
                self._handles.append(one.register_forward_hook(leave))

    def release(self) -> None:
        """Detach, if no other recorded call needs the hooks."""
        with self._lock:
            if not self._users:
                return
            self._users -= 1
            if not self._users:
                self._detach()

    def close(self) -> None:
        """Detach whatever is attached, for good."""
        with self._lock:
            self._closed = True
            self._users = 0
            self._detach()

    def forked(self) -> None:
        """Called in a forked child, where nobody is left to release the lock."""
        self._lock = threading.Lock()

    def close_in_child(self) -> None:
        """Detach what recorded calls of the parent's other threads had attached: in a forked child they do not run."""
        with self._lock:
            self._users = 0
            self._detach()

    def _detach(self) -> None:
        # Hooks that stay for the moment do nothing without a recorded call, and go the next time.
        if iterates_hooks():
            return
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
