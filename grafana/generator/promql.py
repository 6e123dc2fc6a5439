"""What is wrong with a PromQL expression: unknown metrics and labels, sides that never match, devices counted twice.

In: an expression with Grafana's variables in it. Out: problems as texts, the labels of the result, the metrics that were used. Grammar
and types are checked by ``promql-parser``; the rest walks its tree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import promql_parser

from inferspan import semconv

from .catalogue import RESOURCE_ATTRIBUTES, SERIES, label

__all__ = ["Checked", "check", "without_variables"]

_HW_ID = label(semconv.HW_ID)
# By these a reading of one card is told apart by who reports it.
_REPORTERS = frozenset({*map(label, RESOURCE_ATTRIBUTES), "job", "instance", label(semconv.HW_NAME)})
_WINDOWS = {"__rate_interval": "1m", "__range": "1h", "__interval": "15s", "compare": "1d"}
_VARIABLE = re.compile(r"\$\{?(\w+)(?::\w+)?\}?")
_ONE_FOR_ALL = ("max", "min", "group")
_KEEPING = ("topk", "bottomk", "limitk", "limit_ratio")
_SET = ("and", "or", "unless")


def without_variables(text: str) -> str:
    """The expression as the parser takes it: windows become durations, everything else a word."""
    # A number or a duration where one is wanted; a word inside of quotes and in lists of labels.
    filled = re.sub(r"\b(topk|bottomk)(\s*)\(\$\{?\w+\}?", r"\1(10", text)
    filled = re.sub(r"\boffset\s+\$\{?\w+\}?", "offset 1d", filled)
    return _VARIABLE.sub(lambda match: _WINDOWS.get(match[1], "x"), filled)


@dataclass
class Checked:
    """Result of ``check``."""

    problems: list[str] = field(default_factory=list)
    labels: frozenset[str] = frozenset()
    metrics: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Vector:
    """Labels of an expression. ``exact``: it has these and no others. ``raw``: readings of devices that nobody has reduced yet."""

    labels: frozenset[str] = frozenset()
    exact: bool = True
    raw: frozenset[str] = frozenset()
    scalar: bool = False
    device: bool = False


_SCALAR = _Vector(scalar=True)


def check(expression: str, grouping: frozenset[str] = frozenset()) -> Checked:
    """Everything that is wrong with an expression.

    Args:
        expression: as it stands in a dashboard.
        grouping: variables that stand for a label, such as ``by``.
    """
    found = Checked()
    for window in re.findall(r"\[([^\]]*)\]", expression):
        if not re.fullmatch(r"\$__(rate_interval|range)(:[^\]]*)?", window):
            found.problems.append(f"window [{window}]: use $__rate_interval, or $__range for the whole time range")
    try:
        tree = promql_parser.parse(without_variables(expression))
    except ValueError as error:
        found.problems.append(f"PromQL: {error}")
        return found
    found.labels = _Walk(found).visit(tree).labels
    # A variable that stands for a label became `x`.
    found.labels |= grouping
    return found


class _Walk:
    def __init__(self, found: Checked) -> None:
        self._found = found

    def _say(self, problem: str) -> None:
        if problem not in self._found.problems:
            self._found.problems.append(problem)

    def visit(self, node: Any) -> _Vector:
        """The labels of a node; problems are noted on the way."""
        kind = type(node).__name__
        if kind in ("NumberLiteral", "StringLiteral"):
            return _SCALAR
        if kind in ("ParenExpr", "UnaryExpr", "SubqueryExpr"):
            return self.visit(node.expr)
        if kind == "MatrixSelector":
            return self.visit(node.vector_selector)
        return {"VectorSelector": self._selector, "AggregateExpr": self._aggregate, "BinaryExpr": self._binary, "Call": self._call}[kind](
            node
        )

    def _selector(self, node: Any) -> _Vector:
        matchers = node.matchers.matchers
        name = node.name or next((item.value for item in matchers if item.name == "__name__"), "")
        if name not in SERIES:
            self._say(f"metric {name} is not in the catalogue")
            return _Vector(exact=False)
        self._found.metrics.add(name)
        entries = SERIES[name]
        asked = {item.name for item in matchers} - {"__name__"}
        labels = frozenset[str]().union(*(entry.labels_of(part) for entry, part in entries))
        for missing in sorted(asked - labels):
            self._say(f"{name} has no label {missing}")
        if len(entries) > 1:
            if not asked & {entry.needs for entry, _ in entries}:
                names = " or ".join(sorted(entry.needs for entry, _ in entries))
                self._say(f"{name} comes from two sources: match {names}")
            labels = frozenset[str]().union(*(entry.labels_of(part) for entry, part in entries if entry.needs in asked))
        raw = frozenset({name}) if any(entry.device for entry, _ in entries) else frozenset[str]()
        return _Vector(labels, exact=False, raw=raw, device=bool(raw))

    def _known(self, wanted: list[str], inner: _Vector, where: str) -> None:
        if not inner.scalar:
            for missing in sorted(set(wanted) - inner.labels - {"x"}):
                self._say(f"{where} ({missing}): there is no such label")

    def _aggregate(self, node: Any) -> _Vector:
        inner, operator = self.visit(node.expr), str(node.op)
        modifier = node.modifier
        names = list(modifier.labels) if modifier else []
        without = bool(modifier) and "Without" in str(modifier.type)
        self._known(names, inner, "without" if without else "by")
        if operator in _KEEPING:
            return inner
        labels = inner.labels - set(names) if without else frozenset(names)
        if operator not in _ONE_FOR_ALL:
            for name in sorted(inner.raw):
                self._say(f"{operator} of {name}: several processes report one card, take max by ({_HW_ID}) first")
            doubled = sorted(inner.labels & _REPORTERS - labels) if inner.device and inner.exact and _HW_ID in inner.labels else []
            if doubled:
                self._say(f"{operator} over cards told apart by {', '.join(doubled)}: group by {_HW_ID} alone, or by these too")
        return _Vector(labels, exact=not without or inner.exact, device=inner.device)

    def _binary(self, node: Any) -> _Vector:
        left, right, operator = self.visit(node.lhs), self.visit(node.rhs), str(node.op)
        raw, device = left.raw | right.raw, left.device or right.device
        if left.scalar or right.scalar:
            vector = right if left.scalar else left
            return _Vector(vector.labels, vector.exact, raw, scalar=left.scalar and right.scalar, device=device)
        matching = node.modifier.matching if node.modifier else None
        on = frozenset(matching.labels) if matching and "Include" in str(matching.type) else None
        if on is not None:
            self._known(sorted(on), left, "on")
            self._known(sorted(on), right, "on")
        elif operator != "or" and matching is None and left.exact and right.exact and left.labels != right.labels:
            self._say(f"sides of {operator} never match: ({', '.join(sorted(left.labels))}) and ({', '.join(sorted(right.labels))})")
        if operator == "or":
            return _Vector(left.labels | right.labels, left.exact and right.exact, raw, device=device)
        if operator in _SET:
            return _Vector(left.labels, left.exact, left.raw, device=left.device)
        card = str(node.modifier.card) if node.modifier else ""
        if "ManyToOne" in card or "OneToMany" in card:
            many, one = (left, right) if "ManyToOne" in card else (right, left)
            taken = frozenset(node.modifier.group_labels or ())
            self._known(sorted(taken), one, "group_left" if many is left else "group_right")
            return _Vector(many.labels | taken, many.exact, raw, device=device)
        return _Vector(on if on is not None else left.labels, left.exact, raw, device=device)

    def _call(self, node: Any) -> _Vector:
        name = node.func.name
        arguments = [self.visit(item) for item in node.args or []]
        vectors = [item for item in arguments if not item.scalar]
        if name in ("time", "pi", "scalar"):
            return _SCALAR
        if not vectors:
            return _Vector()
        inner = vectors[0]
        if name in ("label_replace", "label_join"):
            return _Vector(inner.labels | {node.args[1].val}, inner.exact, inner.raw, device=inner.device)
        if name == "histogram_quantile":
            if "le" not in inner.labels:
                self._say("histogram_quantile needs the label le")
            return _Vector(inner.labels - {"le"}, inner.exact, inner.raw)
        return inner
