"""Counts tokens in the arguments and in the result of ``generate()``.

Neither the number of steps nor the width of a tensor is a count: padding, filler after the end, beams, cached prefixes, drafts and
undone steps all differ from it. Input is attended positions; output is, per returned row, the tokens from the prompt up to and including
the first end token. A count that cannot be known is ``None``, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from inferspan import semconv
from inferspan.capture.logits.reductions import ENDED

__all__ = ["Generated", "Loop", "count_input", "count_output", "sequences_of", "token_ids"]

GROUP = 512
"""Stop decisions that are kept one by one before they are stacked."""


@dataclass
class Loop:
    """Facts of one decoding loop; one ``generate()`` may run several."""

    eos: frozenset[int] = frozenset()
    pad: int | None = None
    beams: int = 1
    returned: int = 1
    max_length: int | None = None
    custom: bool = False
    """Whether something other than an end token or a length can stop a row, so that its length cannot be read from the result alone."""
    stops: Sequence[Any] = ()
    """Criteria of ``inferspan.stop_on`` among those of the loop."""
    prompt_width: int | None = None
    width: int | None = None
    rows: int | None = None
    assisted: bool = False
    rows_end: bool = False
    """Whether a row may end before the others, so that its logits are filler from then on."""
    ended: Tensor | None = None
    """[rows, 1], on the device: 0 for a row that still runs, else far below any token id."""
    attention_mask: Tensor | None = None
    mask_seen: bool = False
    decisions: list[Tensor] = field(default_factory=list)

    def mark_ended(self, ids: Tensor, done: Any) -> Tensor:
        """The ids ``[rows, 1]`` that a step has chosen, marked for rows that had ended before; notes the rows that ``done`` ends.

        Two small operations on the device; nothing is read.
        """
        last, ended = ids.narrow(1, ids.shape[1] - 1, 1), self.ended
        if isinstance(done, Tensor) and done.dim() == 1 and done.shape[0] == ids.shape[0]:
            step = done.unsqueeze(1)
            self.ended = step * ENDED if ended is None else torch.add(ended, step, alpha=ENDED)
        return last if ended is None else last + ended

    def note_decision(self, done: Any) -> None:
        """Keep the rows that a step ended, for loops in which the end of a row cannot be found otherwise."""
        if not self.custom or self.beams > 1 or not isinstance(done, Tensor) or done.dim() != 1:
            return
        self.decisions.append(done)
        if len(self.decisions) >= GROUP and all(one.dim() == 1 for one in self.decisions[-GROUP:]):
            group = torch.stack(self.decisions[-GROUP:])
            del self.decisions[-GROUP:]
            self.decisions.append(group)

    def ended_after(self) -> list[int | None] | None:
        """Per row, how many tokens it had when its criteria ended it, ``None`` if a limit did; ``None`` without decisions."""
        if not self.decisions or self.assisted:
            return None
        table = torch.cat([one if one.dim() == 2 else one.unsqueeze(0) for one in self.decisions]).tolist()
        rows = len(table[0])
        return [next((step + 1 for step, line in enumerate(table) if line[row]), None) for row in range(rows)]


@dataclass(frozen=True)
class Generated:
    """Tokens and finish reason of each returned sequence; ``rows`` are the token ids, which never leave without leave."""

    counts: list[int]
    reasons: list[str]
    rows: list[list[int]]


def token_ids(value: Any) -> tuple[frozenset[int], bool]:
    """The ids of a configuration, a number, list or tensor of them, and whether they are known: reading those on a device would wait."""
    if isinstance(value, Tensor):
        if value.device.type != "cpu":
            return frozenset(), False
        value = value.flatten().tolist()
    values = value if isinstance(value, list | tuple) else () if value is None else (value,)
    return frozenset(values), True


def sequences_of(result: Any) -> Tensor | None:
    """The [rows, width] tensor of token ids in a result of ``generate()``, or ``None`` for anything else."""
    if not isinstance(result, Tensor):
        if isinstance(result, Mapping):
            result = dict.get(result, "sequences") if isinstance(result, dict) else None
        else:
            result = None
    if not isinstance(result, Tensor) or result.dim() != 2 or result.is_floating_point() or result.is_complex() or result.is_nested:
        return None
    return result


def count_input(
    *, input_ids: Any, inputs_embeds: Any, attention_mask: Any, loop: Loop | None, text_encoder_or_decoder: bool
) -> list[int] | None:
    """Attended prompt positions per row of the caller's batch.

    Args:
        input_ids: [rows, width] ids as the caller passed them, or ``None``.
        inputs_embeds: [rows, width, hidden], or ``None``.
        attention_mask: [rows, width] as the caller passed it, or ``None``; it may be wider than the ids when a cache continues.
        loop: the loop that was seen, whose mask counts where the caller passed none.
        text_encoder_or_decoder: false where the model's main input is no text (audio, pixels).
    """
    if not text_encoder_or_decoder and input_ids is None:
        return None
    for source, rank in ((input_ids, 2), (inputs_embeds, 3)):
        if isinstance(source, Tensor) and source.dim() == rank and source.shape[1] > 0:
            rows, width = int(source.shape[0]), int(source.shape[1])
            break
    else:
        if input_ids is None and inputs_embeds is None and loop is not None and loop.prompt_width and loop.rows:
            expand = max(1, max(loop.beams, loop.returned))
            return [loop.prompt_width] * max(1, loop.rows // expand)
        return None
    if isinstance(attention_mask, Tensor) and attention_mask.dim() == 2 and attention_mask.shape[0] == rows:
        return [int(count) for count in attention_mask.sum(dim=1).tolist()]
    inferred = loop.attention_mask if loop is not None else None
    if attention_mask is None and inferred is not None and inferred.dim() == 2 and inferred.shape[0] % rows == 0:
        expand = inferred.shape[0] // rows
        return [int(count) for count in inferred[::expand].sum(dim=1).tolist()]
    return [width] * rows


def _prompt_width(sequences: Tensor, loop: Loop, *, exact: bool, prompt: Any) -> int | None:
    """Number of leading positions of the returned rows that are prompt; ``None`` if unknown."""
    width = loop.prompt_width
    if width is not None and (exact or not width):
        return min(width, int(sequences.shape[1]))
    # A generate() of the model's own may have cut the prompt off, and a custom loop may not report its width; compare the first tokens.
    comparable = isinstance(prompt, Tensor) and prompt.dim() == 2 and prompt.shape[0] == sequences.shape[0]
    known = int(prompt.shape[1]) if comparable else -1
    fits = known == (known if width is None else width) and sequences.shape[1] >= known >= 0
    if fits and bool((sequences[:, :known].to(prompt.device) == prompt).all()):
        return known
    return None if width is None else 0


def count_output(sequences: Tensor, loops: Sequence[Loop], *, exact: bool, prompt: Any) -> Generated | None:
    """Tokens of each returned row, or ``None`` if their beginning is unknown.

    Args:
        sequences: [rows, width] ids that were returned.
        loops: the loops that produced them, in order.
        exact: whether ``sequences`` is the result of the one loop, prompt first.
        prompt: ids that a wrapper of the model's own may have put before or cut off.
    """
    loop = loops[-1] if loops else Loop()
    start = _prompt_width(sequences, loop, exact=exact and len(loops) == 1, prompt=prompt)
    if start is None:
        return None
    rows = sequences[:, start:].tolist() if start else sequences.tolist()
    ended = loop.ended_after() if len(loops) == 1 else None
    if ended is not None and len(ended) != len(rows):
        ended = None
    # Rows of one loop end early by an end token or a criterion only; a generate() of the model's own may have added to them.
    # A shorter beam has its end token, found above, so beams without one are full unless a criterion has ended them.
    filler_possible = len(loops) != 1 or not exact or (loop.beams > 1 and loop.custom)
    counts, reasons = [], []
    for index, row in enumerate(rows):
        own = ended[index] if ended is not None else None
        limit = len(row) if own is None else min(len(row), own)
        first = next((position for position, token in enumerate(row[:limit]) if token in loop.eos), None)
        if first is not None:
            counts.append(first + 1)
            reasons.append(semconv.FINISH_STOP)
            continue
        count = limit
        if filler_possible and loop.pad is not None:
            while count and row[count - 1] == loop.pad:
                count -= 1
        full = loop.max_length is not None and start + limit >= loop.max_length
        early = own is not None and own <= len(row)
        counts.append(count)
        reasons.append(semconv.FINISH_STOP if early or (loop.custom and not full) else semconv.FINISH_LENGTH)
    return Generated(counts, reasons, [row[:count] for row, count in zip(rows, counts, strict=True)])
