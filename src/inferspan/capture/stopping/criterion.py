"""``inferspan.stop_on``: a ``StoppingCriteria`` of transformers that ends sequences whose output has gone wrong.

It acts only where the user passes it to ``generate()``. In: the ids of the loop, and the logits of the step, from the request that records
the loop or from the loop itself. Out: a bool for each row, on the device. transformers is imported when the first criterion is made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from inferspan.capture.call import current
from inferspan.setting_checks import warn_once

from .rules import Collapse, Loops, nonfinite_rows

__all__ = ["KINDS", "stop_on", "stops_of"]

KINDS = ("loop", "collapse", "nonfinite")
_MOST_DRAFTED = 64
"""Tokens that one question can be about; ids that are longer than that belong to another generation."""


class _Stop:
    """What a criterion does; a class of transformers is the other base.

    Attributes:
        kinds: what it stops, in the order of ``KINDS``.
    """

    def __init__(self, kinds: tuple[str, ...], options: dict[str, Any]) -> None:
        self.kinds = kinds
        self._options = options
        self._loops = Loops(options["loop_tokens"], options["max_period"])
        self._collapse = Collapse(options["collapse_tokens"], options["entropy"])
        self._request: tuple[int, int] | None = None
        self._rows = self._width = self._prompt = self._scores = 0
        self._first: dict[str, Tensor] = {}

    def __reduce__(self) -> Any:
        return functools.partial(stop_on, **self._options), self.kinds

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return stop_on(*self.kinds, **self._options)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Rows that end now, ``[rows]``; ``input_ids`` are those of prompt and output, ``[rows, width]``."""
        with torch.no_grad():
            rows, width = int(input_ids.shape[0]), int(input_ids.shape[1])
            self._follow(rows, width, scores)
            generated = width - self._prompt
            done = torch.zeros(rows, dtype=torch.bool, device=input_ids.device)
            logits = self._logits(scores, rows) if len(self.kinds) > ("loop" in self.kinds) else []
            for kind in self.kinds:
                for found in self._found(kind, input_ids, generated, logits):
                    met = found.to(input_ids.device, non_blocking=True)
                    done = done | met
                    self._note(kind, met, generated)
            return done

    def _follow(self, rows: int, width: int, scores: Any) -> None:
        """Begin anew if the question is about another generation."""
        call = current.call
        request = None if call is None else (id(call), call.start)
        if request is None:
            goes_on = self._width < width <= self._width + _MOST_DRAFTED
        else:
            # Before transformers 5 assisted decoding asks about candidates first, and then about fewer tokens.
            goes_on = width > self._prompt
        if request != self._request or rows != self._rows or not goes_on:
            self._request, self._rows, self._scores, self._first = request, rows, 0, {}
            self._prompt = width - _first_tokens(call)
            self._collapse.reset()
        self._width = width

    def _found(self, kind: str, ids: Tensor, generated: int, logits: list[Tensor]) -> list[Tensor]:
        if kind == "loop":
            found = self._loops.rows(ids, generated)
            return [] if found is None else [found]
        rule: Callable[[Tensor], Tensor] = nonfinite_rows if kind == "nonfinite" else self._collapse.rows
        return [rule(step) for step in logits]

    def _note(self, kind: str, met: Tensor, generated: int) -> None:
        """Note the number of tokens of each row that meets a rule for the first time."""
        first = self._first.get(kind)
        # 0 for a row that has met none.
        self._first[kind] = met.int() * generated if first is None else torch.where((first == 0) & met, generated, first)

    def _logits(self, scores: Any, rows: int) -> list[Tensor]:
        """Logits of the steps since the last question, ``[rows, vocabulary]`` each."""
        if isinstance(scores, tuple | list) and scores:
            begin = self._scores if self._scores < len(scores) else 0
            found, self._scores = list(scores[begin:]), len(scores)
        else:
            call: Any = current.call
            seen = getattr(getattr(call, "steps", None), "logits", None)
            if getattr(getattr(call.adapter if call is not None else None, "run", None), "drafted", False):
                raise ValueError(f"stop_on({self._named()}) cannot see which logits assisted decoding has accepted: {_SCORES}")
            found = [seen.select(1, -1)] if isinstance(seen, Tensor) and seen.dim() == 3 else []
            if not found:
                told = "stop_on(%s) sees no logits here and stops nothing: instrument the model with logits=True, or %s"
                warn_once(told, self._named(), _SCORES)
        if any(one.dim() != 2 or one.shape[0] != rows for one in found):
            raise ValueError(f"stop_on({self._named()}) cannot be used with beam search: its logits are not those of the sequences")
        return found

    def _named(self) -> str:
        return ", ".join(repr(kind) for kind in self.kinds if kind != "loop")

    def reasons(self, lengths: list[int]) -> list[str]:
        """Why each row of the last generation ended, an empty text if not by this criterion. Waits for the device.

        Args:
            lengths: tokens of each row.
        """
        found = [""] * len(lengths)
        for kind, first in self._first.items():
            for row, at in enumerate(first.tolist() if first.shape[0] == len(lengths) else ()):
                # A row that had ended before gets padding, which is a loop as well.
                if at and at == lengths[row] and not found[row]:
                    found[row] = kind
        return found


