"""The dashboard "Inference overview": is it up, how much, how fast, what fails, and where are the traces.

The first page answers these; rows below, closed, hold the detail. Only metrics that every setting gives are used, or both of two names
that ``semconv`` (the setting) chooses between.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from inferspan import semconv

from .. import pipeline
from ..charts import alerts
from ..frame import Row, frame
from ..links import FLEET, GPU, OVERVIEW, to_dashboard, to_traces
from ..panels import Query, Says, Sized, override, stats, trend
from ..queries import ratio
from ..units import PER_SECOND, TOKENS_S
from . import detail
from .queries import FAILED, NAMES, Q

__all__ = ["dashboard"]

MODEL = "gen_ai_request_model"
NO_REQUESTS = "no generate() ended in this time range"
SLOW_TRACES = to_traces("Slow traces", minDuration="${slow}")
# Not `error=true`: what Jaeger keeps in memory is not found by it.
FAILED_TRACES = to_traces("Failed traces", tags=f"{semconv.FAILED}=true")


REQUESTS_S = Says(
    "Calls of generate() that ended, each second; failed ones count.",
    "rate of `gen_ai.server.request.duration`.",
    "A drop to zero under load: look at *In flight*, then at *Slowest traces*.",
    empty="no generate() yet",
)
ERROR_RATIO = Says(
    "Share of the calls of generate() that ended with an exception.",
    "calls with `error_type` / all calls.",
    "Click for the traces of failed calls; *Errors by type* says which exceptions there are.",
    empty="no requests",
)
TTFT_P95 = Says(
    "Time to first token: 95 % of the successful calls had their first token within this time.",
    "quantile of `gen_ai.server.time_to_first_token`: from entry of generate() to the first token on the host.",
    "Orange: over 2.5 s, the objective of the alert rules. Long prompts and large batches raise it.",
    empty="no first token yet",
)
TPOT_P95 = Says(
    "Time per output token: for 95 % of the successful calls each token after the first took no longer than this.",
    "quantile of `gen_ai.server.time_per_output_token`: (duration - TTFT) / (tokens - 1).",
    "Orange: over 0.1 s, the objective of the alert rules. Look at the clocks and the memory of the GPU.",
    empty="no call with two tokens",
)
OUTPUT_TOKENS_S = Says(
    "Tokens generated each second, all sequences of all calls.",
    "rate of the usage counter, or of the sum of the older histogram `gen_ai.client.token.usage`.",
    "Falls while *Requests/s* does not: outputs became shorter. See *Tokens*.",
    empty="no tokens yet",
)
IN_FLIGHT = Says(
    "Calls of generate() that run now.",
    "sum of `inferspan.generate.active` over all processes.",
    "Stays above zero while nothing ends: a call hangs.",
    empty="no generate() yet",
)
LAST_REPORT = Says(
    "How long ago the newest metrics arrived. Everything else on this page is at least as old.",
    "now - newest timestamp of our metrics; they are exported every 15 s.",
    "Over 60 s: the program has ended or the way to Prometheus is broken, see *Telemetry pipeline*.",
    empty="silent for 5 minutes",
)
ALERTS = Says(
    "Alerts of `grafana/rules.yml` that fire or are about to.",
    "asked of the rules in Prometheus, names that begin with Inferspan.",
    "Each alert links to its page of advice.",
    empty="no alert",
)


def _speed_now() -> list[Sized]:
    count = Q.count(semconv.M_SERVER_DURATION)
    return [
        stats(
            "Requests/s",
            Query(count, "requests/s"),
            unit=PER_SECOND,
            says=REQUESTS_S,
            width=3,
            decimals=2,
            links=[to_dashboard(FLEET)],
        ),
        stats(
            "Error ratio",
            Query(ratio(Q.count(semconv.M_SERVER_DURATION, FAILED), count), "failed"),
            unit="percentunit",
            says=ERROR_RATIO,
            width=3,
            base="green",
            limits=((0.01, "orange"), (0.05, "red")),
            decimals=1,
            links=[FAILED_TRACES],
        ),
        stats(
            "TTFT p95",
            Query(Q.quantile(0.95, semconv.M_SERVER_TTFT), "p95", exemplar=True),
            unit="s",
            says=TTFT_P95,
            width=3,
            limits=((2.5, "orange"),),
            links=[SLOW_TRACES],
        ),
        stats(
            "TPOT p95",
            Query(Q.quantile(0.95, semconv.M_SERVER_TPOT), "p95", exemplar=True),
            unit="s",
            says=TPOT_P95,
            width=3,
            missing=("no second token", "text"),
            limits=((0.1, "orange"),),
            links=[SLOW_TRACES],
        ),
    ]


def _state_now() -> list[Sized]:
    return [
        stats(
            "Output tokens/s",
            Query(Q.tokens("output"), "tokens/s"),
            unit=PER_SECOND,
            says=OUTPUT_TOKENS_S,
            width=3,
            decimals=1,
            links=[to_dashboard(GPU)],
        ),
        stats(
            "In flight",
            Query(Q.total(semconv.M_ACTIVE), "requests"),
            unit="short",
            says=IN_FLIGHT,
            width=2,
            missing=("no call yet", "text"),
            links=[to_dashboard(FLEET)],
        ),
        stats(
            "Last report",
            Query(f"time() - max(timestamp({Q.series(semconv.M_OVERHEAD)}) or timestamp({Q.series(semconv.M_PROCESS_UPTIME)}))", "ago"),
            unit="s",
            says=LAST_REPORT,
            width=3,
            missing=("silent for 5 min", "red"),
            base="green",
            limits=((60, "orange"), (180, "red")),
            decimals=0,
            sparkline=False,
        ),
        alerts(
            "Alerts",
            says=ALERTS,
            name="Inferspan",
            width=4,
        ),
    ]


REQUESTS_S_BY_MODEL = Says(
    "Calls of generate() that ended, each second, by model.",
    "rate of `gen_ai.server.request.duration`.",
    "Compare with *Output tokens/s*: the same number of calls may be far more work.",
    empty=NO_REQUESTS,
)
DURATION = Says(
    "Duration of generate(), failed calls too. Each dot is a traced call: click it to open its trace.",
    "quantiles of `gen_ai.server.request.duration`.",
    "p99 far above p95: a few long outputs or a blocked process. Open a dot near p99.",
    empty=NO_REQUESTS,
)
ERRORS_BY_TYPE = Says(
    "Share of all calls that ended with this exception; dashed: with any.",
    "calls with this `error_type` / all calls.",
    "torch.OutOfMemoryError: see the memory of the GPU. Others: click a line for the traces of failed calls.",
    empty=NO_REQUESTS,
)
OUTPUT_TOKENS_S_BY_MODEL = Says(
    "Tokens generated each second, by model.",
    "rate of the usage counter, or of the sum of the older histogram `gen_ai.client.token.usage`.",
    "The measure of work done; compare with the utilisation of the GPU.",
    empty="no tokens in this time range",
)


def _requests() -> list[Sized]:
    duration = semconv.M_SERVER_DURATION
    return [
        trend(
            "Requests/s by model",
            Query(Q.count(duration, by=[MODEL]), "{{gen_ai_request_model}}"),
            unit="reqps",
            says=REQUESTS_S_BY_MODEL,
            width=12,
            height=7,
            stacked=True,
        ),
        trend(
            "Duration",
            Query(Q.quantile(0.5, duration), "p50"),
            Query(Q.quantile(0.95, duration), "p95", exemplar=True),
            Query(Q.quantile(0.99, duration), "p99"),
            unit="s",
            says=DURATION,
            width=12,
            height=7,
            links=[SLOW_TRACES],
        ),
        _errors(),
        trend(
            "Output tokens/s by model",
            Query(Q.tokens("output", by=[MODEL]), "{{gen_ai_request_model}}"),
            unit=TOKENS_S,
            says=OUTPUT_TOKENS_S_BY_MODEL,
            width=12,
            height=7,
            stacked=True,
            links=[to_dashboard(GPU)],
        ),
    ]


def _errors() -> Sized:
    failed = partial(Q.count, semconv.M_SERVER_DURATION, FAILED)
    whole = Q.count(semconv.M_SERVER_DURATION)
    panel = trend(
        "Errors by type",
        Query(f"{failed(by=['error_type'])} / on () group_left () ({whole} > 0)", "{{error_type}}"),
        Query(ratio(failed(), whole), "all"),
        unit="percentunit",
        says=ERRORS_BY_TYPE,
        width=12,
        height=7,
        links=[FAILED_TRACES],
    )
    # With one type only both lines are the same: that of the type is to be seen through the other's gaps.
    lines: Any = panel.builder
    grey, dash = {"mode": "fixed", "fixedColor": "#8e8e8e"}, {"fill": "dash", "dash": [4, 12]}
    lines.override_by_name("all", override(color=grey, custom__lineStyle=dash, custom__fillOpacity=0, custom__showPoints="never"))
    return panel


def dashboard() -> dict[str, Any]:
    """The dashboard as JSON."""
    rows = [
        Row("At a glance", [*_speed_now(), *_state_now()]),
        Row("Requests", _requests()),
        *detail.rows(),
        *pipeline.rows(Q),
    ]
    return frame(OVERVIEW, "Requests of all models: how many, how fast, what fails, and the way to their traces.", rows, NAMES)
