"""Four workers of gunicorn under load: what a rolling restart, a collector that is away and a killed worker lose, against docs/delivery.md."""

from __future__ import annotations

import pytest

from benchmarks.services.losses import WORKERS, losses

pytestmark = pytest.mark.integration

QUICK = {
    "OTEL_BSP_SCHEDULE_DELAY": "500", "OTEL_METRIC_EXPORT_INTERVAL": "1000",
    # A busy machine takes longer than the defaults allow; what is counted is what would be lost with all the time there is.
    "INFERSPAN_EXIT_TIMEOUT": "120", "OTEL_EXPORTER_OTLP_TIMEOUT": "120",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _gunicorn() -> None:
    pytest.importorskip("gunicorn")


def test_a_rolling_restart_loses_nothing() -> None:
    """Each worker delivers before it ends: spans and metrics of all answered requests."""
    found = losses("rolling restart", seconds=2.0, clients=4, **QUICK)
    assert len({one.worker for one in found.answered}) >= 2 * WORKERS
    assert found.lost == []
    assert found.counted >= len(found.answered)


def test_a_collector_that_is_away_for_seconds_loses_nothing() -> None:
    """Exporters try again for ten."""
    found = losses("collector away", seconds=2.0, clients=4, **QUICK)
    assert found.lost == []
    assert found.counted >= len(found.answered)


def test_a_killed_worker_loses_its_last_requests_alone() -> None:
    """What had arrived stays, and the others lose nothing."""
    found = losses("worker killed", seconds=2.0, clients=4, **QUICK)
    assert {one.worker for one in found.lost} <= {found.victim}
    assert found.known
    assert not found.known & {one.trace for one in found.lost}