def _first_tokens(call: Any) -> int:
    """Tokens that the loop of a request has chosen when it asks for the first time: with a draft model they may be several."""
    loops = getattr(getattr(getattr(call, "adapter", None), "run", None), "loops", None)
    chosen = loops[-1].width if loops and loops[-1].prompt_width is None else None
    return chosen or 1


_SCORES = "call generate() with return_dict_in_generate=True and output_scores=True"


@functools.cache
def _class_of(base: type) -> type:
    """The criterion as a subclass of transformers' ``StoppingCriteria``."""
    return type("StopOn", (_Stop, base), {"__module__": __name__, "__doc__": _Stop.__doc__})


def stops_of(criteria: Any) -> list[Any]:
    """The criteria of ours among those of a loop."""
    return [one for one in criteria if isinstance(one, _Stop)]


def stop_on(
    *kinds: str, loop_tokens: int = 64, max_period: int = 32, collapse_tokens: int = 64, entropy: float = 0.01
) -> Any:
    """A stopping criterion for ``generate()`` that ends each sequence whose output has gone wrong.

    ``model.generate(..., stopping_criteria=StoppingCriteriaList([inferspan.stop_on("loop", "nonfinite")]))``. Make one for each call. It
    decides for each sequence of a batch, on the device of the ids, and waits for nothing. An instrumented request says which sequences it
    has ended, in ``inferspan.stop.kinds``.

    ``loop`` looks at the ids, in any decoding loop. ``collapse`` and ``nonfinite`` need the logits: of an instrumented model in a sampled
    request, or those of ``output_scores=True, return_dict_in_generate=True``; not in beam search.

    Args:
        kinds: ``loop``: the last tokens repeat themselves; ``collapse``: the entropy stays next to nothing; ``nonfinite``: a logit is NaN
            or plus infinity. By default all three.
        loop_tokens: tokens that must be a loop, with a period of at most ``max_period`` and at least three periods.
        max_period: largest period in tokens, at most 256.
        collapse_tokens: steps in a row with an entropy below ``entropy``.
        entropy: nats.

    Returns:
        A ``transformers.StoppingCriteria``: called with ids ``[rows, width]``, it returns a bool tensor ``[rows]``.

    Raises:
        ImportError: transformers is not installed.
        ValueError: a kind or a number cannot be used; in ``generate()``, if the logits of a beam search are needed.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ValueError(f"stop_on() does not know {unknown[0]!r}: use some of {', '.join(map(repr, KINDS))}")
    large = 1 << 20
    limits = (("loop_tokens", loop_tokens, 8, large), ("max_period", max_period, 1, 256), ("collapse_tokens", collapse_tokens, 1, large))
    for name, value, least, most in limits:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"stop_on() takes a whole number from {least} to {most} as {name}, not {value!r}")
    if isinstance(entropy, bool) or not isinstance(entropy, int | float) or not 0 < entropy < 100:
        raise ValueError(f"stop_on() takes a number of nats above 0 as entropy, not {entropy!r}")
    try:
        from transformers import StoppingCriteria
    except ImportError:
        raise ImportError("inferspan.stop_on() makes a StoppingCriteria of transformers: pip install transformers") from None
    options = {"loop_tokens": loop_tokens, "max_period": max_period, "collapse_tokens": collapse_tokens, "entropy": entropy}
    return _class_of(StoppingCriteria)(tuple(kind for kind in KINDS if kind in (kinds or KINDS)), options)
