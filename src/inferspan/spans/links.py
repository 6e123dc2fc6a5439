"""The data flow of a pass as links between the spans of its modules; ``report/data_flow.py`` reads them again."""

from __future__ import annotations

from typing import NamedTuple

from opentelemetry.trace import SpanContext

from inferspan import semconv
from inferspan.records import Attributes, AttributeValue, FlowEdge, PassFlow

__all__ = ["SpanLink", "flow_links"]

MOST_LINKS = 32
"""Links of one module call; the SDK allows 128 by default."""
_NONE: Attributes = {}


class SpanLink(NamedTuple):
    """A link to another span."""

    context: SpanContext
    attributes: Attributes = _NONE


def flow_links(flow: PassFlow) -> tuple[dict[int, list[tuple[int, Attributes]]], dict[int, int]]:
    """By number of a call: its links, and how many it has too many.

    A link is the number of the linked call, or -1 for the pass, with attributes.
    """
    found: dict[int, list[tuple[int, Attributes]]] = {}
    left_out: dict[int, int] = {}
    for edge in flow.edges:
        holder, linked = (edge.target, edge.source) if edge.target >= 0 else (edge.source, -1)
        if holder < 0:  # an input that the model returns as it is
            continue
        links = found.setdefault(holder, [])
        if len(links) < MOST_LINKS:
            links.append((linked, _attributes(edge)))
        else:
            left_out[holder] = left_out.get(holder, 0) + 1
    return found, left_out


def _attributes(edge: FlowEdge) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        semconv.FLOW_KIND: edge.kind if edge.target >= 0 else "result",
        semconv.FLOW_SOURCE: edge.name,
        semconv.FLOW_ORIGIN: edge.origin,
        semconv.FLOW_TENSOR: edge.tensor,
        semconv.FLOW_DTYPE: edge.dtype,
    }
    if edge.into >= 0:
        found[semconv.FLOW_INTO] = edge.into
    if edge.shape is not None:
        found[semconv.FLOW_SHAPE] = "x".join(map(str, edge.shape)) or "scalar"
    if edge.bytes is not None:
        found[semconv.FLOW_BYTES] = edge.bytes
    if edge.via:
        found[semconv.FLOW_VIA] = list(edge.via)
    return found
