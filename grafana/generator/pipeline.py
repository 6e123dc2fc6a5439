"""A closed row that says whether the telemetry itself is well: what was left out, what it costs, how the collector does."""

from __future__ import annotations

from inferspan import semconv

from .charts import states
from .frame import Row
from .panels import Query, Says, Sized, mapping, trend
from .queries import Queries, or_zero
from .units import CORES, SERIES

__all__ = ["rows"]

NO_COLLECTOR = "Prometheus does not scrape the collector (port 8888)"
EXPORTER, RECEIVER = "{{exporter}}", "{{receiver}}"


def _own(q: Queries) -> list[Sized]:
    dropped = Says(
        "Spans of ours that are missing from traces, by reason. Metrics are complete all the same.",
        "rate of `inferspan.telemetry.spans.dropped`.",
        "`budget`: a request had more spans than `max_spans_per_trace`, as intended. Others: the exporter is too slow.",
        empty="no span was dropped",
    )
    errors = Says(
        "Errors inside inferspan that were contained: your program did not see them, a reading or a span is missing.",
        "rate of `inferspan.telemetry.errors` by place.",
        "The log of the program has each kind once, as a warning of the logger `inferspan`.",
        empty="no error was contained",
    )
    overhead = Says(
        "Share of the time of your calls that inferspan itself took, on the threads of the model.",
        "rate of `inferspan.telemetry.overhead` / rate of the durations of generate() and of plain forward passes.",
        "Over 2 %: fewer modules (`modules`), fewer sampled steps, or the preset `light`.",
        empty="no call in this time range",
    )
    by = ["service_name"]
    calls = " + ".join(
        f"({q.rate(key, by=by, part='_sum')} or 0 * {q.rate(semconv.M_OVERHEAD, by=by)})"
        for key in (semconv.M_SERVER_DURATION, semconv.M_FORWARD_DURATION)
    )
    share = f"{q.rate(semconv.M_OVERHEAD, by=by)} / (({calls}) > 0)"
    return [
        trend("Own overhead", Query(share, "{{service_name}}"), unit="percentunit", says=overhead, limits=((0.02, "orange"),)),
        trend("Spans dropped", Query(q.rate(semconv.M_SPANS_DROPPED, by=["reason"]), "{{reason}}"), unit="ops", says=dropped),
        trend(
            "Contained errors",
            Query(q.rate(semconv.M_ERRORS, by=["inferspan_error_place"]), "{{inferspan_error_place}}"),
            unit="ops",
            says=errors,
        ),
    ]


UP = Says(
    "Whether Prometheus reaches each of its targets.",
    "`up`.",
    "A collector that is down takes everything with it that goes through it: see its log.",
    empty="Prometheus scrapes nothing",
)
RECEIVED = Says(
    "Spans and metric points that the collectors took, each second.",
    "rates of `otelcol_receiver_accepted_*`.",
    "Zero while programs run: OTEL_EXPORTER_OTLP_ENDPOINT points elsewhere.",
    empty=NO_COLLECTOR,
)
LOST = Says(
    "What the collectors refused, could not queue, or gave up. Refused data is sent again; the other two are lost.",
    "rates of `otelcol_receiver_refused_*`, `otelcol_exporter_enqueue_failed_*`, `otelcol_exporter_send_failed_*`.",
    "Refused: more memory for the collector. Not queued or given up: Jaeger or Prometheus is away or slow.",
    empty=NO_COLLECTOR,
)
QUEUE = Says(
    "How full the queues in front of Jaeger and Prometheus are.",
    "`otelcol_exporter_queue_size / otelcol_exporter_queue_capacity`.",
    "Rises: the other side is slower than what comes in. At 100 % senders are told to wait, or data is lost.",
    empty=f"no exporter has a queue, or {NO_COLLECTOR}",
)
COLLECTOR_SENT = RECEIVED._replace(
    what="Spans and metric points that the collectors sent on, each second.",
    how="rates of `otelcol_exporter_sent_*`.",
    do="Less than was received: see *Collector: refused and lost*. Sampling and span metrics change the number on purpose.",
)


