"""The proof can fail: a panel that would show nothing, or the wrong thing, is found on a dashboard of mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.dashboards.answers import Asker
from tests.integration.dashboards.panel_queries import ALL, Variable, explored, fill, links, queries, variables
from tests.integration.dashboards.served import Served

pytestmark = pytest.mark.integration

TTFT = "gen_ai_server_time_to_first_token_seconds"
PROMETHEUS = {"type": "prometheus", "uid": "${ds_prom}"}


def dashboard(expression: str, *, unit: str = "s", collapsed: bool = False, **target: Any) -> dict[str, Any]:
    """A dashboard of one panel with one query."""
    panel = {
        "type": "timeseries",
        "title": "panel",
        "datasource": PROMETHEUS,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [{"refId": "A", "expr": expression, "range": True, **target}],
    }
    row = {"type": "row", "title": "row", "collapsed": collapsed, "panels": [panel] if collapsed else []}
    services = {
        "name": "service",
        "type": "query",
        "query": {"query": f"label_values({TTFT}_count, service_name)"},
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
    }
    return {"uid": "mistakes", "panels": [row] if collapsed else [row, panel], "templating": {"list": [services]}}


GOOD = f'histogram_quantile(0.95, sum by (le) (rate({TTFT}_bucket{{service_name=~"$service"}}[$__rate_interval])))'


@pytest.mark.parametrize(
    ("board", "expected"),
    [
        pytest.param(dashboard(GOOD), None, id="good"),
        pytest.param(dashboard(GOOD, collapsed=True), None, id="good, in a collapsed row"),
        pytest.param(dashboard(GOOD, instant=True, range=False), None, id="good, now"),
        pytest.param(dashboard(GOOD.replace("first", "frist"), collapsed=True), "no series", id="metric misspelt, in a collapsed row"),
        pytest.param(dashboard(GOOD.replace("$service", "$servce")), "unknown variables ['servce']", id="variable misspelt"),
        pytest.param(dashboard(GOOD[:-1]), "parse error", id="not PromQL"),
        pytest.param(
            dashboard(f"rate({TTFT}_sum[1m]) / rate(gen_ai_server_request_duration_seconds_count[1m]) * 0 / 0"), "only NaN", id="0/0"
        ),
        pytest.param(dashboard(GOOD, unit="s", legendFormat="{{model}}"), "legend names 'model'", id="legend without its label"),
        pytest.param(dashboard("hw_temperature_celsius", unit="percentunit"), "are no percentunit", id="wrong unit"),
        pytest.param(dashboard("hw_temperature_celsius", unit="parsec"), "unit 'parsec' is not known", id="unknown unit"),
        pytest.param(dashboard(f"sum(rate({TTFT}_bucket[1m]))", format="heatmap"), "without le", id="heat map of one series"),
    ],
)
def test_mistakes_are_found(served: Served, board: dict[str, Any], expected: str | None) -> None:
    """A query is refused for the reason that a user would see on the panel, and a good one is not."""
    known = {variable.name: variable for variable in variables(board)}
    asker = Asker(served["push"], at=served.at, window=served.window)
    (asked,) = queries(board)
    problems = asker.problems(asked, {"service": ALL}, known)
    if expected is None:
        assert problems == []
    else:
        assert [expected in problem for problem in problems] == [True]
        assert problems[0].startswith("mistakes / panel / A: ")


@pytest.mark.parametrize(("label", "found"), [("service_name", True), ("service", False)])
def test_a_filter_on_a_label_that_no_series_has(served: Served, label: str, found: bool) -> None:
    """All may match what has no such label; a single value does not."""
    board = dashboard(GOOD.replace("service_name", label))
    known = {variable.name: variable for variable in variables(board)}
    asker = Asker(served["push"], at=served.at, window=served.window)
    (asked,) = queries(board)
    assert asker.problems(asked, {"service": ALL}, known) == []
    assert (asker.problems(asked, {"service": ["assistant"]}, known) == []) is found
    assert asker.problems(asked, {"service": ["nobody"]}, known) != []


def test_options_of_variables(served: Served) -> None:
    """A variable offers what Prometheus has, given the variables before it, cut by its pattern."""
    asker = Asker(served["push"], at=served.at, window=served.window)
    service, rank, none = (
        Variable(name, "query", query, True, True, ".*", regex, (), "")
        for name, query, regex in (
            ("service", f"label_values({TTFT}_count, service_name)", ""),
            ("rank", f'label_values({TTFT}_count{{service_name=~"$service"}}, inferspan_distributed_rank)', "/[1-9]/"),
            ("none", f'label_values({TTFT}_count{{service_name="nobody"}}, service_name)', ""),
        )
    )
    assert asker.options(service, {}, {}) == ["assistant", "ranks"]
    assert asker.options(rank, {"service": ALL}, {"service": service}) == ["1"]
    assert asker.options(rank, {"service": ["assistant"]}, {"service": service}) == []
    assert asker.options(none, {}, {}) == []


@pytest.mark.parametrize(
    ("value", "escaped", "plain"),
    [(ALL, ".*", ".*"), ("a.b", r"a\\.b", "a.b"), (["a.b", "c"], r"(a\\.b|c)", "(a.b|c)")],
)
def test_values_are_filled_in_as_grafana_does(value: Any, escaped: str, plain: str) -> None:
    """Values are escaped twice in a regular expression inside PromQL's quotes, and joined; forms and names in braces are known."""
    known = {"m": Variable("m", "query", "", True, True, ".*", "", (), "")}
    builtin = {"__interval": "5s"}
    assert (
        fill('x{a=~"$m",b=~"${m:regex}"}[$__interval] $other', {"m": value}, known, builtin=builtin)
        == f'x{{a=~"{escaped}",b=~"{escaped}"}}[5s] $other'
    )
    assert fill("${m}", {"m": value}, known, builtin=builtin, escape=False) == plain


def test_searches_in_links_are_found() -> None:
    """The query of a link to Explore is taken out of its address, wherever on a panel the link stands."""
    board = dashboard(GOOD)
    url = '/explore?schemaVersion=1&panes={"a":{"queries":[{"datasource":{"type":"jaeger"},"service":"$service"}]}}'
    board["panels"][1]["fieldConfig"]["overrides"] = [
        {"matcher": {}, "properties": [{"id": "links", "value": [{"title": "traces", "url": url}]}]}
    ]
    assert [(where, explored(link)) for where, link in links(board)] == [
        ("mistakes / panel / link traces", [{"datasource": {"type": "jaeger"}, "service": "$service"}])
    ]
