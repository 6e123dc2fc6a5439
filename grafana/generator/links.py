"""Ways out of a panel: to another dashboard, to a search of traces, to one trace.

In: where to go and what to narrow it to. Out: URLs with Grafana's own variables in them, so that time range and choices go along.
"""

from __future__ import annotations

import json
from typing import NamedTuple
from urllib.parse import quote

from .variables import COMMON

__all__ = ["FLEET", "GPU", "MODEL", "OVERVIEW", "TITLES", "Link", "to_dashboard", "to_trace", "to_traces"]

OVERVIEW, GPU, MODEL, FLEET = "inferspan-overview", "inferspan-gpu", "inferspan-model", "inferspan-fleet"
TITLES = {OVERVIEW: "Inference overview", GPU: "GPU and host", MODEL: "Model internals", FLEET: "Fleet and ranks"}

_KEPT = ("ds_prom", "ds_trace", *COMMON)


class Link(NamedTuple):
    """A link that a click on a value offers."""

    title: str
    url: str


def to_dashboard(uid: str, **narrowed: str) -> Link:
    """To a dashboard of ours, with time range, data sources and choices kept.

    Args:
        uid: one of ``OVERVIEW``, ``GPU``, ``MODEL``, ``FLEET``.
        narrowed: variables that get the value of a label of the clicked series, such as ``host="host_name"``.
    """
    kept = [f"${{{name}:queryparam}}" for name in _KEPT if name not in narrowed]
    set_here = [f"var-{name}=${{__field.labels.{label}}}" for name, label in narrowed.items()]
    return Link(
        f"{TITLES[uid]}{' of this ' + next(iter(narrowed)) if narrowed else ''}",
        f"/d/{uid}?" + "&".join(["${__url_time_range}", *kept, *set_here]),
    )


def _explore(query: dict[str, object]) -> str:
    pane = {
        "datasource": "${ds_trace}",
        "queries": [{"refId": "A", "datasource": {"type": "jaeger", "uid": "${ds_trace}"}, **query}],
        "range": {"from": "${__from}", "to": "${__to}"},
    }
    # Grafana's variables stay as they are: only what is in them is encoded, by Grafana.
    encoded = quote(json.dumps({"traces": pane}, separators=(",", ":"), sort_keys=True), safe="${}:._")
    return f"/explore?schemaVersion=1&panes={encoded}"


def to_traces(title: str, **search: str) -> Link:
    """To a search of Jaeger in Explore, among the traces of the service that the variable ``trace_service`` names.

    Args:
        title: what the search finds.
        search: fields of the search form: ``tags`` (``inferspan.keep=true``), ``minDuration``, ``operation``.
    """
    return Link(title, _explore({"queryType": "search", "service": "${trace_service}", "limit": 50, **search}))


def to_trace(title: str = "Open the trace") -> Link:
    """To the trace whose id is the clicked value."""
    return Link(title, _explore({"query": "${__value.raw}"}))
