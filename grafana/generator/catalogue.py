"""Every metric that a dashboard may show, with the names and labels that Prometheus has for it.

In: ``semconv.METRICS``, plus the metrics of others that dashboards need (span metrics, the collector's own, the host's). Out: entries
by series name. A metric that is renamed in ``semconv`` gets its new name here, so in every dashboard; a metric that is not here is an
error of the lint. Nothing but the standard library and ``semconv`` is needed, ``docs/generate.py`` uses the names as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from inferspan import semconv

__all__ = ["CATALOGUE", "NOT_SHOWN", "RESOURCE_ATTRIBUTES", "SERIES", "Entry", "find", "label", "prometheus_name"]

# ------------------------------------------------------------------------------------------------------------ translation
# Of a unit to the word that Prometheus puts behind the name; a unit that is not here is taken as it is.
UNITS = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds",
    "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes", "TiBy": "tibibytes",
    "KBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes", "TBy": "terabytes",
    "m": "meters", "V": "volts", "A": "amperes", "J": "joules", "W": "watts", "g": "grams", "Cel": "celsius", "Hz": "hertz",
    "1": "", "%": "percent",
}  # fmt: skip
PER_UNITS = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year"}


def _unit_word(unit: str, words: dict[str, str]) -> str:
    """A unit in braces is a remark and gives no word."""
    unit = unit.strip()
    if not unit or "{" in unit or "}" in unit:
        return ""
    return re.sub(r"_+", "_", re.sub(r"[^a-zA-Z0-9:]", "_", words.get(unit, unit))).strip("_")


def _translated(name: str, unit: str, kind: str) -> str:
    words = [word for word in re.split(r"[^a-zA-Z0-9:]+", name) if word]
    main, _, per = unit.partition("/")
    suffixes = [_unit_word(main, UNITS)]
    per_word = _unit_word(per, PER_UNITS)
    suffixes.append(f"per_{per_word}" if per_word else "")
    words += [suffix for suffix in suffixes if suffix and suffix not in words]
    if kind == semconv.COUNTER:
        words = [word for word in words if word != "total"] + ["total"]
    elif kind == semconv.GAUGE and unit == "1":
        words = [word for word in words if word != "ratio"] + ["ratio"]
    joined = "_".join(words)
    return f"_{joined}" if joined[:1].isdigit() else joined


def _kind(instrument: str) -> str:
    return instrument.removeprefix("Observable")


def prometheus_name(metric: semconv.Metric) -> str:
    """Name of a metric in Prometheus under its default translation: dots to underscores, unit and kind as suffixes.

    A histogram has three series; theirs end in ``_bucket``, ``_sum`` and ``_count`` on top of this name.
    """
    return _translated(metric.name, metric.unit, _kind(metric.instrument))


def label(attribute: str) -> str:
    """Name of an attribute as a label in Prometheus."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", attribute)
    return f"key_{name}" if name[:1].isdigit() else name


# ---------------------------------------------------------------------------------------------------------------- entries
RESOURCE_ATTRIBUTES = (
    "service.name", "service.namespace", "service.version", "service.instance.id", "deployment.environment.name", "host.name",
    "k8s.cluster.name", "k8s.namespace.name", "k8s.pod.name", "k8s.node.name", "collector.instance.id", "inferspan.distributed.rank",
)  # fmt: skip
"""What becomes a label on every series, by all three ways into Prometheus; a test compares it with the configurations."""
_RESOURCE = frozenset({*map(label, RESOURCE_ATTRIBUTES), "job", "instance"})
_OVERFLOW = "otel_metric_overflow"
"""Label of the one series that takes what is over a limit of cardinality."""


@dataclass(frozen=True)
class Entry:
    """One metric.

    Args:
        key: what dashboards ask for it by: the OTel name for ours, ``host_metrics/`` and the OTel name for those of the collector's
            receiver of that name, the name in Prometheus for others.
        name: in Prometheus, without ``_bucket`` and the like.
        unit: as in OTel.
        kind: ``Counter``, ``UpDownCounter``, ``Gauge`` or ``Histogram``.
        labels: every label that its series may have.
        source: who makes it: ``inferspan``, ``span_metrics``, ``host_metrics``, ``collector`` or ``prometheus``.
        brief: what it says.
        device: whether several processes report the same thing, so that ``max by (hw_id)`` must come before any sum.
        needs: a label that a query must ask for, because somebody else's metric has the same name.
    """

    key: str
    name: str
    unit: str
    kind: str
    labels: frozenset[str]
    source: str
    brief: str
    device: bool = False
    needs: str = ""
    parts: tuple[str, ...] = field(init=False, default=("",))

    def __post_init__(self) -> None:
        if self.kind == semconv.HISTOGRAM:
            object.__setattr__(self, "parts", ("_bucket", "_sum", "_count"))

    def labels_of(self, part: str) -> frozenset[str]:
        """The labels of one of its series."""
        return self.labels | {"le"} if part == "_bucket" else self.labels


