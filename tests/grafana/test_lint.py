"""The lint of dashboards: a sound one passes, and each rule finds the defect that is planted for it and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("grafana_foundation_sdk", reason="the SDK that the dashboards are generated with needs Python 3.11")

from grafana.generator.charts import heat
from grafana.generator.frame import Row, frame
from grafana.generator.links import OVERVIEW, to_dashboard
from grafana.generator.lint import lint, lint_all
from grafana.generator.panels import Query, Says, stats, trend
from grafana.generator.promql import check
from grafana.generator.queries import Queries, ratio
from inferspan import semconv

NAMES = ("env", "service", "model", "host", "instance")
Q = Queries(NAMES)
SAYS = Says("What.", "How.", "Do.", empty="nothing yet")
TTFT = semconv.M_SERVER_TTFT


def sound() -> dict[str, Any]:
    """A dashboard with an open row of two panels and a closed one of one."""
    quantile = Query(Q.quantile(0.95, TTFT, by=["gen_ai_request_model"]), "{{gen_ai_request_model}}", exemplar=True)
    opened = [trend("Quantiles", quantile, unit="s", says=SAYS, width=12), heat("Heat", Q.heat(TTFT), unit="s", says=SAYS, width=12)]
    errors = ratio(Q.count(semconv.M_SERVER_DURATION, 'error_type!=""'), Q.count(semconv.M_SERVER_DURATION))
    closed = [stats("Errors", Query(errors, "failed"), unit="percentunit", says=SAYS, links=[to_dashboard(OVERVIEW)])]
    return frame(OVERVIEW, "A sound one.", [Row("Open", opened), Row("Closed", closed, closed=True)], NAMES)


def test_a_sound_dashboard_has_no_problems() -> None:
    """What the builders make passes."""
    assert lint(sound()) == []


Plant = Callable[[dict[str, Any]], None]


def on(index: int, change: Callable[[dict[str, Any]], Any]) -> Plant:
    """Change a panel: 1 the quantiles, 2 the heat map."""

    def plant(dashboard: dict[str, Any]) -> None:
        change(dashboard["panels"][index])

    return plant


def expr(text: str, legend: str = "x") -> Plant:
    """Another query in the first panel."""
    return on(1, lambda panel: panel["targets"][0].update(expr=text, legendFormat=legend, exemplar=False))


def inside(change: Callable[[dict[str, Any]], Any]) -> Plant:
    """Change the panel in the closed row."""
    return lambda dashboard: change(dashboard["panels"][3]["panels"][0])


RATE = 'rate(gen_ai_server_request_duration_seconds_count{service_name=~"$service"}[$__rate_interval])'


def more_panels(dashboard: dict[str, Any]) -> None:
    """Eleven more open ones below the others."""
    for number in range(11):
        added = copy.deepcopy(dashboard["panels"][1])
        added |= {"id": 100 + number, "title": f"More {number}", "gridPos": {"x": 0, "y": 100 + number, "w": 24, "h": 1}}
        dashboard["panels"].append(added)


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (on(1, lambda panel: panel.update(title="")), ["2: no title"]),
        (on(1, lambda panel: panel.pop("description")), ["Quantiles: no description"]),
        (on(1, lambda panel: panel.update(description="What.")), ["Quantiles: description does not say how it is computed and what to do"]),
        (on(1, lambda panel: panel["fieldConfig"]["defaults"].pop("noValue")), ["Quantiles: no text for when there is nothing (noValue)"]),
        (
            inside(lambda panel: panel["fieldConfig"]["defaults"].update(noValue="x" * 33)),
            ["Errors: text for when there is nothing has 33 letters, 32 can be read"],
        ),
        (on(1, lambda panel: panel["fieldConfig"]["defaults"].pop("unit")), ["Quantiles: no unit"]),
        (on(1, lambda panel: panel["fieldConfig"]["defaults"].update(unit="ms")), ["Quantiles: unit ms: use a base unit"]),
        (
            on(1, lambda panel: panel["fieldConfig"]["defaults"].pop("thresholds")),
            ["Quantiles: no thresholds: Grafana would turn everything red at 80"],
        ),
        (
            on(1, lambda panel: panel["fieldConfig"]["defaults"]["thresholds"]["steps"].append({"color": "red", "value": 80})),
            ["Quantiles: threshold 80 is left over from Grafana's default"],
        ),
        (
            on(1, lambda panel: panel["datasource"].update(uid="P1809F7CD0C75ACF3")),
            ["Quantiles: data source P1809F7CD0C75ACF3 is not a variable"],
        ),
        (on(1, lambda panel: panel["targets"][0]["datasource"].update(uid="prom")), ["Quantiles: data source prom is not a variable"]),
        (on(1, lambda panel: panel.update(targets=[])), ["Quantiles: no query"]),
        (on(1, lambda panel: panel["targets"].append(copy.deepcopy(panel["targets"][0]))), ["Quantiles: two queries have one refId"]),
        (on(1, lambda panel: panel["targets"][0].update(legendFormat="")), ["Quantiles: query A: no legend"]),
        (
            on(1, lambda panel: panel["targets"][0].update(legendFormat="{{le}}")),
            ["Quantiles: query A: legend {{le}}: the result has no such label"],
        ),
        (
            on(2, lambda panel: panel["targets"][0].update(format="time_series")),
            ["Heat: query A: a heat map needs buckets by le and the format heatmap"],
        ),
        (
            on(1, lambda panel: panel["targets"][0].update(expr=Q.quantile(0.5, TTFT), legendFormat="p50")),
            ["Quantiles: query A: exemplars on something else than p95: the dots would be drawn once for each quantile"],
        ),
        (
            expr(f"sum ({RATE.replace('$__rate_interval', '5m')})"),
            ["Quantiles: query A: window [5m]: use $__rate_interval, or $__range for the whole time range"],
        ),
        (expr(f"sum ({RATE.replace('__rate_', '__')})"), ["Quantiles: query A: window [$__interval]: use $__rate_interval, or $__range"]),
        (expr(f"sum ({RATE}"), ["Quantiles: query A: PromQL: "]),
        (
            expr("rate(inferspan_generate_active)"),
            ["Quantiles: query A: PromQL: expected type matrix in call to function 'rate', got vector"],
        ),
        (expr("sum (inferspan_generate_inflight)"), ["Quantiles: query A: metric inferspan_generate_inflight is not in the catalogue"]),
        (expr('sum (inferspan_generate_active{phase="decode"})'), ["Quantiles: query A: inferspan_generate_active has no label phase"]),
        (expr("sum by (model) (inferspan_generate_active)"), ["Quantiles: query A: by (model): there is no such label"]),
        (
            expr("sum (system_memory_usage_bytes)"),
            ["Quantiles: query A: system_memory_usage_bytes comes from two sources: match state or system_memory_state"],
        ),
        (
            expr("sum (hw_power_watts)"),
            ["Quantiles: query A: sum of hw_power_watts: several processes report one card, take max by (hw_id) first"],
        ),
        (
            expr("sum (rate(hw_energy_joules_total[$__rate_interval]))"),
            ["Quantiles: query A: sum of hw_energy_joules_total: several processes report one card"],
        ),
        (
            expr("sum (max by (hw_id, host_name) (hw_power_watts))"),
            ["Quantiles: query A: sum over cards told apart by host_name: group by hw_id alone, or by these too"],
        ),
        (
            expr(f"sum by (error_type) ({RATE}) / sum ({RATE})"),
            ["Quantiles: query A: sides of / never match: (error_type) and ()"],
        ),
        (
            expr("histogram_quantile(0.95, sum (rate(gen_ai_server_request_duration_seconds_bucket[$__rate_interval])))"),
            ["Quantiles: query A: histogram_quantile needs the label le"],
        ),
        (on(1, lambda panel: panel["gridPos"].update(w=25)), ["Quantiles: reaches to column 25 of 24", "Heat: lies over Quantiles"]),
        (on(2, lambda panel: panel["gridPos"].update(x=6)), ["Heat: lies over Quantiles"]),
        (inside(lambda panel: panel["gridPos"].update(x=23)), ["Errors: reaches to column 27 of 24"]),
        (inside(lambda panel: panel.update(id=2)), ["ids of panels are not unique: ['2', '2']"]),
        (inside(lambda panel: panel.update(title="Heat")), ["two panels have the title Heat"]),
        (more_panels, ["13 panels are open at once, at most 12: close a row"]),
        (on(1, lambda panel: panel.update(title="Of $team")), ["unknown variable team"]),
        (
            lambda dashboard: dashboard["templating"]["list"][-1].update(name="pod"),
            ["unknown variable instance", "variable pod is not used"],
        ),
        (
            lambda dashboard: dashboard["templating"]["list"].insert(2, dashboard["templating"]["list"].pop(3)),
            ["variable service uses env, which does not come before it"],
        ),
        (
            lambda dashboard: dashboard["templating"]["list"][2].update(allValue=""),
            ["variable env: All must be .*, or series without the label are hidden"],
        ),
        (
            lambda dashboard: dashboard["annotations"]["list"][1].update(expr="count (target_inf)"),
            ["annotation Versions: metric target_inf is not in the catalogue"],
        ),
        (on(1, lambda panel: panel.update(fillOpacity=3)), ["panels[1].fillOpacity is not what the schema of Grafana has"]),
    ],
)
def test_each_rule_finds_its_defect(plant: Plant, expected: list[str]) -> None:
    """One planted defect gives exactly its own problems, each with the uid and the panel."""
    dashboard = sound()
    plant(dashboard)
    problems = lint(dashboard)
    kinds = list(
        dict.fromkeys(next((text for text in expected if problem.startswith(f"{OVERVIEW}: {text}")), problem) for problem in problems)
    )
    assert kinds == expected


def test_dashboards_are_judged_together() -> None:
    """A link to a dashboard that is not there, a list of dashboards that is empty, and a metric that nobody shows are problems."""
    dashboard = sound()
    dashboard["uid"], dashboard["links"][0]["tags"] = "other", ["elsewhere"]
    problems = lint_all([dashboard])
    assert problems[:2] == ["other: a link leads to inferspan-overview, which is not there", "other: the link inferspan leads nowhere"]
    assert "hw.power is on no dashboard: show it, or say in catalogue.NOT_SHOWN why not" in problems[2:]


@pytest.mark.parametrize(
    ("expression", "labels"),
    [
        ("time()", set()),
        ("max (timestamp(inferspan_generate_active))", set()),
        ("topk($topn, sum by (host_name) (inferspan_generate_active))", {"host_name"}),
        ("sum without (le) (sum by (le, job) (gen_ai_server_time_to_first_token_seconds_bucket))", {"job"}),
        ('label_replace(sum by (job) (up), "service", "$1", "job", "(.*)")', {"job", "service"}),
        ("sum by (job, instance) (up) * on (job) group_left (service_version) target_info", {"job", "instance", "service_version"}),
        ("sum by (job) (up) and on (job) target_info", {"job"}),
        ("max by (hw_id) (hw_power_watts offset $compare)", {"hw_id"}),
    ],
)
def test_labels_of_a_result(expression: str, labels: set[str]) -> None:
    """The labels of a result are known through functions, grouping and matching."""
    checked = check(expression)
    assert (checked.problems, set(checked.labels)) == ([], labels)
