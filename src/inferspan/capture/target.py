"""One instrumented model: attaching to it, the registry of instrumented models, and detaching.

Hooks on the root see plain forward passes (``root``), wrapped class methods see ``generate()``, the module observers see submodules
of recorded passes. The model is held weakly, so its lifetime does not change. ``close`` undoes everything that is attached, also while
calls are running: a ``generate()`` goes on without detail, and a plain forward pass keeps the hooks that end it until it returns.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from inferspan.capture.compile.optimized import shows_call
from inferspan.capture.compile.watch import compiling
from inferspan.capture.device.clock import CallClock, DeviceClock
from inferspan.capture.device.energy import RequestEnergy
from inferspan.capture.diffusion.components import Components
from inferspan.capture.diffusion.wrappers import attach_pipeline
from inferspan.capture.generate.wrappers import around_generate, generate_methods, generating_modules
from inferspan.capture.modules.hooks import ModuleObservers
from inferspan.capture.modules.output_stats import OutputStats
from inferspan.capture.modules.recorder import IN_C
from inferspan.capture.modules.routing import new_collector
from inferspan.capture.profiler.switch import install_switches
from inferspan.capture.profiler.window import Window, Windows
from inferspan.guard import contain, read_attribute
from inferspan.records import ModelInfo, ModuleInfo, Recorder
from inferspan.setting_checks import warn_once
from inferspan.settings import Settings

from .batch_size import Layout, batch_rows, layout_of
from .batching import wrappers as batching
from .call import Call, abandon_clocks, current
from .chat import watch_templates
from .device import energy
from .device.place import model_device
from .forward import close_stale
from .methods import attach_methods, chosen_methods
from .model_info import ModelFacts, has_plain_generate, is_text_only, sharded_vocabulary
from .owner import OpenPass
from .passes.encoders import watch_encoders
from .passes.watch import LibraryWatch
from .patching import InstanceMethod, Undo
from .patching import class_methods as _methods
from .root.compiled import around_compile, around_optimized
from .root.hooks import RootHooks
from .root.pausing import Pausing
from .unloading import around_unloading, watch_unloading

__all__ = ["Target", "target_of"]

_targets: dict[int, list[Target]] = {}
_lock = threading.RLock()
HOOK_COST_NS = 1_000 if IN_C else 3_500
"""Our time for one recorded module call, measured (docs/overhead.md); for the overhead metric, where timing each would cost more."""


def target_of(module: object) -> Target | None:
    """The instrumentation that a call on ``module`` belongs to: its own, else that of a wrapper which delegates to it."""
    entries = _targets.get(id(module))
    if not entries:
        return None
    own = next((target for target in entries if target.model is module), None)
    chosen = own or entries[-1]
    return chosen if chosen.is_open and chosen.knows(module) else None


class Target:
    """The instrumentation of one model.

    Args:
        model: the module; held weakly.
        settings: options.
        recorder: where requests go.
        tokenizer: decodes captured content; never used without content capture.

    Raises:
        SettingsError: a name pattern matches no module, or the model lacks a method; nothing is attached then.
    """

    def __init__(self, model: nn.Module, settings: Settings, recorder: Recorder, tokenizer: Any = None) -> None:
        stages = () if issubclass(type(model), Components) else settings.stages
        self.engine = ModuleObservers(model, settings, stages)  # raises on a wrong setting: nothing refers to the model yet
        self._undo = Undo()
        self.device_clock = DeviceClock()
        self.is_open = True
        self._model = weakref.ref(model, self._gone)
        self._model_id = id(model)
        self.settings = settings
        self.recorder = recorder
        self.tokenizer = tokenizer
        self.content = settings.capture_content != "NO_CONTENT"
        self.ids_on_spans = settings.content_on_spans
        self.steps_wanted = settings.steps
        self.hook_cost = HOOK_COST_NS
        self._facts = ModelFacts(settings)
        self._last_info = self._facts.read(model)
        self._layout: Layout | None = None
        self.root_info = ModuleInfo("", type(model).__name__, None, type(model).__name__)
        self.text_only = is_text_only(model)
        self.methods = chosen_methods(model, settings.methods)
        self.scripted = issubclass(type(model), torch.jit.ScriptModule)
        self.has_plain_generate = has_plain_generate(model)
        self.members: dict[int, weakref.ref[nn.Module]] = {}
        self._called = False
        self._libraries = LibraryWatch(target_of, _methods, self._undo)
        self.machine: Any = None
        self.cuda_devices: Callable[[], Any] = dict
        self.follow: Callable[[nn.Module], None] | None = None  # instruments what is left when the model leaves its wrapper
        self.windows = Windows(lambda: getattr(self.device, "type", None))
        self._root: RootHooks | None = None
        self.pausing = Pausing(lambda: None if self._root is None else self._root.settle())
        try:
            self._undo.push(install_switches(self.windows, settings))
            self._attach(model)
        except BaseException:
            self.close()
            raise

    def configure(self, settings: Settings) -> None:
        """Use other settings from the next request on; raises ``SettingsError`` where a name pattern matches no module."""
        self.engine.configure(settings)
        self.settings = settings
        self.steps_wanted = settings.steps

    @property
    def model(self) -> nn.Module | None:
        """The instrumented model, while it lives."""
        return self._model()

    def knows(self, module: object) -> bool:
        """Whether ``module`` is the object that was registered under its id, which may have been reused."""
        reference = self.members.get(id(module))
        return self._model() is module or (reference is not None and reference() is module)

    # -------------------------------------------------------------------------------------------------------- attach
    @property
    def unobserved(self) -> str | None:
        """The part of this model that cannot be observed, and the reason; ``None`` if all of it can."""
        if self.scripted:
            return "modules: scripted" if self._root is not None and self._root.around else "forward passes: scripted"
        return self.engine.unobserved

    @property
    def info(self) -> ModelInfo:
        """Name, architecture and other facts, as they are now."""
        return self.info_with(None)

    def info_with(self, adapters: tuple[str, ...] | None) -> ModelInfo:
        """The same for a call that names its adapters itself; ``None`` stands for the active ones."""
        model = self._model()
        self._libraries.look()
        if model is not None:
            with contain("module selection"):
                self.engine.prepare()
            self._last_info = self._facts.read(model, adapters, self.engine.structure)
        return self._last_info

    @property
    def device(self) -> torch.device | None:
        """Device that the model runs on now, ``None`` for a model without parameters."""
        return None if (model := self._model()) is None else model_device(model)

    def batch_rows(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """Rows that a forward pass with these arguments has, where that is known."""
        with contain("size of a batch"):
            model, layout = self._model(), self._layout
            if layout is None and model is not None:
                layout = self._layout = layout_of(model)
            return None if layout is None else batch_rows(layout, args, kwargs)
        return None

    def _forget(self) -> None:
        """Read the facts again at the next call: the structure of the model has changed."""
        self._facts.forget()
        self._layout = None

    def sharded_vocabulary(self) -> int:
        """Size of whole logits, if the model is tensor-parallel, so that its logits may be parts; else 0."""
        model = self._model()
        return sharded_vocabulary(model) if model is not None else 0

    def _attach(self, model: nn.Module) -> None:
        with _lock:
            _targets.setdefault(id(model), []).append(self)
            self._undo.push(lambda: self._unregister(self._model_id))
        compiling.watch(self)
        self._attach_generate(model)
        batching.attach_batching(target_of, self, model, _methods, self._undo)
        attach_methods(target_of, model, self.methods, _methods, self._undo)
        attach_pipeline(target_of, model, _methods, self._undo)
        self._root = RootHooks(self)
        self._root.attach(model)
        if self.scripted and not self._root.around:
            warn_once("calls of this scripted %s are not seen: torch does not look for an observer of it", type(model).__name__)
        self._undo.extend(watch_templates(_methods, content=self.content))
        self._undo.extend(watch_unloading(model, _methods, _around_unloading))
        self._undo.extend(watch_encoders(target_of, model, _methods))
        self._libraries.begin()
        if callable(getattr(type(model), "compile", None)):
            self._undo.push(_methods.acquire(type(model), "compile", _around_compile))

    def _attach_generate(self, model: nn.Module) -> None:
        around = around_generate(target_of)
        for module in generating_modules(model):
            if module is not model:
                self.members[id(module)] = weakref.ref(module)
            if "generate" in module.__dict__:
                self._undo.push(InstanceMethod.put(module, "generate", around))
            for owner, name, wrapper in generate_methods(module, around):
                self._undo.push(_methods.acquire(owner, name, wrapper))
        # A wrapper without a generate() of its own exposes that of a module inside it.
        if "generate" in model.__dict__ and not callable(getattr(type(model), "generate", None)):
            self._undo.push(InstanceMethod.put(model, "generate", around))
        elif not callable(getattr(type(model), "generate", None)):
            owner = read_attribute(read_attribute(model, "generate"), "__self__")
            if isinstance(owner, nn.Module) and owner is not model and id(owner) in self.members:
                key = id(owner)
                with _lock:
                    _targets.setdefault(key, []).insert(0, self)
                    self._undo.push(lambda: self._unregister(key))

    def refresh(self) -> None:
        """Look at the model again, after it was compiled or its structure has changed."""
        model = self._model()
        if model is None or not self.is_open:
            return
        if self._root is not None:
            self._root.refresh(model)
        self._forget()
        self.engine.prepare()

    # ---------------------------------------------------------------------------------------------------------- compiling
    def compilation_begins(self) -> None:
        """Take hooks off while Dynamo compiles on this thread."""
        call = current.call
        if call is not None and call.engine is self.engine and not call.compiled:
            self.engine.compiled_inside = True
        if self._root is not None:
            self._root.compilation_begins()

    def compilation_ends(self) -> None:
        """Put them back."""
        if self._root is not None:
            self._root.after_compile()

    def scripting(self, *, begins: bool) -> None:
        """Take everything off the root while TorchScript looks at modules."""
        if self._root is not None:
            self._root.scripting(begins=begins)

    def before_compile(self) -> None:
        """Take root hooks off, because ``model.compile()`` will compile the call that runs them."""
        if self._root is not None:
            self._root.before_compile()

    def after_compile(self) -> None:
        """Watch the compiled call instead, or put the hooks back if nothing was compiled."""
        self.refresh()
        self.compilation_ends()

    def sees_call(self, optimized: nn.Module) -> bool:
        """Whether a call of an ``OptimizedModule`` is seen on the model itself."""
        return self._root is not None and self._root.around and shows_call(optimized)

    def pause_root_hooks(self, call: Call) -> None:
        """Keep root hooks out of a region that is about to be compiled, until ``call`` ends."""
        if self._root is not None:
            self._root.pause(call)

    # --------------------------------------------------------------------------------------------------------- calls
    def open_pass(self, opened: OpenPass) -> bool:
        """Register a forward pass; false if the model is not instrumented any more."""
        return self._root is not None and self._root.open_pass(opened)

    def close_pass(self, opened: OpenPass) -> bool:
        """Remove the entry of a forward pass; false if another thread has done so."""
        closed = self._root is not None and self._root.close_pass(opened)
        if closed and not self.is_open:
            self._close_rest()
        return closed

    def closed(self, call: Call) -> None:
        """Put hooks back that were kept off until ``call`` ends."""
        if self._root is not None:
            self._root.resume(call)

    def forked(self) -> None:
        """Called in a forked child: calls of the parent's other threads do not run in it, and never release their locks."""
        self.engine.forked()
        self.device_clock.forked()
        abandon_clocks()
        self.windows.forked()
        if self._root is not None:
            self._root.forked(inside=current.call is not None)
        if current.call is None:
            self.engine.close_in_child()

    @property
    def first_call(self) -> bool:
        """True once: whether the call that asks is the first on this model."""
        first, self._called = not self._called, True
        return first

    def new_output_stats(self) -> OutputStats | None:
        """A collector of module output statistics, where the settings want them."""
        return new_collector(self.engine.routing, outputs=self.settings.output_stats)

    def profile(self, steps: int, *, cpu_ops: bool | None) -> Window:
        """A profiler window on this model, opened by ``with``."""
        return Window(self.windows if self.is_open else None, steps, cpu_ops=cpu_ops, leave=lambda: close_stale(None))

    def watch_machine(self, loop: Any, cuda_devices: Callable[[], Any]) -> None:
        """Use a sampler loop for the energy of requests; ``cuda_devices`` maps a ``hw.id`` to ``cuda:N``."""
        self.machine = loop
        self.cuda_devices = cuda_devices

    def new_energy_meter(self) -> RequestEnergy | None:
        """A meter for one request, where the model is on a CUDA device whose energy is sampled."""
        return energy.meter_on(self.device, self.machine, self.cuda_devices) if self.settings.nvml else None

    def new_device_clock(self) -> CallClock | None:
        """A clock for the device times of one request, where they can be measured."""
        model = self._model() if self.settings.device_time else None
        with contain("device clock"):
            return self.device_clock.start(model) if model is not None else None
        return None

    def decode_token(self, token: int) -> str:
        """Text of one token id, for captured content."""
        return str(self.tokenizer.decode([token])) if self.tokenizer is not None else ""

    # --------------------------------------------------------------------------------------------------------- close
    def close(self) -> None:
        """Take everything off the model, except the hooks that end the forward passes that run now; may be called twice."""
        self.is_open = False
        self.windows.shut()
        if self._root is not None:
            self._root.close()
        self._close_rest()
        self.device_clock.close()
        self._undo.close()

    def _close_rest(self) -> None:
        """Take off the module observers, once no forward pass runs any more."""
        if self._root is None or self._root.idle:
            with contain("detaching"):
                self.engine.close()
            compiling.leave(self)

    def _unregister(self, key: int) -> None:
        with _lock:
            entries = [target for target in _targets.get(key, ()) if target is not self]
            if entries:
                _targets[key] = entries
            else:
                _targets.pop(key, None)

    def _gone(self, _: object) -> None:
        """The model has been collected without ``uninstrument()``."""
        self.is_open = False
        if not sys.is_finalizing():
            self.device_clock.close()
            compiling.leave(self, self.engine)
            self._undo.close()


def forked() -> None:
    """Called in a forked child: renew the locks that all targets share."""
    global _lock
    _lock = threading.RLock()
    for part in (_methods, compiling, energy, batching):
        part.forked()


def _targets_of(module: object) -> Sequence[Target]:
    return _targets.get(id(module), ())


def _followers(module: nn.Module) -> list[Callable[[nn.Module], None]]:
    """The function to call for each instrumented model that ``module`` belongs to when it is taken apart."""
    with _lock:
        targets = {id(target): target for entries in _targets.values() for target in entries if target.is_open}
    return [
        target.follow for target in targets.values()
        if target.follow is not None and (model := target.model) is not None and any(part is module for part in model.modules())
    ]


_around_unloading = around_unloading(_followers)
_around_compile = around_compile(_targets_of)
compiling.optimized.around = around_optimized(_targets_of)
