"""Every configuration is accepted by the program that it is for, and starts; storage other than memory keeps what it is for."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.collector_config.combinations import COMBINATIONS, FOLDER, MISSING, Combination, load, merged
from tests.collector_config.conftest import Run, clean_environment
from tests.collector_config.readings import defaults
from tests.integration.servers import Collector, Servers, Stack, eventually, post_json
from tests.support.ports import free_ports

pytestmark = pytest.mark.integration

COMPLETE = [each for each in COMBINATIONS if not set(each.files) & set(MISSING)]
STARTING = [each for each in COMPLETE if each.program == "otelcol"]


def required(combination: Combination) -> list[str]:
    """The variables without a default."""
    return sorted({variable for name in combination.files for variable, default in defaults(name).items() if default == "required"})


def answers(combination: Combination, given: dict[str, str]) -> dict[str, str]:
    """A file for each variable that has to be given."""
    return {variable: next(path for end, path in given.items() if variable.endswith(end)) for variable in required(combination)}


@pytest.mark.parametrize("combination", COMPLETE, ids=str)
def test_is_valid(combination: Combination, run_tool: Run, given: dict[str, str]) -> None:
    """The program finds nothing wrong, and nothing that it will soon find wrong."""
    result = run_tool(combination.program, "validate", *combination.arguments, **answers(combination, given))
    assert result.returncode == 0, result.stdout
    assert "deprecated" not in result.stdout


@pytest.mark.parametrize("name", MISSING)
def test_only_the_named_component_is_missing(name: str, run_tool: Run, tmp_path: Path) -> None:
    """Where the tests' collector lacks a component, that is all it objects to: without the component it takes the file."""
    (combination,) = [each for each in COMBINATIONS if each.files[-1] == name]
    result = run_tool(combination.program, "validate", *combination.arguments)
    assert result.returncode != 0
    rest = merged(combination.files)
    for kind, components in MISSING[name].items():
        for component in components:
            assert f'unknown type: "{component}"' in result.stdout
            del rest[kind][component]
            for pipeline in rest["service"]["pipelines"].values():
                pipeline[kind] = [each for each in pipeline[kind] if each != component]
    assert result.stdout.count("unknown type") == sum(map(len, MISSING[name].values()))
    without = tmp_path / "without.yaml"
    without.write_text(yaml.safe_dump(rest), encoding="utf-8")
    result = run_tool(combination.program, "validate", "--config", str(without))
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("combination", STARTING, ids=str)
def test_starts(combination: Combination, given: dict[str, str], tmp_path: Path, run_tool: Run) -> None:
    """The collector becomes healthy, and its log names no error and no setting that will go: validation alone does not read every value."""
    run_tool("otelcol", "--version")
    folder = tmp_path / "servers"
    folder.mkdir()
    with Servers(folder, clean_environment()) as servers:
        files = [FOLDER / name for name in combination.files]
        servers.collector("collector", Collector(), files, OTELCOL_STORAGE=str(tmp_path / "storage"), **answers(combination, given))
    log = (folder / "collector.log").read_text(encoding="utf-8")
    assert "Everything is ready" in log
    assert [line for line in log.splitlines() if "\terror\t" in line or "deprecated" in line.lower()] == []


@pytest.mark.parametrize("combination", [each for each in STARTING if required(each)], ids=str)
def test_what_has_to_be_given_is_named(combination: Combination, run_tool: Run) -> None:
    """Without the variables that have no default the collector does not start, and names each of them."""
    result = run_tool(combination.program, *combination.arguments)
    assert result.returncode != 0
    assert [variable for variable in required(combination) if variable not in result.stdout] == []


def test_prometheus(run_tool: Run) -> None:
    """The checker takes the configuration and finds the rules at the place that it names; only the file of targets is the user's."""
    for name in ("prometheus.yml", "prometheus-compose.yml"):
        result = run_tool("promtool", "check", "config", str(FOLDER / name))
        assert result.returncode == 0, result.stdout
        assert "1 rule files found" in result.stdout
        warnings = [line for line in result.stdout.splitlines() if "WARNING" in line]
        assert len(warnings) == 1 and "scrape-targets.json" in warnings[0]


def test_prometheus_of_the_containers_differs_in_the_target_only() -> None:
    """One more copy of a file is one more to forget: all but the address of the collector is the same."""
    ours, theirs = load("prometheus.yml"), load("prometheus-compose.yml")
    assert theirs["scrape_configs"][0]["static_configs"] == [{"targets": ["collector:8888"]}]
    theirs["scrape_configs"][0]["static_configs"] = ours["scrape_configs"][0]["static_configs"]
    assert theirs == ours


