"""A comparison as plain values for JSON, documented in ``docs/why-slow.md``."""

from __future__ import annotations

import math
from typing import Any

from inferspan.diff.compare import Comparison, GroupDiff, Row
from inferspan.diff.recording import Recording
from inferspan.version import version

__all__ = ["SCHEMA", "document"]

SCHEMA = 1
"""Raised when a key changes its meaning or goes; new keys may come without."""


def document(found: Comparison) -> dict[str, Any]:
    """The JSON form."""
    return {
        "schema": SCHEMA,
        "version": version(),
        "verdict": found.verdict,
        "gate": found.gate,
        "alpha": found.alpha,
        "reasons": found.reasons,
        "notes": found.notes,
        "a": _side(found.a),
        "b": _side(found.b),
        "environment": [{"name": fact.name, "a": fact.a, "b": fact.b} for fact in found.facts],
        "groups": [_group(diff, found.alpha) for diff in found.groups],
    }


def _side(side: Recording) -> dict[str, Any]:
    return {"name": side.name, "models": side.models, "requests": side.requests, "left_out": dict(side.left)}


def _group(diff: GroupDiff, alpha: float) -> dict[str, Any]:
    tokens, logits, group = diff.tokens, diff.logits, diff.group
    return {
        "operation": group.operation,
        "model": group.model or None,
        "size": group.size or None,
        "requests": [sum(map(len, group.a)), sum(map(len, group.b))],
        "paired": group.paired,
        "figures": [_row(row, alpha) for row in diff.rows],
        "modules": [_row(row, alpha) for row in diff.modules],
        "output_tokens": None if tokens is None else {"a": tokens.a, "b": tokens.b, "pairs_that_differ": tokens.differ},
        "logits": None
        if logits is None
        else {
            "pairs": logits.pairs,
            "pairs_that_differ": logits.differ,
            "largest": _finite(logits.largest),
            "entropy": _finite(logits.entropy),
        },
    }


def _row(row: Row, alpha: float) -> dict[str, Any]:
    found = row.change
    low, high = (None, None) if found is None else found.interval(alpha)
    return {
        "kind": row.kind,
        "name": row.name,
        **({"phase": row.phase or None} if row.kind == "module" else {}),
        "unit": row.unit,
        "a": row.a,
        "b": row.b,
        "ratio": None if found is None else _finite(found.ratio),
        "low": _finite(low),
        "high": _finite(high),
        "count": None if found is None else found.count,
        "direction": row.direction(alpha),
        "role": row.role,
        "judgement": row.judgement,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
