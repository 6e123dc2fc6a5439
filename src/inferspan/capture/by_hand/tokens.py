"""The tokens that a loop has chosen, row by row: kept on their device while it runs, counted at its end.

In: ids in whatever form the loop has them. Out: ids as the statistics take them, with the rows marked that had ended before; at the end the
tokens of each row, up to and including its first end token. Only the end waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from inferspan import semconv
from inferspan.capture.generate.tokens import Loop
from inferspan.capture.logits.reductions import ENDED
from inferspan.guard import read_attribute

from .prompt import as_tensor

__all__ = ["ChosenTokens", "Counted", "Misuse", "end_tokens", "ids_of"]

MOST_END_TOKENS = 16
GROUP = 512
"""Steps whose ids are kept one by one before they are joined."""
KINDS = "token() takes the chosen token as a number, or one for each row as a list, a tensor or an array [rows] or [rows, 1]"


def end_tokens(*sources: Any) -> frozenset[int]:
    """The end tokens that a generation configuration, configuration or tokenizer names; the first source that names some counts."""
    for source in sources:
        value = read_attribute(source, "eos_token_id")
        found = [one for one in (value if isinstance(value, Iterable) else (value,)) if type(one) is int and one >= 0]
        if found:
            return frozenset(found[:MOST_END_TOKENS])
    return frozenset()


class Misuse(ValueError):
    """A call of the user's that cannot be recorded; its text says what to do."""


class Counted(NamedTuple):
    """Tokens of each row, whether its end token has come, and the ids, which are content."""

    counts: list[int]
    ended: list[bool]
    ids: Tensor


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral)


def ids_of(token: Any) -> Tensor:
    """The ids ``[rows, 1]`` of a step, on the device on which they are.

    Raises:
        Misuse: it is nothing like that.
    """
    listed = token if isinstance(token, list | tuple) else [token]
    if listed and all(_is_number(one) for one in listed):
        return torch.tensor([[int(one)] for one in listed], device="cpu")
    ids = as_tensor(token)
    if ids is None or ids.is_floating_point() or ids.dim() > 2 or (ids.dim() == 2 and ids.shape[1] != 1) or 0 in ids.shape:
        raise Misuse(KINDS)
    return ids.reshape(-1, 1)


class ChosenTokens:
    """Tokens of one generation.

    Args:
        eos: end tokens; without any no row ends by itself.

    Attributes:
        steps: how often tokens were chosen.
        rows: sequences, from the first choice on.
    """

    def __init__(self, eos: frozenset[int]) -> None:
        self._loop = Loop(eos=eos)
        self._eos = sorted(eos)
        self._kept: list[Tensor] = []
        self._single = 0
        self.steps = 0
        self.rows: int | None = None

    @property
    def rows_end(self) -> bool:
        """Whether a row may end before the others."""
        return bool(self._eos) and (self.rows or 1) > 1

    def add(self, ids: Tensor) -> Tensor:
        """Keep the ids ``[rows, 1]`` that a step has chosen; returns them with the rows marked that had ended before.

        Raises:
            Misuse: there are more or fewer rows than in the first step.
        """
        rows = int(ids.shape[0])
        if self.rows is not None and rows != self.rows:
            raise Misuse(f"token() was given {rows} tokens, the first time {self.rows}: pass one for each row, -1 for one that has ended")
        self.rows = rows
        self.steps += 1
        # A copy, because a loop may write its next tokens to the same place.
        self._kept.append(ids.detach().reshape(-1).to(torch.int32, copy=True))
        self._single += 1
        if self._single >= GROUP:
            self._join()
        if rows == 1:
            return ids
        ids = ids.long()
        if self._eos:
            last = ids.reshape(-1)
            done = last == self._eos[0]
            for token in self._eos[1:]:
                done = done | (last == token)
            marked = self._loop.mark_ended(ids, done)
        else:
            marked = ids
        return marked.masked_fill(ids < 0, ENDED)

    def _join(self) -> None:
        single = self._kept[-self._single :]
        del self._kept[-self._single :]
        self._kept.append(torch.stack([one.to(single[0].device) for one in single]))
        self._single = 0

    def count(self) -> Counted | None:
        """Count the tokens of each row; ``None`` if none was chosen. Waits for the device."""
        if not self.rows:
            return None
        if self._single:
            self._join()
        table = torch.cat([group.to("cpu") for group in self._kept]).T  # [rows, steps]
        steps = table.shape[1]
        places = torch.arange(steps, device="cpu").expand_as(table)
        is_end = torch.zeros_like(table, dtype=torch.bool)
        for token in self._eos:
            is_end |= table == token
        end = places.masked_fill(~is_end, steps).amin(1)
        over = places.masked_fill(table >= 0, steps).amin(1)
        counts = torch.minimum(end + 1, over).clamp(max=steps)
        ended = (end < over) | (over < steps)
        return Counted(counts.tolist(), ended.tolist(), table)

    def reasons(self, counted: Counted, given: list[str]) -> list[str]:
        """Why each row ended: by its end token, else for the reason that the loop gives."""
        return [semconv.FINISH_STOP if ended else one for ended, one in zip(counted.ended, given, strict=True)]
