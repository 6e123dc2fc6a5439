"""The dashboard "Fleet and ranks": many processes side by side, which of them is slow, missing, old or silent.

In front: one row of a table for each process, and the ranks of each job. Closed rows below: quantiles by whatever ``by`` names, energy,
versions, and requests beside those of an hour, a day or a week before.
"""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.models.dashboard import FieldColorModeId

from inferspan import semconv as s

from ..catalogue import label
from ..charts import bars, grid
from ..frame import Row, frame
from ..links import FLEET, GPU, MODEL, OVERVIEW, to_dashboard
from ..panels import Query, Says, Sized, stats, trend
from ..units import PER_SECOND, RANKS, TIMES, TOKENS_S
from . import detail, table
from .queries import NAMES, NO_RANKS, NO_REQUESTS, RANK, WHOLE, Q, of, step_of_rank, straggler

__all__ = ["dashboard"]

STRAGGLER = ((1.1, "orange"), (1.3, "red"))
REQUEST_MODEL = label(s.REQUEST_MODEL)

NO_JOB, NO_CALL = ("no rank reports", "text"), ("no call yet", "text")


def _missing() -> str:
    size = f"max by (job) ({WHOLE.series(s.M_WORLD_SIZE)})"
    seen = f"count by (job) (count by (job, {RANK}) ({WHOLE.series(s.M_WORLD_SIZE)}))"
    return f"{size} - {seen}"


def _at_a_glance() -> list[Sized]:
    processes = f"count (count by (job, instance) ({Q.series(s.M_PROCESS_UPTIME)}))"
    versions = f"max (count by (service_name) (count by (service_name, service_version) ({Q.series(s.M_PROCESS_UPTIME)})))"
    return [
        stats(
            "Processes",
            Query(processes, "processes"),
            unit="short",
            decimals=0,
            says=Says(
                "Processes that report now.",
                "series of `process.uptime`, one for each process.",
                "Fewer than you started: see *Last report* in the list, then the scheduler's events.",
                empty="no process reports",
            ),
        ),
        stats(
            "Missing ranks",
            Query(f"sum ({_missing()})", "ranks"),
            unit="short",
            decimals=0,
            base="green",
            limits=((1, "red"),),
            says=Says(
                "Ranks that do not report, over all jobs.",
                "`inferspan.distributed.world_size` - ranks seen, by job.",
                "Above 0: *Missing ranks by job* says of which; that rank has not started, has died or cannot reach the collector.",
                empty=NO_RANKS,
            ),
            missing=NO_JOB,
        ),
        stats(
            "Slowest rank",
            Query(f"max ({straggler()})", "times the median"),
            unit=TIMES,
            decimals=2,
            base="green",
            limits=STRAGGLER,
            says=Says(
                "How many times the median of its job the slowest rank takes for a decode step.",
                "mean decode step of each rank / median over the ranks of the job with the same model.",
                "Above 1.3: *Step time by rank* says which; look at the card and the host of that rank.",
                empty=NO_RANKS,
            ),
            links=[to_dashboard(GPU)],
            missing=NO_JOB,
        ),
        stats(
            "Output tokens/s",
            Query(Q.tokens("output"), "tokens/s"),
            unit=PER_SECOND,
            decimals=1,
            says=Says(
                "Tokens generated each second by all processes.",
                "rate of the usage counters.",
                "Compare with the number of processes: *Output tokens/s by rank* shows who gives how much.",
                empty=NO_REQUESTS,
            ),
            links=[to_dashboard(OVERVIEW)],
            missing=NO_CALL,
        ),
        stats(
            "In flight",
            Query(Q.total(s.M_ACTIVE), "requests"),
            unit="short",
            decimals=0,
            says=Says(
                "Calls of generate() that run now, in all processes.",
                "sum of `inferspan.generate.active`.",
                "Much more on one process than on others: the balancer in front of them.",
                empty=NO_REQUESTS,
            ),
            missing=NO_CALL,
        ),
        stats(
            "Versions",
            Query(versions, "versions"),
            unit="short",
            decimals=0,
            base="green",
            limits=((2, "orange"),),
            says=Says(
                "How many versions of one service run at the same time, of the service with the most.",
                "values of `service.version` among the processes of each service that report.",
                "Above 1 for long: a roll-out that has stopped; *Versions over time* says how far it came.",
                empty="no process reports",
            ),
        ),
    ]


