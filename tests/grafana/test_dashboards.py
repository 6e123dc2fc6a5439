"""The dashboards themselves: current, sound, linked with each other, and found by what Grafana is provisioned with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("grafana_foundation_sdk", reason="the SDK that the dashboards are generated with needs Python 3.11")

from grafana.generator import __main__ as command
from grafana.generator import alerts, links
from grafana.generator.lint import lint_all, panels
from grafana.generator.promql import check

GRAFANA = Path(__file__).resolve().parents[2] / "grafana"
COLLECTOR_CONFIG = GRAFANA.parent / "collector-config"
FILES = command.files()
DASHBOARDS = [json.loads(text) for text in FILES.values()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_dashboard_is_current(path: Path) -> None:
    """The file on disk is what ``make dashboards`` would write."""
    assert path.read_text(encoding="utf-8") == FILES[path]


def test_there_are_no_others() -> None:
    """The folder has the dashboards that the links know, and no more; each is named by its uid and in the list of all."""
    assert sorted(path.stem for path in command.FOLDER.glob("*.json")) == sorted(links.TITLES)
    assert {dashboard["uid"]: dashboard["title"] for dashboard in DASHBOARDS} == links.TITLES


def test_they_are_sound() -> None:
    """The lint has nothing to say: places, texts, units, data sources, variables, queries, links, every metric shown or excused."""
    assert lint_all(DASHBOARDS) == []


def test_writing_and_checking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes what is missing, removes what is left over, says what is stale, and knows its dashboards' names."""
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    monkeypatch.setattr(alerts, "PATH", tmp_path / "alerting" / "inferspan.yaml")
    (tmp_path / "old.json").write_text("{}")
    assert command.main(["--check"]) == 1
    assert command.main(["overview"]) == 0
    assert command.main([]) == 0
    assert command.main(["--check"]) == 0
    (tmp_path / "inferspan-gpu.json").write_text("{}")
    assert command.main(["gpu", "--check"]) == 1
    assert command.main(["gpus"]) == 2
    others = ["inferspan-gpu.json", "inferspan-model.json", "inferspan-fleet.json", "inferspan.yaml"]
    assert capsys.readouterr().out.splitlines() == [
        *(f"{name} is not current: run `make dashboards`" for name in ("inferspan-overview.json", *others, "old.json")),
        "wrote inferspan-overview.json",
        *(f"wrote {name}" for name in others),
        "removed old.json",
        "inferspan-gpu.json is not current: run `make dashboards`",
        "no dashboard gpus: there are overview, gpu, model, fleet",
    ]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard["uid"])
def test_closed_rows_hold_the_detail(dashboard: dict[str, Any]) -> None:
    """The first page is open, everything below is closed, and a closed row has its panels inside."""
    rows = [item for item in dashboard["panels"] if item["type"] == "row"]
    closed = [row["collapsed"] for row in rows]
    assert closed == sorted(closed)
    assert all(bool(row["panels"]) == row["collapsed"] for row in rows)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard["uid"])
def test_what_needs_a_setting_is_in_a_closed_row_that_names_it(dashboard: dict[str, Any]) -> None:
    """No wall of empty panels on the first page, and no search for what would fill it."""
    rows = {panel["id"]: row["title"] for row in dashboard["panels"] for panel in row.get("panels") or ()}
    needed = {panel["id"]: re.findall(r"Needs the setting `(\w+)`", panel["description"]) for panel in panels(dashboard)}
    assert {rows.get(number): names for number, names in needed.items() if names} == {
        f"{title} (setting {name})": [name]
        for title, name in (("Modules", "module_metric"), ("Experts", "routing"), ("Certainty", "entropy_metric"))
        if dashboard["uid"] == links.MODEL
    }


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard["uid"])
def test_a_number_that_is_missing_is_not_coloured_as_a_good_one(dashboard: dict[str, Any]) -> None:
    """Where there is no value, or NaN, a stat panel says why in grey, or in red if it is the failure itself."""
    for panel in panels(dashboard):
        if panel["type"] == "stat":
            defaults = panel["fieldConfig"]["defaults"]
            (mapping,) = defaults["mappings"]
            assert mapping["options"]["match"] == "null+nan"
            assert mapping["options"]["result"]["text"] == defaults["noValue"]
            assert mapping["options"]["result"]["color"] in ("text", "red")


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard["uid"])
def test_a_number_with_a_course_has_a_name(dashboard: dict[str, Any]) -> None:
    """Else Grafana centres the number, across its course."""
    stats = [panel["options"] for panel in panels(dashboard) if panel["type"] == "stat"]
    assert [options.get("textMode") for options in stats if options["graphMode"] == "area"] == ["value_and_name"] * sum(
        options["graphMode"] == "area" for options in stats
    )


