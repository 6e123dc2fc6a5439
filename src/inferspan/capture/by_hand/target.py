"""What a generation by hand is recorded with where its model is not instrumented, or is no module at all.

Nothing is attached to such a model but what sees its forward passes, and that only while a generation runs.
"""

from __future__ import annotations

import threading
from typing import Any

from torch import nn

from inferspan.attribute_values import exportable_text
from inferspan.capture.compile.watch import compiling
from inferspan.capture.owner import OpenPass
from inferspan.capture.root.hooks import RootHooks
from inferspan.capture.target import Target
from inferspan.records import ModelInfo, Recorder
from inferspan.semconv import PROVIDER_OTHER
from inferspan.settings import Settings

__all__ = ["LooseTarget", "NamedTarget"]


class _OpenBlocks:
    """The owner of the root hooks as long as generations run; all else it asks of the target."""

    def __init__(self, target: LooseTarget) -> None:
        self._target = target
        self.is_open = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


class LooseTarget(Target):
    """A model that is not instrumented; its plain forward passes and ``generate()`` calls are no requests."""

    def __init__(self, model: nn.Module, settings: Settings, recorder: Recorder, tokenizer: Any = None) -> None:
        self._blocks = 0
        self._seen: _OpenBlocks | None = None
        # Reentrant: a collected generator may end its generation at any instruction.
        self._block_lock = threading.RLock()
        super().__init__(model, settings, recorder, tokenizer)

    def _attach(self, model: nn.Module) -> None:
        # Observers of modules have to keep out of what Dynamo compiles.
        compiling.watch(self)

    def open_pass(self, opened: OpenPass) -> bool:
        """False: a pass outside of a step is no request."""
        return False

    @property
    def idle(self) -> bool:
        """Whether no generation runs."""
        return self._blocks == 0

    def begin_block(self) -> None:
        """A generation begins: see the passes of the model."""
        with self._block_lock:
            model = self.model
            if self._blocks == 0 and model is not None:
                self._see(model)
            self._blocks += 1

    def _see(self, model: nn.Module) -> None:
        self._seen = _OpenBlocks(self)
        seen: Any = self._seen
        self._root = RootHooks(seen)
        self._root.attach(model)

    def end_block(self) -> None:
        """A generation has ended; after the last one nothing stays on the model."""
        with self._block_lock:
            self._blocks -= 1
            if self._blocks == 0 and self._seen is not None:
                self._seen.is_open = False
                if self._root is not None:
                    self._root.close()

    def forked(self) -> None:
        """Called in a forked child, where a thread that held the lock does not run."""
        self._block_lock = threading.RLock()
        super().forked()


class NamedTarget(LooseTarget):
    """A model of another engine, of which there is only a name."""

    def __init__(self, name: str, settings: Settings, recorder: Recorder, tokenizer: Any = None) -> None:
        # Stands for the model: it has neither modules nor parameters.
        self._stand_in = nn.Module()
        super().__init__(self._stand_in, settings, recorder, tokenizer)
        known, provider = settings.model_name or name, settings.provider_name or PROVIDER_OTHER
        self._named = ModelInfo(exportable_text(known), exportable_text(provider), exportable_text(name), {})

    def info_with(self, adapters: tuple[str, ...] | None) -> ModelInfo:
        """Its name, and no other facts."""
        return self._named

    def _see(self, model: nn.Module) -> None:
        """There is nothing to attach to."""
