"""The table of "Fleet and ranks": a row for each process, with what it does, how fast, on what, and when it was last heard of."""

from __future__ import annotations

from inferspan import semconv as s

from ..charts import table
from ..links import GPU, OVERVIEW, TITLES, Link
from ..panels import Limits, Query, Says, Sized, data_links, thresholds
from ..queries import ratio
from .queries import FAILED, GENERAL, PROCESS, RANK, Q

__all__ = ["processes"]

BY = ", ".join(PROCESS)


def _to(uid: str, **narrowed: str) -> Link:
    """From a row of the table to a dashboard for what stands in its columns."""
    kept = ["${__url_time_range}", "${ds_prom:queryparam}", "${ds_trace:queryparam}", "${env:queryparam}"]
    return Link(
        f"{TITLES[uid]} of this row",
        f"/d/{uid}?" + "&".join([*kept, *(f"var-{name}=${{__data.fields.{column}}}" for name, column in narrowed.items())]),
    )


def _column(name: str, unit: str, limits: Limits = (), *, width: int = 80, decimals: int | None = None) -> dict[str, object]:
    """A column of numbers, its cells coloured by limits."""
    found: dict[str, object] = {"displayName": name, "unit": unit, "noValue": "-", "custom__width": width}
    if decimals is not None:
        found["decimals"] = decimals
    if limits:
        found["custom__cellOptions"] = {"type": "color-background", "mode": "basic"}
        found["thresholds"] = thresholds("transparent", limits).build()
    return found


def _named(name: str, width: int | None, *links: Link) -> dict[str, object]:
    """A column of texts; those without a width share what is left."""
    found: dict[str, object] = {"displayName": name, "noValue": "-", **({"custom__width": width} if width else {"custom__minWidth": 90})}
    return {**found, "links": [link.build().to_json() for link in data_links(links)]} if links else found


def _last_report() -> str:
    """Also of processes that fell silent within the time range, to the precision of the window."""
    alive = Q.series(s.M_PROCESS_UPTIME)
    now = f"max by ({BY}) (timestamp({alive}))"
    before = f"max by ({BY}) (max_over_time(timestamp({alive})[$__range:$__rate_interval]))"
    return f"time() - ({now} or {before})"


def processes() -> Sized:
    """The table."""
    count = Q.count(s.M_SERVER_DURATION, by=PROCESS)
    columns: dict[str, dict[str, object]] = {
        "service_name": _named("Service", None, _to(OVERVIEW, service="service_name")),
        "job": _named("Job", None),
        "instance": _named("Process", 310, _to(OVERVIEW, instance="instance")),
        "host_name": _named("Host", None, _to(GPU, host="host_name")),
        RANK: _named("Rank", 60),
        "service_version": _named("Version", 80),
        "Value #A": _column("Requests/s", "reqps", width=100),
        "Value #B": _column("Failed", "percentunit", ((0.01, "orange"), (0.05, "red")), decimals=1),
        "Value #C": _column("p95", "s"),
        "Value #D": _column("TTFT p95", "s", ((2.5, "orange"),)),
        "Value #E": _column("Tokens/s", "short", decimals=1),
        "Value #F": _column("GPU", "percentunit", decimals=0),
        "Value #G": _column("GPU memory", "percentunit", ((0.9, "orange"), (0.97, "red")), width=110, decimals=0),
        "Value #H": _column("Power", "watt"),
        "Value #I": _column("Last report", "s", ((60, "orange"), (180, "red")), width=100),
    }
    return table(
        "List of processes",
        Query(count, ""),
        Query(ratio(Q.count(s.M_SERVER_DURATION, FAILED, by=PROCESS), count), ""),
        Query(Q.quantile(0.95, s.M_SERVER_DURATION, by=PROCESS), ""),
        Query(Q.quantile(0.95, s.M_SERVER_TTFT, by=PROCESS), ""),
        Query(Q.tokens("output", PROCESS), ""),
        Query(f"avg by ({BY}) ({Q.device(s.M_GPU_UTILIZATION, GENERAL, by=PROCESS, named=False)})", ""),
        Query(f"max by ({BY}) ({Q.device(s.M_GPU_MEMORY_UTILIZATION, by=PROCESS, named=False)})", ""),
        Query(f"sum by ({BY}) ({Q.device(s.M_POWER, by=PROCESS, named=False)})", ""),
        Query(_last_report(), ""),
        columns=columns,
        sort_by="Last report",
        height=10,
        says=Says(
            "A row for each process that reported in the time range, the longest silent first. Links lead to its requests and its host.",
            "rates and quantiles now; of the cards that the process uses: mean utilisation, fullest memory, summed power.",
            "Orange and red cells first. A process whose last report is old has ended, hangs or cannot reach the collector.",
            empty="no process reported in this time range",
        ),
    )