def _collector(q: Queries) -> list[Sized]:
    def both(name: str, by: str, legend: str) -> list[Query]:
        return [
            Query(q.rate(f"otelcol_{name}_{item}", by=[by]), f"{legend} {text}")
            for item, text in (("spans", "spans"), ("metric_points", "points"))
        ]

    def never_yet(name: str, legend: str) -> list[Query]:
        """A collector has no series of a failure before the first one: until then what it sent says that there were none."""
        return [
            Query(or_zero(failed.expression, sent.expression), failed.legend)
            for failed, sent in zip(both(f"exporter_{name}", "exporter", legend), both("exporter_sent", "exporter", ""), strict=True)
        ]

    queues = ["instance", "exporter", "data_type"]
    fill = " / ".join(
        f"{'(' if end else ''}max by ({', '.join(queues)}) ({q.series(f'otelcol_exporter_queue_{name}')}){end}"
        for name, end in (("size", ""), ("capacity", " > 0)"))
    )
    target = f"max by (job, instance) ({q.series('up')})"
    return [
        states(
            "Targets of Prometheus",
            Query(target, "{{job}} {{instance}}"),
            says=UP,
            mappings=mapping(_0=("down", "red"), _1=("up", "green")),
            width=8,
        ),
        trend("Collector: received", *both("receiver_accepted", "receiver", RECEIVER), unit="ops", says=RECEIVED),
        trend(
            "Collector: refused and lost",
            *both("receiver_refused", "receiver", f"refused by {RECEIVER}:"),
            *never_yet("enqueue_failed", f"no place in the queue of {EXPORTER}:"),
            *never_yet("send_failed", f"given up by {EXPORTER}:"),
            unit="ops",
            maximum=1,
            says=LOST,
        ),
        trend(
            "Collector: sent",
            *both("exporter_sent", "exporter", EXPORTER),
            unit="ops",
            says=COLLECTOR_SENT,
        ),
        trend(
            "Collector: queues", Query(fill, f"{EXPORTER} {{{{data_type}}}} {{{{instance}}}}"), unit="percentunit", says=QUEUE, maximum=1
        ),
    ]


DECIDED = Says(
    "Traces that the gateway decided to keep, by the policy that wanted them, and all that it let go.",
    "rates of `otelcol_processor_tail_sampling_*`; a trace may be wanted by several policies.",
    "More kept than you can store: lower OTELCOL_BASELINE_PERCENT. `dropped too early`: raise OTELCOL_NUM_TRACES.",
    empty="no gateway with tail sampling: every trace is kept",
)
OVERFLOW = Says(
    "Series into which values went whose attributes had too many combinations. Their numbers are right in sum, but not by attribute.",
    'number of series with `otel_metric_overflow="true"`: of the span metrics (limit in the collector) and of ours (limit in the SDK).',
    "Something with many values became an attribute: names of models made per request, or span names with ids in them.",
    empty="no limit was reached",
)
MEMORY = Says(
    "Memory that the collectors take.",
    "`otelcol_process_memory_rss`.",
    "Near the limit the collector refuses data: give it more, or sample earlier.",
    empty=NO_COLLECTOR,
)
COLLECTOR_CPU = MEMORY._replace(
    what="CPUs that the collectors keep busy.",
    how="rate of `otelcol_process_cpu_seconds`.",
    do="At the limit of its container it falls behind: queues fill.",
)


def _sampling(q: Queries) -> list[Sized]:
    prefix = "otelcol_processor_tail_sampling"
    marked = 'otel_metric_overflow="true"'
    watched = {
        "span metrics": q.series("traces_span_metrics_calls_total", marked),
        "requests": q.series(semconv.M_SERVER_DURATION, marked, part="_count"),
        "modules": q.series(semconv.M_MODULE_DURATION, marked, part="_count"),
    }
    return [
        trend(
            "Gateway: sampling",
            Query(q.rate(f"{prefix}_count_traces_sampled", 'sampled="true"', by=["policy"]), "kept: {{policy}}"),
            Query(q.rate(f"{prefix}_global_count_traces_sampled", 'sampled="false"'), "let go"),
            Query(q.rate(f"{prefix}_sampling_trace_dropped_too_early"), "dropped too early"),
            unit="ops",
            says=DECIDED,
        ),
        trend(
            "Overflow of cardinality",
            *(Query(f"count ({selector}) or vector(0)", name) for name, selector in watched.items()),
            unit=SERIES,
            maximum=1,
            says=OVERFLOW,
        ),
        trend(
            "Collector: memory",
            Query(f"max by (instance) ({q.series('otelcol_process_memory_rss')})", "{{instance}}"),
            unit="bytes",
            says=MEMORY,
        ),
        trend(
            "Collector: CPU",
            Query(q.rate("otelcol_process_cpu_seconds", by=["instance"]), "{{instance}}"),
            unit=CORES,
            says=COLLECTOR_CPU,
        ),
    ]


def rows(q: Queries) -> list[Row]:
    """The row, as a list of one."""
    return [Row("Telemetry pipeline and own overhead", [*_own(q), *_collector(q), *_sampling(q)], closed=True)]
