"""A session -> what its tokens attended to, and which module fed which: the keys ``attention`` and ``data_flow`` of the JSON report.

In comes a ``Session``; out come the figures that the page draws, as plain values; empty where the settings ``attention`` and
``data_flow`` were off.
"""

from __future__ import annotations

from typing import Any

from inferspan import semconv
from inferspan.report.attention import attention_of, for_page, name_attended
from inferspan.report.data_flow import numbered_flow_of
from inferspan.report.plain import plain
from inferspan.report.session import Request, Session
from inferspan.report.tokens import TokenTable, tokens_of

__all__ = ["MOST_REQUESTS", "attention_document", "attention_of_request", "data_flow_document"]

MOST_REQUESTS = 5_000
"""Requests with detail, the latest ones; figures of all of them are in the totals."""


def attention_of_request(request: Request, session: Session, tokens: TokenTable) -> dict[str, Any]:
    """What a request attended to, as the page draws it, and in ``tokens`` what each of them did; empty where nothing is known."""
    attended = attention_of(request, session.attention.get((request.span.trace_id, request.span.span_id), ()))
    return for_page(request, attended, name_attended(tokens, attended, request.texts(semconv.ATTENTION_PROMPT)))


def attention_document(session: Session) -> dict[str, Any]:
    """The same of each request by its number, each key of a layer with its weight; empty where none is known."""
    first = max(0, len(session.requests) - MOST_REQUESTS)
    found = [
        {"number": number, **_named(drawn)}
        for number, request in enumerate(session.requests[first:], first + 1)
        if (drawn := attention_of_request(request, session, tokens_of(request)))
    ]
    return {"requests": found} if found else {}


def _named(drawn: dict[str, Any]) -> dict[str, Any]:
    layers, entropies, sinks = drawn["layers"], drawn["entropies"], drawn["sinks"]
    figures = [
        {
            "module": path,
            "entropy_mean": entropies[place] if place < len(entropies) else None,
            "sink_share": sinks[place] if place < len(sinks) else None,
        }
        for place, path in enumerate(layers)
    ]
    queries = [
        {"step": plain(step), "query": plain(query), "keys": {layers[place]: keys for place, keys in rows}}
        for step, query, rows in drawn["queries"]
    ]
    return {"layers": figures, "missing": drawn["missing"], "left_out": drawn["leftOut"], "texts": drawn["texts"], "queries": queries}


def data_flow_document(session: Session) -> dict[str, Any]:
    """The pass that the page draws, as ``inferspan graph --format json`` writes it, with the number of its request; empty without one."""
    found = numbered_flow_of(session)
    if found is None:
        return {}
    number, flow = found
    document = flow.as_dict()
    lists = {key: [plain(one) for one in document.pop(key)] for key in ("modules", "edges")}
    return {"request": number, **plain(document), **lists, "left_out": plain(flow.left_out)}
