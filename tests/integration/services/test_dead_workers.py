"""Gauges of a worker that was killed end with the collector's ``metric_expiration``, while those of its neighbour stay."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from inferspan.bundles import collector_config
from tests.integration.conftest import plain_environment
from tests.integration.servers import Collector, Servers, eventually
from tests.integration.services.running import ROOT
from tests.support.programs import need

pytestmark = pytest.mark.integration

GAUGE = "process_memory_usage_bytes"
QUICK = "exporters: {prometheus: {metric_expiration: 5s}}\n"
"""The configuration has minutes, which no test waits for."""
WORKER = """
import sys, time
import torch
import inferspan

model = torch.nn.Linear(4, 4)
inferspan.instrument(model)
while True:
    model(torch.ones(1, 4))
    time.sleep(0.1)
"""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Where to send to, and the page that Prometheus would fetch."""
    need("otelcol")
    collector = Collector()
    with Servers(tmp_path, plain_environment()) as servers:
        files = (collector_config("dev.yaml"), collector_config("dev-scrape.yaml"), servers.written("quick.yaml", QUICK))
        # Nobody listens for traces.
        servers.collector("otelcol", collector, files, JAEGER_OTLP="127.0.0.1:9", PROMETHEUS_OTLP="http://127.0.0.1:9")
        yield collector.http, f"http://{collector.scraped}/metrics"


def _instances(page: str) -> set[str]:
    with urllib.request.urlopen(page, timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith(f"{GAUGE}{{")]
    return {found[1] for line in lines if (found := re.search(r'service_instance_id="([^"]+)"', line))}


def test_gauges_of_a_killed_worker_end(page: tuple[str, str]) -> None:
    """After SIGKILL nothing of it can say that it is gone: its readings leave the page by themselves."""
    http, shown = page
    environment = {
        **plain_environment(), "PYTHONPATH": str(ROOT / "src"), "OTEL_SERVICE_NAME": "dying", "OTEL_EXPORTER_OTLP_ENDPOINT": http,
        "OTEL_METRIC_EXPORT_INTERVAL": "500", "INFERSPAN_SAMPLER_INTERVAL": "1", "OMP_NUM_THREADS": "1", "OTEL_TRACES_EXPORTER": "none",
    }  # fmt: skip
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(2):
            more = {"OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id=worker-{number}"}
            workers.append(subprocess.Popen([sys.executable, "-c", WORKER], env={**environment, **more}, stderr=subprocess.DEVNULL))
        eventually(lambda: _shows(shown, {"worker-0", "worker-1"}))
        workers[0].send_signal(signal.SIGKILL)
        eventually(lambda: _shows(shown, {"worker-1"}))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait(30)


def _shows(page: str, wanted: set[str]) -> None:
    assert _instances(page) == wanted


def test_the_configuration_expires_metrics_within_the_look_back_of_prometheus() -> None:
    """What the page keeps is gone before Prometheus's own look-back of five minutes ends."""
    settings = yaml.safe_load(collector_config("dev-scrape.yaml").read_text(encoding="utf-8"))
    assert settings["exporters"]["prometheus"]["metric_expiration"] == "3m"
