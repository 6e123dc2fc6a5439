"""Rows of "Fleet and ranks" below the first page: by host, rank, pod or version; energy and versions; beside earlier times."""

from __future__ import annotations

from typing import Any

from inferspan import semconv as s

from ..frame import Row
from ..links import GPU, OVERVIEW, to_dashboard
from ..panels import Query, Says, Sized, override, trend
from ..queries import ratio
from ..units import TOKENS_J, TOKENS_S
from .queries import FAILED, NO_REQUESTS, Q, earlier

__all__ = ["rows"]

CHOSEN = "{{$by}}"


def _by_choice() -> list[Sized]:
    by = ["$by"]
    count = Q.count(s.M_SERVER_DURATION, by=by)
    group = "*Group by* chooses what the lines stand for."
    load = Says(
        f"Calls of generate() that ended, each second. {group}",
        "rate of `gen_ai.server.request.duration`.",
        "Lines should lie together behind one balancer.",
        empty=NO_REQUESTS,
    )
    failed = Says(
        f"Share of the calls that ended with an exception. {group}",
        "calls with `error_type` / all calls.",
        "One line only: that host, pod or version. All: something they share.",
        empty=NO_REQUESTS,
    )
    time = Says(
        f"95 % of the calls took no longer than this. {group}",
        "quantile of `gen_ai.server.request.duration`.",
        "One line above the others: look at its GPU and host.",
        empty=NO_REQUESTS,
    )
    first = Says(
        f"95 % of the successful calls had their first token within this time. {group}",
        "quantile of `gen_ai.server.time_to_first_token`.",
        "Longer prompts or more requests in flight on one of them raise it there.",
        empty=NO_REQUESTS,
    )
    tokens = Says(
        f"Tokens generated each second. {group}",
        "rate of the usage counters.",
        "Compare with the requests: fewer tokens for as many requests are shorter answers.",
        empty=NO_REQUESTS,
    )
    to_overview, to_gpu = [to_dashboard(OVERVIEW)], [to_dashboard(GPU)]
    p95 = Q.quantile(0.95, s.M_SERVER_DURATION, by=by)
    return [
        trend("Requests/s, grouped", Query(count, CHOSEN), unit="reqps", says=load, links=to_overview),
        trend(
            "Error ratio, grouped",
            Query(ratio(Q.count(s.M_SERVER_DURATION, FAILED, by=by), count), CHOSEN),
            unit="percentunit",
            limits=((0.05, "red"),),
            says=failed,
            links=to_overview,
        ),
        trend("Duration p95, grouped", Query(p95, CHOSEN, exemplar=True), unit="s", says=time, links=to_overview),
        trend("TTFT p95, grouped", Query(Q.quantile(0.95, s.M_SERVER_TTFT, by=by), CHOSEN), unit="s", width=12, says=first, links=to_gpu),
        trend("Output tokens/s, grouped", Query(Q.tokens("output", by), CHOSEN), unit=TOKENS_S, width=12, says=tokens, links=to_gpu),
    ]


def _energy_and_versions() -> list[Sized]:
    joules = f"sum by (host_name) ({Q.device_rate(s.M_ENERGY, by=['host_name'], named=False)})"
    versions = (
        f"count by (service_name, service_version) (count by (service_name, service_version, instance) ({Q.series(s.M_PROCESS_UPTIME)}))"
    )
    energy = Says(
        "How many tokens a joule of the cards gives, by host. Higher is better.",
        "generated tokens a second / power of the cards that our programs use, from their energy counters.",
        "It falls with idle cards and small batches. Other programs on the same cards use energy that is counted here.",
        empty="no GPU that counts energy, or no generate()",
    )
    skew = Says(
        "How many processes run which version.",
        "processes that report, by `service.version`.",
        "Two versions for long: a roll-out that has stopped. Without a version: set service.version in OTEL_RESOURCE_ATTRIBUTES.",
        empty="no process reports",
    )
    return [
        trend(
            "Tokens per joule by host",
            Query(f"{Q.tokens('output', ['host_name'])} / ({joules} > 0)", "{{host_name}}"),
            unit=TOKENS_J,
            width=12,
            says=energy,
            links=[to_dashboard(GPU, host="host_name")],
        ),
        trend(
            "Versions over time",
            Query(versions, "{{service_name}} {{service_version}}"),
            unit="short",
            width=12,
            stacked=True,
            says=skew,
        ),
    ]


def _beside(title: str, expression: str, unit: str, says: Says) -> Sized:
    panel = trend(
        title, Query(expression, "now"), Query(earlier(expression), "earlier"), unit=unit, says=says, links=[to_dashboard(OVERVIEW)]
    )
    lines: Any = panel.builder
    lines.override_by_name("earlier", override(custom__lineStyle={"fill": "dash", "dash": [8, 6]}, custom__fillOpacity=0))
    return panel


def _compared() -> list[Sized]:
    count = Q.count(s.M_SERVER_DURATION)
    how = "the same query twice; the dashed line is from an earlier time (PromQL `offset`)."
    empty = f"{NO_REQUESTS}, nor in that before"
    return [
        _beside(
            "Requests/s, now and before",
            count,
            "reqps",
            Says(
                "Requests a second beside those of an earlier time; *Compare with* says how much earlier.",
                how,
                "Is this load unusual?",
                empty=empty,
            ),
        ),
        _beside(
            "Error ratio, now and before",
            ratio(Q.count(s.M_SERVER_DURATION, FAILED), count),
            "percentunit",
            Says(
                "Share of failed calls beside that of an earlier time.",
                how,
                "Did it begin with a release? The marks show versions.",
                empty=empty,
            ),
        ),
        _beside(
            "Duration p95, now and before",
            Q.quantile(0.95, s.M_SERVER_DURATION),
            "s",
            Says(
                "p95 of the calls beside that of an earlier time.",
                how,
                "Slower at the same load: a changed model, code or card.",
                empty=empty,
            ),
        ),
    ]


def rows() -> list[Row]:
    """The rows, all closed."""
    return [
        Row("Grouped", _by_choice(), closed=True),
        Row("Energy and versions", _energy_and_versions(), closed=True),
        Row("Beside an earlier time", _compared(), closed=True),
    ]
