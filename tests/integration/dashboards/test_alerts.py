"""Recording rules and alerts in a real Prometheus, over models that fail now and then, give NaN and have a slow rank."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.dashboards.served import Served
from tests.integration.servers import eventually, get_json

pytestmark = pytest.mark.integration

PATHS = ("push", "scrape", "fleet")
RAISED = {"InferspanNonFinite", "InferspanErrorRatioHigh", "InferspanStragglerRank"}
"""What the programs give cause for."""
QUIET = {"InferspanNoData", "InferspanCollectorDown", "InferspanCollectorDropping", "InferspanGPUMemoryNearlyFull", "InferspanGPUHot"}


def rules(served: Served, path: str) -> list[dict[str, Any]]:
    """Every rule as Prometheus tells it, once each has been evaluated."""

    def look() -> list[dict[str, Any]]:
        found = [rule for group in get_json(f"{served[path].prometheus}/api/v1/rules")["data"]["groups"] for rule in group["rules"]]
        assert found
        assert [rule["name"] for rule in found if rule["health"] == "unknown"] == []
        return found

    return eventually(look)


@pytest.mark.parametrize("path", PATHS)
def test_rules_are_evaluated(served: Served, path: str) -> None:
    """Each rule is evaluated without an error, and each recording rule records something."""
    found = rules(served, path)
    assert {rule["name"]: rule.get("lastError") for rule in found if rule["health"] != "ok"} == {}
    recorded = {labels["__name__"] for labels, _ in served[path].query('count by (__name__) ({__name__=~"inferspan:.+"})', at=served.at)}
    assert recorded == {rule["name"] for rule in found if rule["type"] == "recording"}


@pytest.mark.parametrize("path", PATHS)
def test_alerts_that_there_is_cause_for(served: Served, path: str) -> None:
    """Alerts are pending or firing for what went wrong, and for nothing else that these programs can be told by."""
    known = {rule["name"] for rule in rules(served, path) if rule["type"] == "alerting"}
    assert known >= RAISED | QUIET
    active = {labels["alertname"] for labels, _ in served[path].query("count by (alertname) (ALERTS)", at=served.at)}
    assert RAISED <= active
    assert QUIET & active == set()


@pytest.mark.parametrize("path", PATHS)
def test_the_slow_rank_is_named(served: Served, path: str) -> None:
    """The straggler alert says which rank it is."""
    alerts = served[path].query('ALERTS{alertname="InferspanStragglerRank"}', at=served.at)
    assert {labels["inferspan_distributed_rank"] for labels, _ in alerts} == {"1"}
