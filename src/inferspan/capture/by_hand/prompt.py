"""What the caller says of the prompt: a number of tokens, one number a row, the ids, or a tokenizer's whole output.

In: ``input_tokens`` of ``inferspan.generation()``. Out: plain values. A value of another kind raises, with the kinds that are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from inferspan.capture.generate.arguments import Arguments, generate_arguments

__all__ = ["Prompt", "as_tensor", "prompt_of"]

_KINDS = (
    "use the number of tokens of the prompt, a list with one number for each row, the ids as a tensor or array [rows, tokens] "
    "or as one list a row, or the mapping that a tokenizer returns"
)


class Prompt(NamedTuple):
    """The prompt as far as the caller has told of it."""

    arguments: Arguments = Arguments()
    """Ids, mask and features."""
    counts: Sequence[int] | None = None
    """Tokens of each row."""
    each: int | None = None
    """Tokens of every row, whose number is not known."""

    @property
    def known(self) -> bool:
        """Whether anything is known of it."""
        return self.counts is not None or self.each is not None or self.arguments != Arguments()

    @property
    def width(self) -> int | None:
        """Positions of a row, padding included, as far as they are known."""
        for tensor in (self.arguments.input_ids, self.arguments.inputs_embeds):
            if isinstance(tensor, Tensor) and tensor.dim() >= 2:
                return int(tensor.shape[1])
        return max(self.counts) if self.counts else self.each


def as_tensor(value: Any) -> Tensor | None:
    """A tensor, or an array of numpy as one without a copy if it can be written to; ``None`` for anything else."""
    if isinstance(value, Tensor):
        return value
    if not hasattr(value, "__array_interface__"):
        return None
    import numpy

    array = numpy.asarray(value)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _number(value: Any) -> int:
    if type(value) is bool or not isinstance(value, Integral):
        raise TypeError(f"inferspan.generation() cannot take input_tokens with {type(value).__name__}: {_KINDS}")
    if value < 0:
        raise ValueError(f"inferspan.generation() cannot take input_tokens={int(value)}: a prompt has no negative number of tokens")
    return int(value)


def _ids(value: Any) -> Prompt:
    ids = as_tensor(value)
    if ids is None or ids.dim() not in (1, 2) or ids.is_floating_point():
        shape = "" if ids is None else f" of shape {list(ids.shape)} and {str(ids.dtype).removeprefix('torch.')}"
        raise TypeError(f"inferspan.generation() cannot take input_tokens as {type(value).__name__}{shape}: {_KINDS}")
    return Prompt(Arguments(input_ids=ids if ids.dim() == 2 else ids.unsqueeze(0)))


def prompt_of(value: Any) -> Prompt:
    """The prompt that a value of ``input_tokens`` tells of.

    Raises:
        TypeError: it is of another kind.
        ValueError: a number is negative.
    """
    if value is None:
        return Prompt()
    if isinstance(value, Integral):
        return Prompt(each=_number(value))
    if isinstance(value, Mapping):
        plain = {key: as_tensor(one) if as_tensor(one) is not None else one for key, one in value.items() if isinstance(key, str)}
        return Prompt(generate_arguments((), plain))
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], list | tuple):
            return Prompt(counts=[len(row) for row in value])
        return Prompt(counts=[_number(one) for one in value])
    return _ids(value)
