"""Figures -> an explanation: the causes by expected gain, the tree of the time, bottlenecks, and what data is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .bottlenecks import Bottleneck, bottlenecks_of
from .cause import Cause
from .figures import Figures
from .missing import Missing, missing_of
from .table import RULES
from .tree import Node, tree_of

__all__ = ["SCHEMA", "Explanation", "explain"]

SCHEMA = 1
_LEAST = 0.02
"""Share of the time below which a cause whose time is known is not told."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a recording took its time.

    Attributes:
        requests: number of requests that are not inside another one.
        total: seconds of requests and stages of the program together.
        causes: the first is the one to change first.
        tree: where the time went, with the causes under the part that they belong to.
        bottlenecks: phases, stages and modules by share, with what limits each.
        missing: figures that no rule could use because they were not recorded.
    """

    requests: int
    total: float
    causes: Sequence[Cause]
    tree: Node
    bottlenecks: Sequence[Bottleneck]
    missing: Sequence[Missing]

    def suggestions(self) -> list[dict[str, Any]]:
        """The causes as plain values, as the JSON report has them."""
        return [_suggestion(cause, self.total) for cause in self.causes]

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "schema": SCHEMA,
            "requests": self.requests,
            "seconds": self.total,
            "causes": self.suggestions(),
            "tree": self.tree.as_dict(),
            "limits": [one.as_dict() for one in self.bottlenecks],
            "missing": [one.as_dict() for one in self.missing],
        }


def explain(figures: Figures) -> Explanation:
    """Ask every rule, and put what they found in order; of no time at all there is no cause."""
    found = [cause for rule in RULES for cause in rule(figures)] if figures.total > 0 else []
    found = [_within(cause, figures.total) for cause in found]
    told = [cause for cause in found if cause.seconds is None or (cause.share(figures.total) or 0.0) >= _LEAST]
    told.sort(key=lambda cause: -cause.rank(figures.total))
    return Explanation(
        requests=len(figures.requests),
        total=figures.total,
        causes=told,
        tree=tree_of(figures, told),
        bottlenecks=bottlenecks_of(figures),
        missing=missing_of(figures),
    )


def _within(cause: Cause, total: float) -> Cause:
    """The cause with at most all of the time, and a gain of at most its own: figures of different clocks and of samples may say more."""
    seconds = cause.seconds if cause.seconds is None else min(max(0.0, cause.seconds), total)
    gain = cause.gain if cause.gain is None else min(max(0.0, cause.gain), total if seconds is None else seconds)
    return replace(cause, seconds=seconds, gain=gain)


def _suggestion(cause: Cause, total: float) -> dict[str, Any]:
    evidence: dict[str, Any] = {"figures": _known(cause.figures), "spans": [span.as_dict() for span in cause.spans]}
    if cause.parts:
        evidence["parts"] = [_known({"name": part.name, "seconds": part.seconds, "note": part.note or None}) for part in cause.parts]
    return {
        "rule": cause.rule,
        "severity": cause.severity(total),
        "title": cause.title,
        "place": cause.place,
        "seconds": cause.seconds,
        "share": cause.share(total),
        "sure": cause.sure,
        "evidence": evidence,
        "advice": cause.advice,
        "setting": cause.setting,
        "gain": None if cause.gain is None else {"seconds": cause.gain, "share": _share(cause.gain, total), "basis": cause.basis},
    }


def _share(seconds: float, total: float) -> float | None:
    return min(1.0, seconds / total) if total > 0 else None


def _known(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in figures.items() if value is not None}