# Same name, other labels: the samplers' and the host_metrics receiver's.
_SHARED = {semconv.M_SYSTEM_CPU_TIME: label(semconv.CPU_MODE), semconv.M_SYSTEM_MEMORY_USAGE: label(semconv.MEMORY_STATE)}


def _ours(metric: semconv.Metric) -> Entry:
    labels = _RESOURCE | {label(key) for key in metric.attributes} | {_OVERFLOW}
    # Memory of a process on a card is that process's alone; all other readings of a card are the card's.
    device = semconv.HW_VENDOR in metric.attributes and metric.name != semconv.M_GPU_PROCESS_MEMORY
    kind = _kind(metric.instrument)
    needs = _SHARED.get(metric.name, "")
    return Entry(metric.name, prometheus_name(metric), metric.unit, kind, labels, "inferspan", metric.brief, device, needs)


_C, _G, _U, _H = semconv.COUNTER, semconv.GAUGE, semconv.UP_DOWN_COUNTER, semconv.HISTOGRAM

# name, unit, kind, labels, what it says
_SPAN_LABELS = ("span.name", "span.kind", "status.code", semconv.OPERATION_NAME, semconv.REQUEST_MODEL, semconv.ERROR_TYPE)
_SPAN_METRICS = (
    ("traces.span.metrics.calls", "", _C, _SPAN_LABELS, "spans, without those of steps and modules"),
    ("traces.span.metrics.duration", "s", _H, _SPAN_LABELS, "their durations"),
)
_HOST_METRICS = (
    ("system.cpu.time", "s", _C, ("state",), "CPU time of the host"),
    ("system.cpu.load_average.1m", "{thread}", _G, (), "threads that run or wait for a CPU, mean of a minute"),
    ("system.cpu.logical.count", "{cpu}", _U, (), "CPUs"),
    ("system.memory.usage", "By", _U, ("state",), "memory of the host by state"),
    ("system.disk.io", "By", _C, ("device", "direction"), "bytes read and written"),
    ("system.network.io", "By", _C, ("device", "direction"), "bytes received and sent"),
    ("system.network.errors", "{errors}", _C, ("device", "direction"), "packets that failed"),
    ("system.filesystem.usage", "By", _U, ("device", "mode", "mountpoint", "state", "type"), "space of file systems by state"),
    ("system.paging.operations", "{operations}", _C, ("direction", "type"), "pages moved in and out"),
)
# As collector 0.161 exposes them with the reader that our configurations set up: counters have no `_total` there.
_EXPORTER = ("exporter", "data_type", "server_address", "server_port", "url_path")
_RECEIVER = ("receiver", "transport")
_COLLECTOR = (
    ("otelcol_exporter_sent_spans", _C, _EXPORTER, "spans sent on"),
    ("otelcol_exporter_sent_metric_points", _C, _EXPORTER, "metric points sent on"),
    ("otelcol_exporter_send_failed_spans", _C, _EXPORTER, "spans given up"),
    ("otelcol_exporter_send_failed_metric_points", _C, _EXPORTER, "metric points given up"),
    ("otelcol_exporter_enqueue_failed_spans", _C, _EXPORTER, "spans for which the queue had no place"),
    ("otelcol_exporter_enqueue_failed_metric_points", _C, _EXPORTER, "metric points for which the queue had no place"),
    ("otelcol_exporter_queue_size", _G, _EXPORTER, "filling of a queue, in its own unit"),
    ("otelcol_exporter_queue_capacity", _G, _EXPORTER, "size of a queue, in its own unit"),
    ("otelcol_receiver_accepted_spans", _C, _RECEIVER, "spans taken"),
    ("otelcol_receiver_accepted_metric_points", _C, _RECEIVER, "metric points taken"),
    ("otelcol_receiver_refused_spans", _C, _RECEIVER, "spans refused; the sender tries again"),
    ("otelcol_receiver_refused_metric_points", _C, _RECEIVER, "metric points refused; the sender tries again"),
    ("otelcol_processor_tail_sampling_global_count_traces_sampled", _C, ("sampled", "decision"), "traces by decision"),
    ("otelcol_processor_tail_sampling_count_traces_sampled", _C, ("policy", "sampled", "decision"), "traces by policy and decision"),
    ("otelcol_processor_tail_sampling_sampling_trace_dropped_too_early", _C, (), "traces dropped before a decision"),
    ("otelcol_process_memory_rss", _G, (), "resident memory of the collector"),
    ("otelcol_process_cpu_seconds", _C, (), "CPU time of the collector"),
)
_PROMETHEUS = (
    ("target_info", _G, _RESOURCE | {label(item.key) for item in semconv.ATTRIBUTES if item.on.startswith("resource")}, "who reports"),
    ("up", _G, frozenset({"job", "instance"}), "1 for a target that answers"),
    ("ALERTS", _G, _RESOURCE | {"alertname", "alertstate", "severity"}, "1 for an alert that is pending or firing"),
)


