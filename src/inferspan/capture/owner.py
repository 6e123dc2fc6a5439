"""The questions that a running request may ask of its model.

Calls (plain forward passes and ``generate()``) see an :class:`Owner` and nothing else of the instrumentation, so the instrumentation may
import them. :class:`~inferspan.capture.target.Target` is the owner of every real request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import nn

from inferspan.records import ModelInfo, ModuleInfo, Recorder
from inferspan.settings import Settings

from .call import Call
from .device.clock import CallClock
from .device.energy import RequestEnergy
from .modules.hooks import ModuleObservers
from .modules.output_stats import OutputStats
from .profiler.window import Windows
from .root.pausing import Pausing

__all__ = ["OpenPass", "Owner"]


class OpenPass:
    """A running forward pass, as its owner registers it.

    Args:
        thread: identity of the thread that runs it.
        hooked: whether only hooks on the root see its end.

    Attributes:
        call: its request; ``None`` until that has begun.
        registered: the owner that has it in its registry.
        again: whether it is a call of the model by itself, inside a request.
    """

    __slots__ = ("again", "call", "hooked", "registered", "thread")

    def __init__(self, thread: int, *, hooked: bool = True) -> None:
        self.thread = thread
        self.hooked = hooked
        self.call: Call | None = None
        self.registered: Owner | None = None
        self.again = False

    def close(self) -> bool:
        """Remove it from the registry; false if it is not there any more."""
        owner = self.registered
        return owner is not None and owner.close_pass(self)


class Owner(Protocol):
    """The instrumentation of one model, as its requests see it. Nothing here waits for a device."""

    @property
    def settings(self) -> Settings:
        """The settings in force."""

    @property
    def recorder(self) -> Recorder:
        """The recorder of its requests."""

    @property
    def is_open(self) -> bool:
        """False from ``uninstrument()`` on, also while calls are still running."""

    @property
    def pausing(self) -> Pausing:
        """Whether its requests are recorded."""

    # ------------------------------------------------------------------------------------------------- facts of the model
    @property
    def model(self) -> nn.Module | None:
        """The instrumented model; ``None`` once it has been collected."""

    @property
    def info(self) -> ModelInfo:
        """Name, architecture and other facts, as they are now."""

    def info_with(self, adapters: tuple[str, ...] | None) -> ModelInfo:
        """The same for a call that names its adapters itself; ``None`` stands for the active ones."""

    def refresh(self) -> None:
        """Look at the model again: its structure has changed."""

    def batch_rows(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """Rows that a forward pass with these arguments has, where that is known."""

    @property
    def root_info(self) -> ModuleInfo:
        """Facts of the model as a module, for a model that calls itself."""

    @property
    def device(self) -> Any:
        """Device that the model runs on now (a ``torch.device``), ``None`` for a model without parameters."""

    @property
    def members(self) -> Mapping[int, Any]:
        """Weak references to generating modules inside the model, by identity: their passes belong to the model's request."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods whose calls are requests, as forward passes are."""

    @property
    def has_plain_generate(self) -> bool:
        """Whether ``generate()`` is that of transformers, so that its result has the documented meaning."""

    @property
    def text_only(self) -> bool:
        """Whether the model takes neither images nor audio."""

    @property
    def tokenizer(self) -> Any:
        """Decodes captured content; ``None`` without one."""

    @property
    def unobserved(self) -> str | None:
        """The part of the model that cannot be observed, and the reason; ``None`` if all of it can."""

    def sharded_vocabulary(self) -> int:
        """Number of entries of whole logits, if the model is tensor-parallel; else 0."""

    # ---------------------------------------------------------------------------------------------------------- recording
    @property
    def content(self) -> bool:
        """Whether prompts and outputs may be captured."""

    @property
    def ids_on_spans(self) -> bool:
        """Whether spans may carry token ids and texts."""

    @property
    def steps_wanted(self) -> str:
        """Which steps get a span: ``all``, ``sampled`` or ``none``."""

    @property
    def hook_cost(self) -> int:
        """Our own time for one recorded module call, in nanoseconds."""

    @property
    def engine(self) -> ModuleObservers:
        """The observers of the submodules."""

    @property
    def windows(self) -> Windows:
        """The profiler windows of the model."""

    @property
    def first_call(self) -> bool:
        """True once: whether the call that asks is the first on this model."""

    def new_output_stats(self) -> OutputStats | None:
        """A collector of module output statistics, where the settings want them."""

    def new_device_clock(self) -> CallClock | None:
        """A clock for the device times of one request, where they can be measured."""

    def new_energy_meter(self) -> RequestEnergy | None:
        """A meter for the energy of one request, where it can be measured."""

    def decode_token(self, token: int) -> str:
        """Text of one token id."""

    # ------------------------------------------------------------------------------------------------------- running calls
    def open_pass(self, opened: OpenPass) -> bool:
        """Register a forward pass: the module observers, and hooks that see its end, stay on the model until it is closed.

        Returns:
            False if the model is not instrumented any more.
        """

    def close_pass(self, opened: OpenPass) -> bool:
        """Remove the entry of a forward pass; false if it was removed before, by the thread that ends the call."""

    def pause_root_hooks(self, call: Call) -> None:
        """Keep hooks on the root off the model until ``call`` ends, because a region of it is about to be compiled."""

    def closed(self, call: Call) -> None:
        """Note that ``call`` has ended."""
