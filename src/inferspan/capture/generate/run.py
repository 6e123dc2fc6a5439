"""What is noted of a ``generate()`` while it runs, and of those that it runs itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from inferspan.guard import read_attribute

from .arguments import Arguments
from .drafts import Drafts
from .tokens import Loop, sequences_of

__all__ = ["InnerCall", "Run", "prompt_of"]


@dataclass(eq=False)
class InnerCall:
    """A ``generate()`` inside another one: of a model inside the model, or that which a class's own one calls.

    Attributes:
        arguments: of its caller.
        module: identity of the module.
        plain: whether it is that of transformers, which returns what its loop has made, prompt first.
        first: loops that had begun before it.
        before: of the calls that had returned sequences before it, how many there were.
        last: loops that had begun when it returned.
        sequences: that it has returned.
    """

    arguments: Arguments
    module: int
    plain: bool
    first: int
    before: int
    last: int = 0
    sequences: Tensor | None = None


@dataclass
class Run:
    """Facts of a running ``generate()``.

    Attributes:
        arguments: of the caller.
        chat: messages that the prompt was made of, where that is known and content is captured.
        config: final configuration of the first loop.
        loops: the decoding loops, in order.
        inner: the outermost calls inside it, in order.
        returned: the innermost ones of those that have returned sequences, in order.
        reused: positions that were in the cache when it began.
        drafted: whether a pass may be about candidates.
        drafts: those that were verified.
        compiled: whether a compiled forward pass is used.
        guided: whether the model may run more than once for a step.
        unseen: steps that only the stopping criteria have told of, after ``uninstrument()``.
        running: the calls inside it that have not returned, the outermost first.
    """

    arguments: Arguments
    chat: Sequence[Any] | None = None
    config: Any = None
    loops: list[Loop] = field(default_factory=list)
    inner: list[InnerCall] = field(default_factory=list)
    returned: list[InnerCall] = field(default_factory=list)
    reused: int | None = None
    drafted: bool = False
    drafts: Drafts = field(default_factory=Drafts)
    compiled: bool = False
    guided: bool = False
    unseen: int = 0
    running: list[InnerCall] = field(default_factory=list)

    def enter(self, arguments: Arguments, module: object, *, plain: bool) -> InnerCall:
        """A ``generate()`` inside this one begins.

        Args:
            arguments: of its caller.
            module: whose it is: the model, or one inside it.
            plain: whether it is that of transformers, and not one that a class has of its own.
        """
        call = InnerCall(arguments, id(module), plain, first=len(self.loops), before=len(self.returned))
        if not self.running:
            self.inner.append(call)
        self.running.append(call)
        return call

    def leave(self, call: InnerCall, result: Any) -> None:
        """It has returned, or failed with ``None`` as result; so have those inside it."""
        if call not in self.running:
            return
        del self.running[self.running.index(call) :]
        call.last, call.sequences = len(self.loops), sequences_of(result)
        if call.sequences is None:
            if result is None and call.first == call.last and call in self.inner:
                self.inner.remove(call)  # refused before its loop began
            return
        if call.plain:
            # What ran inside its loop has no part in its result.
            del self.returned[call.before :]
        if len(self.returned) == call.before:  # else its result is made of those of others
            self.returned.append(call)

    def prompt(self, model: Any) -> int | None:
        """Positions of a row of the prompt, if the model's forward passes go over them."""
        given = self.arguments
        main = read_attribute(model, "main_input_name", "input_ids")
        value = given.inputs_embeds if given.inputs_embeds is not None else prompt_of(given, main)
        if not isinstance(value, Tensor) or value.dim() < 2 or read_attribute(read_attribute(model, "config"), "is_encoder_decoder", False):
            return None
        return int(value.shape[1])


def prompt_of(arguments: Arguments, main_input: str) -> Any:
    """The ids ``[rows, width]`` of the prompt among the arguments; ``None`` if there are none."""
    value = arguments.input_ids
    if value is None and main_input == "input_ids":
        value = arguments.inputs
    # Token ids only: `inputs` of a speech or vision model are features.
    return value if isinstance(value, Tensor) and value.dim() == 2 and not value.is_floating_point() else None
