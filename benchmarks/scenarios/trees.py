"""Spans, metrics and log records in one plain form, wherever they came from: what is written, and what is compared.

Ids become places: a span stands below its parent, among its siblings in the order of their starts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.scenarios import masks

__all__ = ["Log", "Metric", "Point", "Span", "log_list", "metric_table", "span_forest"]


@dataclass
class Span:
    """A finished span before its ids are replaced; ``start`` and ``end`` in nanoseconds."""

    id: str
    parent: str
    trace: str
    start: int
    end: int
    name: str
    kind: str
    status: str
    message: str
    scope: str
    resource: dict[str, Any]
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    links: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    dropped: tuple[int, int, int] = (0, 0, 0)
    state: str = ""


@dataclass
class Point:
    """A data point: ``value`` of sums and gauges, the other fields of histograms."""

    attributes: dict[str, Any]
    value: float | None = None
    count: int | None = None
    sum: float | None = None
    least: float | None = None
    most: float | None = None
    bounds: list[float] | None = None
    buckets: list[int] | None = None
    exemplars: bool = False


@dataclass
class Metric:
    """A metric of one scope."""

    scope: str
    name: str
    kind: str
    unit: str
    description: str
    points: list[Point]


@dataclass
class Log:
    """A log record; ``span`` is the id of the span it belongs to."""

    event: str
    body: Any
    severity: str
    scope: str
    span: str
    attributes: dict[str, Any]


def _canonical(tree: Any) -> str:
    return json.dumps(tree, sort_keys=True, default=str)


def _plain(span: Span, place_of: Callable[[str], str]) -> dict[str, Any]:
    form: dict[str, Any] = {
        "name": span.name,
        "kind": span.kind,
        "status": span.status,
        "scope": span.scope,
        "attributes": masks.attributes(span.attributes),
    }
    optional = {
        "message": span.message,
        "events": [{"name": name, "attributes": masks.attributes(found)} for name, found in span.events],
        "links": [{"to": place_of(target), "attributes": masks.attributes(found)} for target, found in span.links],
        "dropped": list(span.dropped) if any(span.dropped) else None,
        "state": span.state,
        "ends before it starts": span.end < span.start,
    }
    return {**form, **{key: value for key, value in optional.items() if value}}


def span_forest(spans: Iterable[Span], *, ordered: bool = True) -> tuple[list[dict[str, Any]], Callable[[str], str]]:
    """Spans as nested dictionaries, and what tells the place of a span by its id.

    Args:
        spans: in any order.
        ordered: whether roots come in the order of their starts; else, where threads race, in the order of what they hold.
    """
    spans = list(spans)
    by_id = {span.id: span for span in spans}
    below: dict[str, list[Span]] = {}
    for span in spans:
        below.setdefault(span.parent if span.parent in by_id else "", []).append(span)

    def place_of(span_id: str) -> str:
        names: list[str] = []
        while span_id in by_id:
            names.append(by_id[span_id].name)
            span_id = by_id[span_id].parent
        return " / ".join(reversed(names)) or "outside"

    def tree(span: Span) -> dict[str, Any]:
        form = _plain(span, place_of)
        children = sorted(below.get(span.id, ()), key=lambda one: (one.start, one.name, _canonical(masks.attributes(one.attributes))))
        for child in children:
            form.setdefault("children", []).append(tree(child))
            if child.trace != span.trace:
                form["children"][-1]["trace"] = "another than its parent's"
            if not span.start <= child.start <= child.end <= span.end:
                form["children"][-1]["time"] = "not inside its parent's"
        return form

    roots = []
    traces: dict[str, int] = {}
    for root in sorted(below.get("", ()), key=lambda one: (one.start, one.name)):
        form = {**tree(root), "resource": masks.resource(root.resource)}
        form["parent"] = "outside" if root.parent else "none"
        form["trace"] = traces.setdefault(root.trace, len(traces)) if ordered else "one of several"
        roots.append(form)
    return (roots if ordered else sorted(roots, key=_canonical)), place_of


def _point(point: Point, *, masked: bool) -> dict[str, Any]:
    form: dict[str, Any] = {"attributes": masks.attributes(point.attributes)}
    values = {"value": point.value, "sum": point.sum, "min": point.least, "max": point.most, "buckets": point.buckets}
    form.update({key: masks.hidden(value) if masked else value for key, value in values.items() if value is not None})
    form.update({key: value for key, value in {"count": point.count, "bounds": point.bounds}.items() if value is not None})
    if point.exemplars:
        form["exemplars"] = True
    return form


def metric_table(metrics: Sequence[Metric]) -> dict[str, Any]:
    """Metrics by scope and name; of several exports of one metric the last counts."""
    table = {}
    for metric in sorted(metrics, key=lambda one: (one.scope, one.name)):  # sorting is stable: a later export replaces an earlier one
        masked = masks.is_masked_metric(metric.name, metric.unit)
        points = [_point(point, masked=masked) for point in metric.points]
        table[f"{metric.scope}: {metric.name}"] = {
            "kind": metric.kind,
            "unit": metric.unit,
            "description": metric.description,
            "points": {_canonical(point["attributes"]): point for point in sorted(points, key=_canonical)},
        }
    return table


def log_list(logs: Iterable[Log], place_of: Callable[[str], str], *, ordered: bool = True) -> list[dict[str, Any]]:
    """Log records with the place of their span."""
    forms = [
        {
            "event": log.event,
            "body": log.body,
            "severity": log.severity,
            "scope": log.scope,
            "span": place_of(log.span) if log.span else "none",
            "attributes": masks.attributes(log.attributes),
        }
        for log in logs
    ]
    return forms if ordered else sorted(forms, key=_canonical)
