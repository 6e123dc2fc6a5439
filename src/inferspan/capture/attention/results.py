"""Attention as it is shown: figures of a call, of a layer, and of all layers of a model; without anything on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from inferspan import semconv
from inferspan.records import AttributeValue

__all__ = ["Attention", "AttentionCall", "AttentionMap", "HeadAttention", "LayerAttention", "ReceivedKey"]

MOST_HEADS = 128
"""Heads that the arrays of a span have; the figures of more are in the results alone."""


@dataclass(frozen=True, slots=True)
class HeadAttention:
    """Figures of one head, over batch and queries: entropy in nats, largest and mean weight, share of the first position."""

    head: int
    entropy_mean: float
    entropy_std: float
    max: float
    mean: float
    sink_share: float


@dataclass(frozen=True, slots=True)
class ReceivedKey:
    """A key, and the weight that it gets, averaged over heads and queries.

    Attributes:
        position: of the key in its sequence.
        weight: 0 to 1.
        token: its text, with content capture.
    """

    position: int
    weight: float
    token: str | None = None


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """Attention weights of one call of a layer, in figures.

    A query that sees no key, such as padding, counts nowhere.

    Attributes:
        module: path of the layer.
        step: number of the step of its request; ``None`` outside of one.
        time_ns: when it ended, nanoseconds since the epoch.
        source: ``returned`` by the module, or ``recomputed`` from queries and keys.
        shape: of the weights: batch, heads, queries, keys.
        rows: queries of all heads and sequences that count.
        entropy_mean: mean over batch, heads and queries of the entropy of a query's weights, in nats.
        entropy_std: population standard deviation of the same.
        max: largest weight.
        mean: mean weight, one over the number of keys by construction: it checks the capture and says nothing of the model.
        sink_share: mean weight on the first position of the sequence, the first key that any query attends to.
        heads: the same for each head.
        peak_per_query_mean: mean over queries of the largest sum over heads of a key's weights, 0 to the number of heads.
        peak_per_query: that sum for each query, sequence by sequence, 0 for a query that sees no key; empty for more than 512.
        received_per_key: for each sequence, at most 8, the 5 keys that get most weight, averaged over heads and queries.
        first_positions: for each of these sequences, the first position.
        cross: whether the keys are those of another sequence, such as an encoder's.
        shift: position of the first key, where a window has left others behind.
        weights: the weights themselves, a tensor in host memory, with ``attention_maps``.
    """

    module: str
    step: int | None
    time_ns: int
    source: str
    shape: tuple[int, int, int, int]
    rows: int = 0
    entropy_mean: float = math.nan
    entropy_std: float = math.nan
    max: float = math.nan
    mean: float = math.nan
    sink_share: float = math.nan
    heads: tuple[HeadAttention, ...] = ()
    peak_per_query_mean: float = math.nan
    peak_per_query: tuple[float, ...] = ()
    received_per_key: tuple[tuple[ReceivedKey, ...], ...] = ()
    first_positions: tuple[int, ...] = ()
    cross: bool = False
    shift: int = 0
    weights: Any = field(default=None, repr=False, compare=False)

    def with_figures(self, **figures: Any) -> AttentionCall:
        """The call with its figures."""
        return replace(self, **figures)

    @property
    def peak_share_mean(self) -> float:
        """``peak_per_query_mean`` divided by the number of heads, 0 to 1."""
        return self.peak_per_query_mean / self.shape[1]

    @property
    def peak_share(self) -> tuple[float, ...]:
        """``peak_per_query`` divided by the number of heads, 0 to 1."""
        return tuple(peak / self.shape[1] for peak in self.peak_per_query)

    def attributes(self) -> dict[str, AttributeValue]:
        """For the span of the call."""
        heads = self.heads[:MOST_HEADS]
        found: dict[str, AttributeValue] = {
            semconv.ATTENTION_SOURCE: self.source,
            **({semconv.ATTENTION_CROSS: True} if self.cross else {}),
            semconv.ATTENTION_SHAPE: list(self.shape),
            semconv.ATTENTION_ENTROPY_MEAN: self.entropy_mean,
            semconv.ATTENTION_ENTROPY_STD: self.entropy_std,
            semconv.ATTENTION_MAX: self.max,
            semconv.ATTENTION_MEAN: self.mean,
            semconv.ATTENTION_SINK: self.sink_share,
            semconv.ATTENTION_PEAK: self.peak_per_query_mean,
            semconv.ATTENTION_PEAK_SHARE: self.peak_share_mean,
            semconv.ATTENTION_HEAD_ENTROPIES: [head.entropy_mean for head in heads],
            semconv.ATTENTION_HEAD_SINKS: [head.sink_share for head in heads],
        }
        if self.received_per_key and self.received_per_key[0]:
            first = self.received_per_key[0]
            found[semconv.ATTENTION_KEY_POSITIONS] = [key.position for key in first]
            found[semconv.ATTENTION_KEY_WEIGHTS] = [key.weight for key in first]
        return {key: value for key, value in found.items() if _finite(value)}

    def __str__(self) -> str:
        where = "" if self.step is None else f", step {self.step}"
        return f"{self.module}{where}: {'x'.join(map(str, self.shape))} {self.source}, {_figures(self)}"


def _finite(value: Any) -> bool:
    return all(math.isfinite(one) for one in (value if isinstance(value, list) else [value]) if isinstance(one, float))


def _figures(one: Any) -> str:
    peak = one.peak_per_query_mean
    return (
        f"entropy {one.entropy_mean:.4f} +- {one.entropy_std:.4f} nats, max {one.max:.4f}, first position {one.sink_share:.1%},"
        f" peak per query {peak:.4f} ({peak / max(1, len(one.heads)):.1%} of the heads)"
    )


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """Attention of one layer over all calls; means and deviations are those of all queries together, see :class:`AttentionCall`.

    Attributes:
        module: path of the layer.
        calls: number of calls.
        source: ``returned`` or ``recomputed``, of the last call.
        rows: queries of all heads and sequences that count.
        heads: the same for each head.
        last: the last call.
    """

    module: str
    calls: int
    source: str
    rows: int
    entropy_mean: float
    entropy_std: float
    max: float
    mean: float
    sink_share: float
    peak_per_query_mean: float
    heads: tuple[HeadAttention, ...]
    last: AttentionCall

    def __str__(self) -> str:
        calls = "1 call" if self.calls == 1 else f"{self.calls:,} calls"
        keys = ", ".join(
            f"{key.position}{'' if key.token is None else f' {key.token!r}'} {key.weight:.1%}"
            for key in (self.last.received_per_key or ((),))[0]
        )
        return f"{self.module}: {calls}, {self.source}, {_figures(self)}; last call attends to {keys}"


@dataclass(frozen=True, slots=True)
class Attention:
    """What is known of the attention of a model; printed, a line for each layer.

    Attributes:
        layers: layers that gave weights, in the order in which they first did.
        missing: layers that gave none, by path, with the reason.
        left_out: calls that were left out, by reason.
        calls: the latest calls, at most 1,024, the newest last.
    """

    layers: tuple[LayerAttention, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    calls: tuple[AttentionCall, ...] = ()

    def __str__(self) -> str:
        gave = "1 layer gave weights" if len(self.layers) == 1 else f"{len(self.layers):,} layers gave weights"
        odd = ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.items())
        lines = [f"attention: {gave}, {len(self.missing):,} did not; calls left out: {odd or 'none'}"]
        lines += [f"  {layer}" for layer in self.layers]
        lines += [f"  {module}: no weights: {reason}" for module, reason in self.missing.items()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class AttentionMap:
    """Weights of one call for the session file.

    Attributes:
        module: path of the layer.
        step: number of the step.
        time_ns: when the call ended, nanoseconds since the epoch.
        shape: sequences, heads, queries, keys.
        shift: position of the first key.
        scale: a weight is its byte times this.
        data: the bytes in that order, compressed by zlib, as base64.
        cross: whether the keys are those of another sequence.
    """

    module: str
    step: int | None
    time_ns: int
    shape: tuple[int, int, int, int]
    shift: int
    scale: float
    data: str
    cross: bool = False