def test_nothing_is_scraped_that_is_not_there(tmp_path: Path, run_tool: Run) -> None:
    """Without the scrape overlay Prometheus has no dead target; with the file of targets it has one more, which keeps the labels it is told."""
    run_tool("prometheus", "--version")

    def change(settings: dict[str, Any]) -> None:
        settings["global"]["scrape_interval"] = "1s"
        settings["scrape_configs"][1]["file_sd_configs"][0]["refresh_interval"] = "1s"

    with Servers(tmp_path, clean_environment()) as servers:
        prometheus = Stack("", "", "", servers.prometheus("prometheus", change), tmp_path)
        job = 'up{job="otelcol-scrape"}'
        eventually(lambda: prometheus.query('up{job="otelcol"}')[0])
        assert prometheus.query(job) == []
        address = f"127.0.0.1:{free_ports(1)[0]}"
        servers.written("scrape-targets.json", json.dumps([{"targets": [address]}]))
        labels, up = eventually(lambda: prometheus.query(job)[0])
        assert (labels["instance"], up) == (address, 0)


TRACE_ID = "5b8efff798038103d269b633813fc60c"
SPAN = {
    "resourceSpans": [
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "kept"}}]},
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": TRACE_ID,
                            "spanId": "eee19b7ec3c1b174",
                            "name": "before the restart",
                            "kind": 1,
                            "startTimeUnixNano": "1795835000000000000",
                            "endTimeUnixNano": "1795835001000000000",
                        }
                    ]
                }
            ],
        }
    ]
}


def test_badger_keeps_traces(tmp_path: Path, run_tool: Run) -> None:
    """A trace that came before a restart of Jaeger is there after it."""
    run_tool("jaeger", "version")
    port = str(free_ports(1)[0])
    for first in (True, False):
        with Servers(tmp_path, clean_environment(JAEGER_STORAGE=str(tmp_path / "traces"))) as servers:
            _, query = servers.jaeger("jaeger", "http://127.0.0.1:1", ("jaeger-badger.yaml",), JAEGER_HTTP_PORT=port)
            if first:
                post_json(f"http://127.0.0.1:{port}/v1/traces", json.dumps(SPAN))
            jaeger = Stack("", "", query, "", tmp_path)
            assert [span["operationName"] for span in eventually(partial(jaeger.trace, TRACE_ID))] == ["before the restart"]
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == ["keys", "values"]


REFUSED = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("overlays", "variable", "value", "message"),
    [
        (("jaeger-opensearch.yaml",), "JAEGER_OPENSEARCH_URL", REFUSED, f"failed to initialize storage 'cluster'.*{REFUSED}"),
        ((), "JAEGER_UI_CONFIG", "nowhere.json", r"cannot read UI config file nowhere\.json"),
    ],
    ids=["no cluster", "no page"],
)
def test_what_jaeger_cannot_reach_is_named(
    overlays: tuple[str, ...], variable: str, value: str, message: str, tmp_path: Path, run_tool: Run
) -> None:
    """Jaeger has read the whole configuration, and ends with a message that has the value of the variable."""
    run_tool("jaeger", "version")
    with Servers(tmp_path, clean_environment()) as servers, pytest.raises(RuntimeError, match="is not ready"):
        servers.jaeger("jaeger", REFUSED, overlays, **{variable: value})
    assert re.search(message, (tmp_path / "jaeger.log").read_text(encoding="utf-8"))


WRONG = {
    "OTELCOL_GRPC_PORT": ("4317x", "4317x"),
    "OTELCOL_METRICS_PORT": ("eighty", "port"),
    "OTELCOL_RED_INTERVAL": ("15", "metrics_flush_interval"),
}


@pytest.mark.parametrize("variable", WRONG)
def test_a_wrong_value_is_named(variable: str, tmp_path: Path, run_tool: Run) -> None:
    """The collector does not start, and its message names the setting or repeats the value, which are both in the file."""
    run_tool("otelcol", "--version")
    value, named = WRONG[variable]
    with Servers(tmp_path, clean_environment()) as servers, pytest.raises(RuntimeError, match=named):
        servers.collector("collector", Collector(), [FOLDER / "dev.yaml"], **{variable: value})