def _ranks() -> Row:
    steps = Says(
        "Mean duration of a decode step on each rank.",
        "`inferspan.generate.step.duration` by rank, host clock.",
        "One line above the others is a straggler. Ranks that wait for each other in each step are all as slow as the slowest.",
        empty=NO_RANKS,
    )
    ratio = Says(
        "The same as a multiple of the median of the ranks of its job.",
        "mean decode step / median over the ranks of the job with the same model.",
        "Over 1.3 for 10 minutes is an alert: look at clocks, throttling and the PCIe link of that rank's card.",
        empty=NO_RANKS,
    )
    missing = Says(
        "Ranks of each job that do not report.",
        "`inferspan.distributed.world_size` - ranks seen.",
        "Above 0: look for the rank's process; after an orderly end of a job its line ends as a whole.",
        empty=NO_RANKS,
    )
    tokens = Says(
        "Tokens generated each second by each rank.",
        "rate of the usage counters by rank.",
        "Uneven bars: uneven load, or a slow rank. In tensor parallel each rank reports the same tokens: do not add them up.",
        empty=NO_RANKS,
    )
    legend = f"{of('job')} rank {of(RANK)}"
    to_model = [to_dashboard(MODEL)]
    return Row(
        "Ranks",
        [
            trend(
                "Step time by rank", Query(step_of_rank(), f"{legend} {of(REQUEST_MODEL)}"), unit="s", width=6, says=steps, links=to_model
            ),
            trend(
                "Rank against the median",
                Query(straggler(), f"{legend} {of(REQUEST_MODEL)}"),
                unit=TIMES,
                decimals=2,
                width=6,
                says=ratio,
                limits=STRAGGLER,
                links=[to_dashboard(GPU)],
            ),
            bars("Output tokens/s by rank", Query(_tokens_of_ranks(), legend), unit=TOKENS_S, width=6, says=tokens),
            trend(
                "Missing ranks by job",
                Query(_missing(), "{{job}}"),
                unit=RANKS,
                width=6,
                maximum=2,
                limits=((1, "red"),),
                says=missing,
            ),
        ],
    )


def _tokens_of_ranks() -> str:
    return f"sum by (job, {RANK}) ({Q.tokens('output', ['job', RANK])}) and on ({RANK}) count by ({RANK}) ({Q.series(s.M_WORLD_SIZE)})"


def _instances() -> Sized:
    return grid(
        "Duration p95 by process (blue: short, purple: long)",
        Query(Q.quantile(0.95, s.M_SERVER_DURATION, by=["service_name", "instance"]), of("service_name", "instance")),
        unit="s",
        height=7,
        minimum=0,
        color=FieldColorModeId.CONTINUOUS_BL_PU,
        links=[to_dashboard(OVERVIEW, instance="instance")],
        says=Says(
            "A line for each process: how long 95 % of its requests took at most. Purple is the longest in view, blue next to nothing.",
            "quantile of `gen_ai.server.request.duration` by process.",
            "One line that differs: that process or its host. A column: something that all of them share.",
            empty=NO_REQUESTS,
        ),
    )


def dashboard() -> dict[str, Any]:
    """The dashboard as JSON."""
    rows = [
        Row("At a glance", _at_a_glance()),
        Row("Processes", [table.processes(), _instances()]),
        _ranks(),
        *detail.rows(),
    ]
    return frame(FLEET, "Many processes side by side: which of them is slow, missing, old or silent.", rows, NAMES)