def test_traces_of_follows_the_service() -> None:
    """Its values are those of the chosen environment and service, so another choice there is another one here."""
    found = [item for dashboard in DASHBOARDS for item in dashboard["templating"]["list"] if item["name"] == "trace_service"]
    assert len(found) >= 2
    for item in found:
        assert 'service_name=~"$service"' in str(item["query"])
        assert 'deployment_environment_name=~"$env"' in str(item["query"])


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard["uid"])
def test_a_quantile_has_its_heat_map_beside_it(dashboard: dict[str, Any]) -> None:
    """A heat map shows a histogram of which the same dashboard shows quantiles too."""
    by_type: dict[str, set[str]] = {"heatmap": set(), "others": set()}
    for panel in panels(dashboard):
        for target in panel.get("targets") or ():
            found = {name for name in check(target.get("expr", "vector(0)")).metrics if name.endswith("_bucket")}
            by_type["heatmap" if panel["type"] == "heatmap" else "others"] |= found
    assert by_type["heatmap"] <= by_type["others"]


def _provisioned(kind: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((GRAFANA / "provisioning" / kind / "inferspan.yaml").read_text(encoding="utf-8"))
    return loaded


def test_data_sources_know_each_other() -> None:
    """Exemplars lead to Jaeger, spans to Prometheus, and the interval is that of the scrapes, on which rates depend."""
    sources = {source["uid"]: source for source in _provisioned("datasources")["datasources"]}
    prometheus, jaeger = sources["inferspan-prom"], sources["inferspan-jaeger"]
    assert (prometheus["type"], jaeger["type"]) == ("prometheus", "jaeger")
    assert [item["datasourceUid"] for item in prometheus["jsonData"]["exemplarTraceIdDestinations"]] == [jaeger["uid"]]
    assert jaeger["jsonData"]["tracesToMetrics"]["datasourceUid"] == prometheus["uid"]
    scraped = yaml.safe_load((COLLECTOR_CONFIG / "prometheus.yml").read_text(encoding="utf-8"))["global"]["scrape_interval"]
    assert prometheus["jsonData"]["timeInterval"] == scraped
    assert [source["url"] for source in sources.values()] == ["${PROM_URL}", "${JAEGER_URL}"]


def test_queries_from_a_span_are_sound() -> None:
    """What Grafana asks around a span stands in the catalogue, with labels for its tags, and every $ is escaped."""
    (jaeger,) = [source for source in _provisioned("datasources")["datasources"] if source["type"] == "jaeger"]
    settings = jaeger["jsonData"]["tracesToMetrics"]
    labels = ",".join(f'{tag["value"]}="x"' for tag in settings["tags"])
    for query in settings["queries"]:
        assert re.findall(r"(?<!\$)\$(?!\$)", query["query"]) == []
        assert check(query["query"].replace("$$__tags", labels).replace("$$", "$")).problems == []


def test_dashboards_are_found() -> None:
    """The provider reads a folder and does not let the browser change what is generated."""
    (provider,) = _provisioned("dashboards")["providers"]
    assert (provider["type"], provider["allowUiUpdates"]) == ("file", False)
