"""Recording rules and alerts: promtool's check and unit tests, both sides of every alert, its page in the docs, its twin for Grafana."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from grafana.generator.alerts import PATH, provisioning, read_alerts
from grafana.generator.catalogue import SERIES, Entry
from grafana.generator.promql import check
from inferspan import semconv
from tests.support.programs import need

ROOT = Path(__file__).resolve().parents[2]
RULES, TESTS = ROOT / "grafana" / "rules.yml", ROOT / "grafana" / "rules_test.yml"
ALERTS = {rule["alert"]: rule for _, rule in read_alerts(RULES)}
EACH_ALERT = pytest.mark.parametrize("alert", [pytest.param(rule, id=name) for name, rule in ALERTS.items()])
SEVERITIES = {"critical", "warning", "info"}


def _groups() -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return groups


def _promtool(*arguments: str) -> str:
    need("promtool")
    result = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_rules_are_valid() -> None:
    """Prometheus' own checker takes the file, with its lints as errors."""
    count = sum(len(group["rules"]) for group in _groups())
    assert f"SUCCESS: {count} rules found" in _promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


def test_rules_do_what_they_should() -> None:
    """All unit tests pass: every alert fires with its labels and annotations, and is silent at near misses."""
    assert "SUCCESS" in _promtool("test", "rules", str(TESTS))


