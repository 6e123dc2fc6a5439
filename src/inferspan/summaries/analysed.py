"""The analysis of many requests together: which findings there were, and average and extremes of each figure over the requests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from inferspan import semconv

__all__ = ["AnalysisFigures"]

_FIGURES = {
    "unique_tokens": semconv.ANALYSIS_UNIQUE_TOKENS,
    "token_entropy": semconv.ANALYSIS_TOKEN_ENTROPY,
    "distinct_ratio": semconv.ANALYSIS_DISTINCT_RATIO,
    "repetition_rate": semconv.ANALYSIS_REPETITION_RATE,
    "repetition_rate_recent": semconv.ANALYSIS_REPETITION_RATE_RECENT,
    "repetition_4gram": semconv.ANALYSIS_REPETITION_4GRAM,
    "loop_tokens": semconv.ANALYSIS_LOOP["tokens"],
    "confidence": semconv.ANALYSIS_CONFIDENCE["average"],
    "chosen_probability": semconv.ANALYSIS_CHOSEN["average"],
    "avg_logits_mean": semconv.ANALYSIS_LOGITS_MEAN,
    "avg_logits_std": semconv.ANALYSIS_LOGITS_STD,
}
"""Figures of a request with the attribute that holds each."""


class _Figure:
    """Number, sum and extremes of one figure."""

    __slots__ = ("largest", "number", "smallest", "total")

    def __init__(self) -> None:
        self.number, self.total, self.smallest, self.largest = 0, 0.0, math.inf, -math.inf

    def add(self, value: float) -> None:
        self.number += 1
        self.total += value
        self.smallest, self.largest = min(self.smallest, value), max(self.largest, value)

    def as_dict(self) -> dict[str, float]:
        return {"requests": self.number, "average": self.total / self.number, "min": self.smallest, "max": self.largest}


class AnalysisFigures:
    """Adds up the analyses of requests; not safe to use on several threads at once."""

    def __init__(self) -> None:
        self._requests = self._with_findings = 0
        self._findings: Counter[str] = Counter()
        self._figures: dict[str, _Figure] = {}

    def add(self, attributes: Mapping[str, Any], findings: Sequence[str]) -> None:
        """Take in one request.

        Args:
            attributes: of its end.
            findings: kinds of what is wrong with its output.
        """
        found = {name: value for name, key in _FIGURES.items() if isinstance(value := attributes.get(key), int | float)}
        if not found and not findings:
            return
        self._requests += 1
        self._with_findings += bool(findings)
        self._findings.update(findings)
        for name, value in found.items():
            self._figures.setdefault(name, _Figure()).add(value)

    def as_dict(self) -> dict[str, Any]:
        """Number of requests, of those with findings, findings by kind, and figures; empty of no requests."""
        if not self._requests:
            return {}
        return {
            "requests": self._requests,
            "requests_with_findings": self._with_findings,
            "findings": dict(self._findings),
            "figures": {name: self._figures[name].as_dict() for name in _FIGURES if name in self._figures},
        }
