"""The metric catalogue: names as Prometheus' own translation gives them, labels of resource and metric, both sources of a shared name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from grafana.generator import catalogue
from inferspan import semconv

CONFIG = Path(__file__).resolve().parents[2] / "collector-config"


@pytest.mark.parametrize(
    ("name", "unit", "instrument", "expected"),
    [
        ("gen_ai.server.time_to_first_token", "s", "Histogram", "gen_ai_server_time_to_first_token_seconds"),
        ("gen_ai.client.token.usage", "{token}", "Histogram", "gen_ai_client_token_usage"),
        ("hw.gpu.utilization", "1", "ObservableGauge", "hw_gpu_utilization_ratio"),
        ("hw.gpu.memory.usage", "By", "ObservableUpDownCounter", "hw_gpu_memory_usage_bytes"),
        ("hw.energy", "J", "ObservableCounter", "hw_energy_joules_total"),
        ("hw.status", "1", "ObservableUpDownCounter", "hw_status"),
        ("hw.fan.speed_ratio", "1", "ObservableGauge", "hw_fan_speed_ratio"),
        ("tokens", "{token}/s", "Gauge", "tokens_per_second"),
        ("disk.io", "By/s", "Gauge", "disk_io_bytes_per_second"),
        ("disk.io.bytes", "By", "Counter", "disk_io_bytes_total"),
        ("requests.total.seen", "", "Counter", "requests_seen_total"),
        ("cache.hit.ratio", "1", "Gauge", "cache_hit_ratio"),
        ("cpu.share", "%", "Gauge", "cpu_share_percent"),
        ("fan", "rpm", "Gauge", "fan_rpm"),
        ("clock", "MHz", "Gauge", "clock_MHz"),
        ("5xx", "{request}", "Counter", "_5xx_total"),
        ("a..b-c", "1", "Histogram", "a_b_c"),
    ],
)
def test_prometheus_name(name: str, unit: str, instrument: str, expected: str) -> None:
    """Names are those that Prometheus' own translation gives: unit words, per-units, ratio and total at the end and only once."""
    assert catalogue.prometheus_name(semconv.Metric(name, instrument, unit, "")) == expected


def test_resource_attributes_are_those_that_become_labels() -> None:
    """The list is the one of the Prometheus configuration, in its order; another test compares the configurations with each other."""
    loaded = yaml.safe_load((CONFIG / "prometheus.yml").read_text(encoding="utf-8"))
    assert list(catalogue.RESOURCE_ATTRIBUTES) == loaded["otlp"]["promote_resource_attributes"]


def test_every_metric_of_ours_is_in_it() -> None:
    """Each metric has its own attributes and the resource's as labels; a histogram has three series, the buckets with ``le``."""
    for metric in semconv.METRICS.values():
        entry = catalogue.find(metric.name)
        assert {catalogue.label(key) for key in metric.attributes} | {"service_name", "job", "instance"} <= entry.labels
        assert entry.parts == (("_bucket", "_sum", "_count") if metric.instrument == "Histogram" else ("",))
        assert [catalogue.SERIES[entry.name + part][0] for part in entry.parts] == [(entry, part) for part in entry.parts]
    assert "le" in catalogue.find(semconv.M_SERVER_TTFT).labels_of("_bucket")


def test_shared_names_say_whose_they_are() -> None:
    """Where the samplers and the collector's host receiver use one name, both entries name the label that tells them apart."""
    shared = {name: [entry for entry, _ in entries] for name, entries in catalogue.SERIES.items() if len(entries) > 1}
    assert {name: [(entry.source, entry.needs) for entry in entries] for name, entries in shared.items()} == {
        "system_cpu_time_seconds_total": [("inferspan", "cpu_mode"), ("host_metrics", "state")],
        "system_memory_usage_bytes": [("inferspan", "system_memory_state"), ("host_metrics", "state")],
    }


def test_an_unknown_metric_is_named() -> None:
    """Asking for a metric that nobody has says which, and where it would have to be."""
    with pytest.raises(KeyError, match=r"no metric 'gen_ai\.gone' in the catalogue: it is in semconv\.METRICS or a table of"):
        catalogue.find("gen_ai.gone")