def test_rules_ask_for_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every metric and label in a rule is in the catalogue or recorded by a rule before it, and no card is counted twice."""
    for rule in (rule for group in _groups() for rule in group["rules"]):
        checked = check(rule["expr"])
        # Windows of rules are fixed, those of panels are not.
        assert [problem for problem in checked.problems if not problem.startswith("window ")] == [], rule
        if "record" in rule:
            name = rule["record"]
            entry = Entry(name, name, "", semconv.GAUGE, checked.labels, "prometheus", "recorded")
            monkeypatch.setitem(SERIES, name, [(entry, "")])


@EACH_ALERT
def test_both_sides_are_tested(alert: Mapping[str, Any]) -> None:
    """For every alert there is a test in which it fires, one in which it waits or ends, and one in which it never fires."""
    document = yaml.safe_load(TESTS.read_text(encoding="utf-8"))
    fires: set[tuple[bool, ...]] = set()
    for test in document["tests"]:
        checks = [bool(check["exp_alerts"]) for check in test.get("alert_rule_test", ()) if check["alertname"] == alert["alert"]]
        if checks:
            fires.add((any(checks), all(checks)))
    assert {fired for fired, _ in fires} == {True, False}


def test_groups_are_evaluated_in_order() -> None:
    """The unit tests evaluate what is recorded before the alerts that read it, as the file has them."""
    document = yaml.safe_load(TESTS.read_text(encoding="utf-8"))
    assert document["group_eval_order"] == [group["name"] for group in _groups()]


@EACH_ALERT
def test_alerts_say_what_happens(alert: Mapping[str, Any]) -> None:
    """Every alert waits a stated time, has a severity, and says in words what happened where, with values that people can read."""
    assert "for" in alert
    assert set(alert["labels"]) == {"severity"} and alert["labels"]["severity"] in SEVERITIES
    annotations = alert["annotations"]
    assert set(annotations) == {"summary", "description", "dashboard_url", "runbook_url"}
    text = annotations["summary"] + annotations["description"]
    assert not re.search(r"\{\{\s*\$value\s*\}\}", text), "a bare value has twelve digits"
    # A collector that is down has no value worth saying.
    assert ("$value" in annotations["description"]) == (alert["alert"] != "InferspanCollectorDown")
    assert "$labels." in annotations["summary"]


@EACH_ALERT
def test_alerts_have_a_page(alert: Mapping[str, Any]) -> None:
    """The link to the docs leads to a section on the alert, which gives its severity, what to look at and what to do."""
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    sections = {title: text for title, text in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)}
    assert set(sections) == set(ALERTS)
    link = alert["annotations"]["runbook_url"]
    assert link == '{{ or $externalLabels.runbooks "docs/alerts.md" }}#' + alert["alert"].lower()
    section = sections[alert["alert"]]
    assert section.strip().startswith(f"*{alert['labels']['severity'].capitalize()}. ")
    if not alert["alert"].endswith("BurnSlow"):  # refers to the fast one
        assert "Look at: " in section and "\nDo: " in section


@EACH_ALERT
def test_alerts_link_to_a_dashboard(alert: Mapping[str, Any]) -> None:
    """The link leads to a dashboard of ours and sets variables that it has, from labels that the alert has."""
    url = alert["annotations"]["dashboard_url"]
    base = '{{ or $externalLabels.grafana "http://127.0.0.1:3000" }}'
    assert url.startswith(base + "/d/")
    parts = urlsplit(url.removeprefix(base))
    uid = parts.path.removeprefix("/d/")
    dashboard = json.loads((ROOT / "grafana" / "dashboards" / f"{uid}.json").read_text(encoding="utf-8"))
    assert dashboard["uid"] == uid
    known = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert {key.removeprefix("var-") for key, _ in parse_qsl(parts.query)} <= known
    assert len(re.findall(r"\$labels\.", url)) == len(re.findall(r"\$labels\.\w+ \| urlquery }}", url)), "names may hold anything"


def test_objectives_are_bucket_boundaries() -> None:
    """Thresholds of the objectives stand once in the file, and each is a boundary of its histogram."""
    text = RULES.read_text(encoding="utf-8")
    # A whole number matches both ways in which Prometheus may have been told it.
    bound = r'le(?:="([\d.]*\.\d+)"|=~"(\d+)\(\[\.\]0\)\?")'
    found = [(name, part or whole) for name, part, whole in re.findall(rf"expr: (\w+)_bucket\{{{bound}\}}", text)]
    assert len(found) == len(re.findall(r'_bucket\{[^}]*le=~?"[\d.]', text))
    for metric, buckets in (("time_to_first_token", semconv.B_TTFT), ("time_per_output_token", semconv.B_TPOT)):
        (threshold,) = [float(le) for name, le in found if metric in name]
        assert threshold in buckets


def test_an_objective_may_be_a_whole_number(tmp_path: Path) -> None:
    """An objective of 5 s, written as the rules say, counts what was scraped (le="5.0") and what was pushed (le="5") alike."""
    text = RULES.read_text(encoding="utf-8")
    assert text.count('{le="2.5"}') == 1
    (tmp_path / "rules.yml").write_text(text.replace('{le="2.5"}', '{le=~"5([.]0)?"}'), encoding="utf-8")
    name = "gen_ai_server_time_to_first_token_seconds_bucket"
    series = {
        f'{name}{{job="{job}",gen_ai_request_model="m",le="{bound}"}}': f"0+{step}x30"
        for job, five in (("scraped", "5.0"), ("pushed", "5"))
        for bound, step in (("2.5", 1), (five, 9), ("+Inf", 10))
    }
    samples = [{"labels": f'{{job="{job}", gen_ai_request_model="m"}}', "value": 0.1} for job in ("pushed", "scraped")]
    asked = {
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [{"expr": "round(inferspan:ttft_slow:ratio_rate5m, 0.001)", "eval_time": "20m", "exp_samples": samples}],
    }
    order = [group["name"] for group in _groups()]
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "group_eval_order": order, "tests": [asked]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document), encoding="utf-8")
    assert "SUCCESS" in _promtool("test", "rules", str(tmp_path / "test.yml"))


@pytest.mark.parametrize("name", [name for name in ALERTS if "Burn" in name])
def test_burn_rates_add_up(name: str) -> None:
    """Share of the month's budget that the alert names = burn rate x long window / 30 days, and the short window is a twelfth of the long."""
    alert = ALERTS[name]
    windows = dict(re.findall(r"ratio_rate(\d+[mh]) > ([\d.]+) \*", alert["expr"]))
    minutes = {window: int(window[:-1]) * (60 if window[-1] == "h" else 1) for window in windows}
    short, long = sorted(windows, key=minutes.__getitem__)
    assert minutes[long] == 12 * minutes[short]
    assert windows[short] == windows[long]
    share = float(windows[long]) * minutes[long] / (30 * 24 * 60)
    assert f"uses up {share:.0%} of the budget of 30 days" in alert["annotations"]["description"]


def test_grafana_has_the_same_alerts() -> None:
    """The provisioned alerts are current, ask what the rules ask, end in no alert without data, and are paused."""
    text = PATH.read_text(encoding="utf-8")
    assert text == provisioning(RULES), "run `make dashboards`"
    document = yaml.safe_load(text)
    rules = {rule["title"]: rule for group in document["groups"] for rule in group["rules"]}
    assert list(rules) == list(ALERTS)
    assert len({rule["uid"] for rule in rules.values()}) == len(rules)
    for name, rule in rules.items():
        ask, reduce, threshold = rule["data"]
        assert ask["model"]["expr"].replace("$$", "$") == ALERTS[name]["expr"].strip()
        assert (reduce["model"]["expression"], threshold["model"]["expression"], rule["condition"]) == ("A", "B", "C")
        assert (rule["for"], rule["labels"]) == (ALERTS[name]["for"], ALERTS[name]["labels"])
        assert (rule["noDataState"], rule["isPaused"]) == ("OK", True)
        for said in rule["annotations"].values():
            # A single $ would be taken for a variable of the environment; Grafana knows neither $value alone nor external labels.
            assert "$" not in said.replace("$$", "") and "externalLabels" not in said and not re.search(r"\$\$value\b", said)
