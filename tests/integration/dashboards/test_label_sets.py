"""The three ways into Prometheus give the same series: same names, labels, values, and those that the table of metrics promises.

What the programs sent is taken from a file that stands before all three. Differences that there have to be are listed, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from grafana.generator.catalogue import CATALOGUE, label
from inferspan import semconv
from tests.integration.dashboards.served import Served

pytestmark = pytest.mark.integration

Key = tuple[tuple[str, str], ...]
PATHS = ("push", "scrape", "fleet")
NOT_OURS = ("otelcol_", "scrape_", "up", "promhttp_", "inferspan:", "ALERTS")
"""The collectors' own health, what Prometheus adds to a scrape, and what rules record."""
NAMES_A_COLLECTOR = {"collector_instance_id"}
"""Span metrics name the collector that counted, which is another one on each way."""
ON_TARGET_INFO_OF_ONE = {"service_name", "service_namespace", "service_instance_id", "os_type"}
"""Only Prometheus itself can repeat on target_info what job and instance are made of (keep_identifying_resource_attributes), and only
the agent adds the operating system that it detects."""
RESOURCE = {"job", "instance", "service_name", "service_version", "service_instance_id", "deployment_environment_name", "host_name"}
ONLY_AFTER_A_FAILURE = {f"otelcol_exporter_{failed}_failed_{what}" for failed in ("send", "enqueue") for what in ("spans", "metric_points")}
"""A collector has these series once something has been given up, and nothing was here."""
OF_RANKS = {"service_namespace", "inferspan_distributed_rank"}


def series(served: Served, path: str) -> dict[Key, float]:
    """Every series of the measured programs at the moment of the test, without labels that have to differ.

    A scrape writes the bound 5 as ``5.0``, OTLP and remote write as ``5``: queries for one bucket have to allow both.
    """
    not_ours = ",".join(f'__name__!~"{prefix}.*"' for prefix in NOT_OURS)
    found: dict[Key, float] = {}
    for labels, value in served[path].query(f'{{job=~".+",job!="host-agent",{not_ours}}}', at=served.at):
        dropped = NAMES_A_COLLECTOR | (ON_TARGET_INFO_OF_ONE if labels["__name__"] == "target_info" else set())
        alike = {key: str(float(text)) if key == "le" else text for key, text in labels.items() if key not in dropped}
        found[tuple(sorted(alike.items()))] = value
    return found


@pytest.fixture(scope="module")
def everything(served: Served) -> Mapping[str, Mapping[Key, float]]:
    """The series of each way."""
    return {path: series(served, path) for path in PATHS}


@pytest.mark.parametrize("path", ["scrape", "fleet"])
def test_same_series(everything: Mapping[str, Mapping[Key, float]], path: str) -> None:
    """Each way has every series of the others, label for label."""
    push, other = everything["push"], everything[path]
    assert len(push) > 1000
    assert sorted(push.keys() - other.keys())[:5] == []
    assert sorted(other.keys() - push.keys())[:5] == []


@pytest.mark.parametrize("path", ["scrape", "fleet"])
def test_same_values(everything: Mapping[str, Mapping[Key, float]], path: str) -> None:
    """Every last value is the same: the programs have ended, and nothing is lost or counted twice on any way."""
    timed = ("traces_span_metrics_duration_seconds_sum",)  # each collector adds up durations in an order of its own
    push, other = everything["push"], everything[path]
    differing = {key: (push[key], other[key]) for key in push.keys() & other.keys() if push[key] != other[key]}
    exact = {key: pair for key, pair in differing.items() if dict(key)["__name__"] not in timed}
    assert exact == {}
    assert [pair for pair in differing.values() if pair[0] != pytest.approx(pair[1])] == []


def sent(served: Served) -> dict[str, set[str]]:
    """Attribute keys of each metric that the programs sent, by the name that they sent it under."""
    found: dict[str, set[str]] = {}
    for line in served.received:
        for resource in line.get("resourceMetrics", ()):
            for scope in resource["scopeMetrics"]:
                for metric in scope["metrics"]:
                    found.setdefault(metric["name"], set()).update(_keys(metric))
    return found


def _keys(metric: Mapping[str, Any]) -> set[str]:
    points = next(metric[kind]["dataPoints"] for kind in ("sum", "gauge", "histogram") if kind in metric)
    return {item["key"] for point in points for item in point.get("attributes", ())}


def test_the_programs_send_every_metric(served: Served) -> None:
    """No metric of the table is unproven: the programs send each of them, with no attribute that the table does not name."""
    seen = sent(served)
    assert set(semconv.METRICS) - seen.keys() == set()
    assert {
        name: keys - set(semconv.METRICS[name].attributes) for name, keys in seen.items() if keys - set(semconv.METRICS[name].attributes)
    } == {}


@pytest.mark.parametrize("path", PATHS)
def test_names_and_labels_are_those_of_the_table(served: Served, everything: Mapping[str, Mapping[Key, float]], path: str) -> None:
    """Every metric that was sent is there under its translated name, with the attributes that were sent and the resource as labels."""
    labels: dict[str, set[str]] = {}
    for key in everything[path]:
        labels.setdefault(dict(key)["__name__"], set()).update(name for name, _ in key if name != "__name__")
    wrong = {}
    for name, keys in sent(served).items():
        entry = CATALOGUE[name]
        for part in entry.parts:
            expected = set(map(label, keys)) | RESOURCE | OF_RANKS | ({"le"} if part == "_bucket" else set())
            assert expected <= entry.labels_of(part)
            if labels.get(entry.name + part) != expected:
                wrong[entry.name + part] = labels.get(entry.name + part, set()) ^ expected
    assert wrong == {}


def test_metrics_of_others_are_those_of_the_catalogue(served: Served) -> None:
    """What dashboards show of span metrics, hosts and collectors exists behind agent and gateway, with labels of the catalogue only."""
    missing, wrong = set(), {}
    for entry in CATALOGUE.values():
        if entry.source not in ("span_metrics", "host_metrics", "collector"):
            continue
        of_hosts = "=" if entry.source == "host_metrics" else "!="
        for part in entry.parts:
            found = [
                labels for labels, _ in served["fleet"].query(f'{entry.name}{part}{{service_name{of_hosts}"host-agent"}}', at=served.at)
            ]
            if not found:
                missing.add(entry.name)
            extra = {name for labels in found for name in labels} - entry.labels_of(part) - {"__name__"}
            if extra:
                wrong[entry.name + part] = extra
    assert wrong == {}
    assert missing == ONLY_AFTER_A_FAILURE


def test_types_are_those_of_the_table(served: Served) -> None:
    """A scrape tells Prometheus the kind of each metric, and it is that of the table; OTLP and remote write tell it nothing."""
    kinds = {"Histogram": "histogram", "Counter": "counter"}
    wrong = {}
    for name in sent(served):
        entry = CATALOGUE[name]
        told = {each["type"] for each in served.metadata.get(entry.name, served.metadata.get(entry.name.removesuffix("_total"), ()))}
        if told != {kinds.get(entry.kind, "gauge")}:
            wrong[entry.name] = told
    assert wrong == {}
