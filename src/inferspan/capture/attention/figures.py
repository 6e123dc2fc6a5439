"""Figures of attention weights: launched on the device in pieces, read when the request ends.

In: weights ``[batch, heads, queries, keys]`` piece by piece. Out: one small tensor for a call, and from its values an ``AttentionCall``.
A query whose weights are all 0 sees no key, such as padding, and does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .results import AttentionCall, HeadAttention, ReceivedKey

__all__ = ["Layout", "figures_of", "on_host", "read"]

MOST_PEAKS = 512
"""Queries of a call beyond which only the mean of their peaks is kept."""
MOST_LATER = 1 << 14
"""Sums of a call that are read as they are: a step then launches a third of the operations."""
MOST_SEQUENCES = 8
"""Sequences of a batch whose most attended keys are listed."""
MOST_KEYS = 5
TOLERANCE = 0.05
"""By how much the weights of a query may exceed 1 together: those of half precision are rounded."""
_COMMON = 8
_OF_HEAD = 5


class Layout(NamedTuple):
    """Shape of the weights, which says where each figure is."""

    batch: int
    heads: int
    queries: int
    keys: int

    @property
    def peaks(self) -> int:
        """Queries whose peaks are kept one by one."""
        number = self.batch * self.queries
        return number if number <= MOST_PEAKS else 0

    @property
    def listed(self) -> tuple[int, int]:
        """Sequences, and keys of each, that are listed as most attended."""
        return min(self.batch, MOST_SEQUENCES), min(self.keys, MOST_KEYS)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the weights."""
        return self.batch, self.heads, self.queries, self.keys

    @property
    def sums(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of what ``_group`` gives for all sequences."""
        by_query = (self.batch, self.heads, self.queries)
        return by_query, by_query, by_query, by_query, (self.batch, self.queries), (self.batch, self.heads, self.keys)

    @property
    def later(self) -> bool:
        """Whether these are so few that they are read as they are, and the figures made of them on the host."""
        return sum(map(math.prod, self.sums)) <= MOST_LATER

    def bytes(self, width: int) -> int:
        """Size of what is kept on the device, with values of so many bytes."""
        if self.later:
            return width * sum(map(math.prod, self.sums))
        sequences, keys = self.listed
        return width * (_COMMON + _OF_HEAD * self.heads + self.peaks + sequences + 2 * sequences * keys)


def figures_of(weights: Callable[[slice, slice], Tensor], layout: Layout, rows: int, queries: int, keep: list[Tensor] | None) -> Tensor:
    """Launch the figures of a call, or, where that is little, the sums that they are made of.

    Args:
        weights: gives the weights of some sequences and queries.
        layout: their shape.
        rows: sequences at once.
        queries: queries at once.
        keep: gets the weights of each group of sequences, if they are wanted.

    Returns:
        A vector that ``read`` takes.
    """
    groups = [_group(weights, slice(row, row + rows), layout, queries, keep) for row in range(0, layout.batch, rows)]
    sums = groups[0] if len(groups) == 1 else tuple(torch.cat(parts) for parts in zip(*groups, strict=True))
    return torch.cat([one.reshape(-1) for one in sums]) if layout.later else _finish(sums, layout)


def _finish(sums: tuple[Tensor, ...], layout: Layout) -> Tensor:
    """The figures in one vector, of one call, or of several whose sums are stacked."""
    entropy, total, largest, smallest, peak, received = sums
    dtype, everything, of_each = entropy.dtype, (-3, -2, -1), (-3, -1)
    counts = (total > 0).to(dtype)
    number, of_head = counts.sum(everything), counts.sum(of_each)
    bad = ((total > 1 + TOLERANCE) | (smallest < 0) | ~torch.isfinite(total)).to(dtype).sum(everything)
    # Weights that are none may be anything; their figures are not used.
    counted = entropy * counts
    mean, mean_of_head = counted.sum(everything) / number, counted.sum(of_each) / of_head
    deviation = (((entropy - mean[..., None, None, None]) ** 2 * counts).sum(everything) / number).sqrt()
    deviation_of_head = (((entropy - mean_of_head[..., None, :, None]) ** 2 * counts).sum(of_each) / of_head).sqrt()
    of_sequence = counts[..., 0, :].sum(-1)
    by_key = received.mean(-2) / of_sequence[..., None]
    first = (by_key > 0).to(dtype).argmax(-1)
    sink = received.gather(-1, first[..., None, None].expand(*received.shape[:-1], 1)).squeeze(-1).sum(-2)
    of_weights = received.sum(of_each)
    weight, position = by_key[..., : layout.listed[0], :].topk(layout.listed[1], -1)
    average, sinks = of_weights.sum(-1) / number / layout.keys, sink.sum(-1) / number
    common = [bad, number, mean, deviation, largest.amax(everything), average, sinks, peak.sum((-2, -1)) / of_sequence.sum(-1)]
    of_heads = [mean_of_head, deviation_of_head, largest.amax(of_each), of_weights / of_head / layout.keys, sink / of_head]
    parts = [
        torch.stack(common, -1),
        torch.stack(of_heads, -2).flatten(-2),
        first[..., : layout.listed[0]].to(dtype),
        position.to(dtype).flatten(-2),
        weight.flatten(-2),
    ]
    if layout.peaks:
        parts.append(peak.flatten(-2))
    return torch.cat(parts, -1)


def _group(
    weights: Callable[[slice, slice], Tensor], rows: slice, layout: Layout, queries: int, keep: list[Tensor] | None
) -> tuple[Tensor, ...]:
    """Of some sequences: by head and query the entropy, sum, largest and smallest weight; peaks by query; sums by head and key."""
    parts: list[tuple[Tensor, ...]] = []
    received: Tensor | None = None
    kept = []
    for start in range(0, layout.queries, queries):
        some = weights(rows, slice(start, start + queries))
        entropy = torch.xlogy(some, some).sum(-1).neg()
        parts.append((entropy, some.sum(-1), some.amax(-1), some.amin(-1), some.sum(1).amax(-1)))
        columns = some.sum(2)
        received = columns if received is None else received + columns
        if keep is not None:
            kept.append(some.clone())  # it may be a tensor of the program
    if keep is not None:
        keep.append(kept[0] if len(kept) == 1 else torch.cat(kept, 2))
    assert received is not None
    return (*(torch.cat(one, -1) if len(one) > 1 else one[0] for one in zip(*parts, strict=True)), received)


def on_host(vectors: Sequence[Tensor], layout: Layout) -> list[list[float]]:
    """The figures of calls of one layout, from what ``figures_of`` has given, on the host."""
    stacked = torch.stack([*vectors])
    if layout.later:
        parts = stacked.split([math.prod(shape) for shape in layout.sums], -1)  # type: ignore[no-untyped-call]
        stacked = _finish(tuple(part.reshape(-1, *shape) for part, shape in zip(parts, layout.sums, strict=True)), layout)
    values: list[list[float]] = stacked.tolist()
    return values


def read(values: Sequence[float], layout: Layout, call: AttentionCall, heads: tuple[int, ...] | None) -> AttentionCall | None:
    """A call with its figures.

    Args:
        values: of ``on_host``.
        layout: of the weights.
        call: what is known of the call beside its figures.
        heads: numbers of the heads that were computed; ``None`` is all.

    Returns:
        The call; ``None`` if these are no attention weights, or no query saw a key.
    """
    bad, number, mean, deviation, largest, average, sink, peak = values[:_COMMON]
    if bad or not number:
        return None
    at = _COMMON + _OF_HEAD * layout.heads
    columns = [values[_COMMON + layout.heads * one : _COMMON + layout.heads * (one + 1)] for one in range(_OF_HEAD)]
    numbers = range(layout.heads) if heads is None else heads
    of_heads = tuple(HeadAttention(head, *figures) for head, *figures in zip(numbers, *columns, strict=False))
    sequences, keys = layout.listed
    firsts = tuple(int(one) + call.shift for one in values[at : at + sequences])
    at += sequences
    positions, weights = values[at : at + sequences * keys], values[at + sequences * keys : at + 2 * sequences * keys]
    pairs = [ReceivedKey(int(position) + call.shift, weight) for position, weight in zip(positions, weights, strict=True)]
    received = tuple(tuple(one for one in pairs[row * keys : (row + 1) * keys] if one.weight > 0) for row in range(sequences))
    at += 2 * sequences * keys
    return call.with_figures(
        rows=int(number), entropy_mean=mean, entropy_std=deviation, max=largest, mean=average, sink_share=sink, heads=of_heads,
        peak_per_query_mean=peak, peak_per_query=tuple(values[at : at + layout.peaks]), received_per_key=received, first_positions=firsts,
    )  # fmt: skip
