"""Attention weights as transformers gives them with eager attention in float64, and their figures by the definitions in docs/inside.md."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from inferspan.capture.attention.results import AttentionCall
from tests.support.versions import is_before

__all__ = ["OLD_TORCH", "OLD_TRANSFORMERS", "check_call", "eager", "figures"]

OLD_TORCH = is_before("torch", 2, 5)
OLD_TRANSFORMERS = is_before("transformers", 5)


def eager(model: Any, dtype: torch.dtype = torch.float64) -> Any:
    """The same model with eager attention. The softmax of most is in float32; a query that sees nothing is NaN in float64."""
    double = copy.deepcopy(model).to(dtype)
    double.set_attn_implementation("eager")
    return double


def figures(weights: Tensor, seen: Tensor | None = None) -> dict[str, Any]:
    """The figures of ``weights``; ``seen`` [batch, queries] are the queries that count."""
    batch, heads, queries, keys = weights.shape
    assert weights.dtype is torch.float64
    seen = torch.ones(batch, queries, dtype=torch.bool) if seen is None else seen
    rows = [(b, h, q, weights[b, h, q]) for b in range(batch) for h in range(heads) for q in range(queries) if seen[b, q]]
    entropies = [(h, -float((row[row > 0] * row[row > 0].log()).sum())) for _, h, _, row in rows]
    counted = weights * seen[:, None, :, None]
    first = [int((counted[b].sum((0, 1)) > 0).nonzero()[0]) for b in range(batch)]
    peaks = [float(weights[b, :, q].sum(0).max()) for b in range(batch) for q in range(queries) if seen[b, q]]
    received = counted.sum((1, 2)) / heads / seen.sum(1)[:, None]
    of_heads = []
    for head in range(heads):
        own = torch.tensor([entropy for h, entropy in entropies if h == head], dtype=torch.float64)
        sinks = [float(row[first[b]]) for b, h, _, row in rows if h == head]
        of_heads.append((float(own.mean()), float(own.std(correction=0)), sum(sinks) / len(sinks)))
    values = torch.tensor([entropy for _, entropy in entropies], dtype=torch.float64)
    return {
        "rows": len(rows),
        "entropy_mean": float(values.mean()),
        "entropy_std": float(values.std(correction=0)),
        "max": max(float(row.max()) for *_, row in rows),
        "mean": 1 / keys,
        "sink_share": sum(float(row[first[b]]) for b, _, _, row in rows) / len(rows),
        "peak_per_query_mean": sum(peaks) / len(peaks),
        "heads": of_heads,
        "received": received,
        "first": first,
    }


def check_call(call: AttentionCall, weights: Tensor, seen: Tensor | None = None, *, close: float = 2e-5) -> None:
    """Hold a call against the weights of the same call."""
    want = figures(weights, seen)
    assert call.shape == tuple(weights.shape)
    assert call.rows == want["rows"]
    for name in ("entropy_mean", "entropy_std", "max", "mean", "sink_share", "peak_per_query_mean"):
        assert getattr(call, name) == pytest.approx(want[name], abs=close * max(1.0, abs(want[name]))), name
    assert call.peak_share_mean == pytest.approx(want["peak_per_query_mean"] / weights.shape[1], abs=close)
    assert list(call.first_positions) == want["first"][:8]
    for head, (entropy, deviation, sink) in zip(call.heads, want["heads"], strict=True):
        assert head.entropy_mean == pytest.approx(entropy, abs=close * 4)
        assert head.entropy_std == pytest.approx(deviation, abs=close * 4)
        assert head.sink_share == pytest.approx(sink, abs=close)
    for row, keys in enumerate(call.received_per_key):
        largest = want["received"][row].topk(min(5, weights.shape[-1])).values.tolist()
        assert [key.weight for key in keys] == pytest.approx([one for one in largest if one > 0], abs=close)
        for key in keys:
            assert key.weight == pytest.approx(float(want["received"][row][key.position]), abs=close)


def by_layer(calls: Iterable[AttentionCall]) -> Mapping[tuple[str, int | None], AttentionCall]:
    """Calls by layer and step."""
    found = {(call.module, call.step): call for call in calls}
    assert found
    return found
