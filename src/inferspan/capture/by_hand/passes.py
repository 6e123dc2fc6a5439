"""The forward passes of a model inside the steps of a loop by hand.

In: calls of the model, as what is on its root sees them. Out: the main input of each step, the arguments of the first pass, the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from inferspan.capture.generate.arguments import Arguments, generate_arguments, main_input
from inferspan.capture.generate.outcome import reused_tokens
from inferspan.capture.generate.step_log import StepLog
from inferspan.guard import contain

__all__ = ["RootPasses"]

_CACHES = ("past_key_values", "cache", "cache_params")
"""Outputs of a model that hold its cache."""


class RootPasses:
    """The passes of one generation. Contains errors of its own.

    Args:
        log: the steps of the generation.

    Attributes:
        in_step: whether a step is open.
        inside: passes that are running, one inside the other.
        main: the main input of the last one, until the step has ended.
        cache: what the last one has returned as its cache.
        first: arguments of the first one.
        reused: positions of a row that were in the cache before it.
    """

    open = False
    """Whether a step was announced in which passes need not be looked at."""

    def __init__(self, log: StepLog) -> None:
        self._log = log
        self.inside = 0
        self.in_step = False
        self.main: Tensor | None = None
        self.cache: Any = None
        self.first: Arguments | None = None
        self.reused: int | None = None

    @property
    def steps(self) -> RootPasses:
        """As :class:`~inferspan.capture.root.call.RequestCall` asks an adapter."""
        return self

    @property
    def passes(self) -> RootPasses:
        """The same."""
        return self

    def enter_root(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The model is called."""
        self.inside += 1
        if self.inside > 1:
            return
        with contain("start of a step"):
            main, named = main_input(kwargs)[1], kwargs
            if main is None and args and isinstance(args[0], Tensor) and args[0].dim() >= 2:
                main = args[0]
                if not main.is_floating_point():
                    named = {"input_ids": main, **kwargs}
            if self.main is None:
                self.main = main
            if self.first is None:
                self._note_first(generate_arguments((), named))

    def _note_first(self, first: Arguments) -> None:
        self.reused = reused_tokens(first.caches)
        self._log.cached = self.reused or 0
        # Copies, because a loop may go on with the same tensors; and not the cache, which grows.
        ids, mask = first.input_ids, first.attention_mask
        self.first = first._replace(
            caches=(),
            streamer=None,
            input_ids=ids.clone() if isinstance(ids, Tensor) else None,
            attention_mask=mask.clone() if isinstance(mask, Tensor) else None,
        )

    def leave_root(self, output: Any) -> None:
        """It has returned, or failed, then without an output."""
        self.inside -= 1
        if not self.inside and isinstance(output, dict):
            found = [dict.get(output, name) for name in _CACHES]
            self.cache = next((cache for cache in found if cache is not None), None)
