"""Requests of a session -> the analysis of what they generated: the key ``analysis`` of the JSON report, and a section of each request.

In comes a ``Session``; out come plain values under the names of ``docs/looking/analysis.md``. The figures are those that stand on the
request spans; where none has any, the mapping is empty.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from inferspan import semconv
from inferspan.report.plain import plain
from inferspan.report.spans import Request

__all__ = ["analysis_of", "analysis_of_request"]

_FIGURES = {
    "total_tokens": semconv.OUTPUT_TOKENS, "unique_tokens": semconv.ANALYSIS_UNIQUE_TOKENS, "token_entropy": semconv.ANALYSIS_TOKEN_ENTROPY,
    "distinct_ratio": semconv.ANALYSIS_DISTINCT_RATIO, "repetition_rate": semconv.ANALYSIS_REPETITION_RATE,
    "repetition_rate_recent": semconv.ANALYSIS_REPETITION_RATE_RECENT, "repetition_4gram": semconv.ANALYSIS_REPETITION_4GRAM,
    "avg_logits_mean": semconv.ANALYSIS_LOGITS_MEAN, "avg_logits_std": semconv.ANALYSIS_LOGITS_STD,
}  # fmt: skip
_GROUPS = {
    "loop": {**semconv.ANALYSIS_LOOP, "sequence": semconv.ANALYSIS_LOOP_SEQUENCE},
    "confidence": semconv.ANALYSIS_CONFIDENCE,
    "chosen_probability": semconv.ANALYSIS_CHOSEN,
    "sequences": semconv.ANALYSIS_SEQUENCES,
}
_SHORT = {"average": "avg", "minimum": "min", "maximum": "max", "deviation": "std"}


def analysis_of_request(request: Request) -> dict[str, Any]:
    """The figures of one request; empty where it was not analysed."""
    attributes = request.span.attributes
    found = {name: plain(attributes[key]) for name, key in _FIGURES.items() if key in attributes}
    for group, names in _GROUPS.items():
        figures = {_SHORT.get(name, name): plain(attributes[key]) for name, key in names.items() if key in attributes}
        if figures:
            found[group] = figures
    common = _most_common(request)
    if common:
        found["most_common"] = common
    warnings = request.texts(semconv.HEALTH_KINDS)
    if not warnings and set(found) <= {"total_tokens"}:
        return {}
    return found | {"warnings": [plain(kind) for kind in warnings]}


def analysis_of(requests: list[Request]) -> dict[str, Any]:
    """The analysis of each request by its number, and the number of warnings by kind; empty where none was analysed."""
    found = [{"number": number, **figures} for number, request in enumerate(requests, 1) if (figures := analysis_of_request(request))]
    if not found:
        return {}
    kinds = Counter(kind for one in found for kind in one["warnings"])
    return {"warnings": dict(sorted(kinds.items())), "requests": found}


def _most_common(request: Request) -> list[dict[str, Any]]:
    ids, counts = request.numbers(semconv.ANALYSIS_COMMON_IDS), request.numbers(semconv.ANALYSIS_COMMON_COUNTS)
    texts = request.texts(semconv.ANALYSIS_COMMON_TEXTS)
    if len(ids) != len(counts):
        return []
    named = [{"text": plain(text)} for text in texts] if len(texts) == len(ids) else [{} for _ in ids]
    return [{"id": plain(number), **text, "count": plain(count)} for number, count, text in zip(ids, counts, named, strict=True)]
