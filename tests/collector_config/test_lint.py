"""What a collector accepts and a reader should not: components that do nothing, old names, data that bypasses the memory limit."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.collector_config.combinations import COMBINATIONS, FOLDER, Combination, load, merged, text

KINDS = ("receivers", "processors", "exporters")
OLD_NAMES = {
    ("exporters", "otlp"): "otlp_grpc",
    ("exporters", "otlphttp"): "otlp_http",
    ("exporters", "logging"): "debug",
    ("exporters", "loadbalancing"): "load_balancing",
    ("exporters", "prometheusremotewrite"): "prometheus_remote_write",
    ("connectors", "spanmetrics"): "span_metrics",
    ("processors", "resourcedetection"): "resource_detection",
    ("processors", "k8sattributes"): "k8s_attributes",
    ("processors", "metricstransform"): "metrics_transform",
    ("processors", "cumulativetodelta"): "cumulative_to_delta",
    ("receivers", "hostmetrics"): "host_metrics",
    ("receivers", "filelog"): "file_log",
}
# Exporters that hand nothing to another machine, or that wait to be asked; the last has a queue of its own.
WITHOUT_QUEUE = ("debug", "file", "prometheus", "prometheus_remote_write")

COLLECTORS = [each for each in COMBINATIONS if each.program == "otelcol"]
every_collector = pytest.mark.parametrize("combination", COLLECTORS, ids=str)


def kind_of(component: str) -> str:
    """The type in ``type/name``."""
    return component.partition("/")[0]


def pipelines(whole: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """The pipelines, each with all three lists."""
    return {name: {kind: each.get(kind) or [] for kind in KINDS} for name, each in whole["service"]["pipelines"].items()}


@every_collector
def test_everything_used_is_declared(combination: Combination) -> None:
    """Each component of a pipeline and each extension is written down, and each pipeline has both ends."""
    whole = merged(combination.files)
    connectors = set(whole.get("connectors") or {})
    undeclared = {
        (name, kind, component)
        for name, each in pipelines(whole).items()
        for kind in KINDS
        for component in each[kind]
        if component not in (whole.get(kind) or {}) and (kind == "processors" or component not in connectors)
    }
    extensions = set(whole["service"].get("extensions") or ()) - set(whole.get("extensions") or {})
    assert (undeclared, extensions) == (set(), set())
    assert [name for name, each in pipelines(whole).items() if not (each["receivers"] and each["exporters"])] == []


@every_collector
def test_everything_declared_is_used(combination: Combination) -> None:
    """What the last file brings along has a place; an overlay may leave parts of the files below it idle."""
    whole, last = merged(combination.files), load(combination.files[-1])
    used = {kind: {component for each in pipelines(whole).values() for component in each[kind]} for kind in KINDS}
    used["extensions"] = set(whole["service"].get("extensions") or ())
    authenticators = {str(value) for value in values_of(whole, "authenticator")}
    used["extensions"] |= authenticators
    idle = {(kind, component) for kind, names in used.items() for component in (last.get(kind) or {}) if component not in names}
    assert idle == set()
    for connector in last.get("connectors") or {}:
        assert connector in used["exporters"] and connector in used["receivers"], f"{connector} must end one pipeline and begin another"


def values_of(node: Any, key: str) -> list[Any]:
    """The values of a key, wherever it stands."""
    if isinstance(node, dict):
        return [value for name, inner in node.items() for value in ([inner] if name == key else values_of(inner, key))]
    return [value for inner in node for value in values_of(inner, key)] if isinstance(node, list) else []


@every_collector
def test_no_old_names(combination: Combination) -> None:
    """Components have the names of today; the old ones are aliases that will go."""
    whole = merged(combination.files)
    old = {
        component: OLD_NAMES[kind, kind_of(component)]
        for kind in (*KINDS, "connectors")
        for component in whole.get(kind) or {}
        if (kind, kind_of(component)) in OLD_NAMES
    }
    assert old == {}


@every_collector
def test_memory_limit_comes_first(combination: Combination) -> None:
    """Whatever enters from outside meets the memory limit before anything else; batches are made in the exporters' queues."""
    whole = merged(combination.files)
    connectors = set(whole.get("connectors") or {})
    for name, each in pipelines(whole).items():
        if set(each["receivers"]) - connectors:
            assert each["processors"][:1] == ["memory_limiter"], name
        assert "memory_limiter" not in each["processors"][1:], name
    assert "batch" not in {kind_of(component) for component in whole.get("processors") or {}}


@every_collector
def test_what_leaves_waits_in_a_queue(combination: Combination) -> None:
    """Every exporter to another machine states how it queues."""
    exporters = merged(combination.files)["exporters"]
    careless = {
        name for name, settings in exporters.items() if kind_of(name) not in WITHOUT_QUEUE and "sending_queue" not in (settings or {})
    }
    assert careless == set()


@every_collector
def test_addresses_come_from_the_environment(combination: Combination) -> None:
    """No address is fixed: wherever one stands, a variable with a default gives at least a part of it."""
    whole = merged(combination.files)
    addresses = [
        value for key in ("endpoint", "hostname", "host", "port") for value in values_of(whole, key) if not isinstance(value, dict)
    ]
    assert [value for value in addresses if not re.search(r"\$\{env:\w+:-", str(value))] == []


@pytest.mark.parametrize("name", sorted({name for each in COMBINATIONS for name in each.files}))
def test_variables_are_quoted(name: str) -> None:
    """Inside ``{}`` and ``[]`` a variable is in quotes: validation does not notice that the default's colon breaks the start."""
    depth, bare = 0, []
    for event in yaml.parse(text(name)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += bool(event.flow_style) or depth > 0
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= depth > 0
        elif isinstance(event, yaml.ScalarEvent) and depth and event.style is None and "${" in event.value:
            bare.append(event.value)
    assert bare == []


def test_promoted_attributes_are_one_list() -> None:
    """All three ways into Prometheus make the same labels of the same resource attributes."""
    pushed = load("prometheus.yml")["otlp"]["promote_resource_attributes"]
    lists = {
        path.name: included
        for path in FOLDER.glob("*.yaml")
        for constant in values_of(load(path.name), "resource_constant_labels")
        for included in values_of(constant, "included")
    }
    assert lists == {"dev-scrape.yaml": pushed, "gateway.yaml": pushed}


def test_metrics_made_from_spans_are_the_same_everywhere() -> None:
    """One machine and a fleet count the same spans into the same buckets with the same labels, which are those that Jaeger asks for."""
    made = {}
    for name in ("dev.yaml", "gateway.yaml"):
        whole = load(name)
        connector = whole["connectors"]["span_metrics"]
        (conditions,) = [each["trace_conditions"] for key, each in whole["processors"].items() if kind_of(key) == "filter" and "red" in key]
        namespace = connector.get("namespace", "traces.span.metrics")
        made[name] = (namespace, connector["histogram"], connector["dimensions"], conditions)
    assert made["dev.yaml"] == made["gateway.yaml"]
    namespace, histogram, _, _ = made["dev.yaml"]
    asked = load("jaeger.yaml")["extensions"]["jaeger_storage"]["metric_backends"]["red"]["prometheus"]
    assert (asked["metric_namespace"], asked["latency_unit"]) == (namespace.replace(".", "_"), histogram["unit"])