def _foreign() -> list[Entry]:
    span_labels = _RESOURCE | {_OVERFLOW}
    entries = [
        Entry(
            _translated(name, unit, kind),
            _translated(name, unit, kind),
            unit,
            kind,
            span_labels | set(map(label, keys)),
            "span_metrics",
            brief,
        )
        for name, unit, kind, keys, brief in _SPAN_METRICS
    ]
    for name, unit, kind, keys, brief in _HOST_METRICS:
        needs = "state" if name in _SHARED else ""
        labels = _RESOURCE | set(keys)
        entries.append(
            Entry(f"host_metrics/{name}", _translated(name, unit, kind), unit, kind, labels, "host_metrics", brief, needs=needs),
        )
    own = frozenset({"job", "instance"})
    entries += [Entry(name, name, "", kind, own | set(keys), "collector", brief) for name, kind, keys, brief in _COLLECTOR]
    entries += [Entry(name, name, "", kind, labels, "prometheus", brief) for name, kind, labels, brief in _PROMETHEUS]
    return entries


CATALOGUE: dict[str, Entry] = {entry.key: entry for entry in (*map(_ours, semconv.METRICS.values()), *_foreign())}
"""Every metric by its key."""


def _by_series() -> dict[str, list[tuple[Entry, str]]]:
    found: dict[str, list[tuple[Entry, str]]] = {}
    for entry in CATALOGUE.values():
        for part in entry.parts:
            found.setdefault(entry.name + part, []).append((entry, part))
    return found


SERIES: dict[str, list[tuple[Entry, str]]] = _by_series()
"""Entry and part by the name of each series; two entries where two sources use one name."""


def find(key: str) -> Entry:
    """The metric of this key.

    Raises:
        KeyError: there is none; the message says where to add it.
    """
    try:
        return CATALOGUE[key]
    except KeyError:
        raise KeyError(
            f"no metric {key!r} in the catalogue: it is in semconv.METRICS or a table of grafana/generator/catalogue.py"
        ) from None


_ACTIVATIONS = "figures of one model's layers: the heat map of the report shows them, a query of its own the histograms"
_SAME = f"the same durations as {semconv.M_SERVER_DURATION}, which every setting gives"
NOT_SHOWN: dict[str, str] = {
    semconv.M_INFERENCE_DURATION: _SAME,
    semconv.M_LEGACY_DURATION: _SAME,
    semconv.M_FIRST_REQUEST: "one value a process: a question about a start, for a query of its own",
    semconv.M_PROGRAM_STAGE_DURATION: "parts of one program, which a dashboard for all of them cannot know",
    semconv.M_PROGRAM_STAGE_MEMORY: "as the durations of these stages",
    semconv.M_ACTIVATION_STD: _ACTIVATIONS,
    semconv.M_ACTIVATION_ABS_MAX: _ACTIVATIONS,
    semconv.M_ACTIVATION_SPARSITY: _ACTIVATIONS,
    semconv.M_SAMPLING_TIME: "on a thread of its own: a question about the intervals of sampling, for a query of its own",
}
"""Metrics of ours that no dashboard shows, and why."""
