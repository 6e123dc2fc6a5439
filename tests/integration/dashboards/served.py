"""Programs that serve models side by side, their telemetry on all three ways, and the moment at which everything has arrived.

In: the servers of ``paths``. Out: ``Served``, which tests ask. An assertion fails if a program fails or its requests do not arrive.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.integration.dashboards.paths import Paths
from tests.integration.servers import Stack, eventually, get_json, whole_lines
from tests.integration.spans_seen import Seen, from_otlp

__all__ = ["Served", "serve"]

BEFORE = 30.0
"""Seconds before the programs' begin that panels look back on as well."""

_COMMON = "deployment.environment.name=test"
_RANKS = {"MODEL": "tiny", "OTEL_SERVICE_NAME": "ranks", "WORLD_SIZE": "2", "GPUS": "3", "ROUNDS": "4"}
PROGRAMS: tuple[Mapping[str, str], ...] = (
    {
        "MODEL": "smollm2",
        "OTEL_SERVICE_NAME": "assistant",
        "GPUS": "1",
        "ROUNDS": "2",
        "OTEL_RESOURCE_ATTRIBUTES": f"{_COMMON},service.version=1.0",
    },
    *(
        {
            **_RANKS,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "SLEEP": "0.02" if rank else "0",
            "OTHERS": "0" if rank else "2",
            "OTEL_RESOURCE_ATTRIBUTES": f"{_COMMON},service.namespace=lab,service.version=2.{rank}",
        }
        for rank in range(2)
    ),
)
"""A language model with a card to itself, and a small one on two ranks that see the same three cards. The second rank is slow; the first
one serves models of other kinds too."""


@dataclass(frozen=True)
class Served:
    """What ran, when, and where to ask."""

    paths: Paths
    begun: float
    at: float
    """A moment at which everything had arrived; queries are evaluated at it."""
    metadata: Mapping[str, list[dict[str, str]]]
    """What the scrape has told Prometheus about each metric; it forgets when the programs' series end."""
    requests: Mapping[str, int]
    """How many requests each service had, those that failed among them."""
    failed: int

    def __getitem__(self, name: str) -> Stack:
        return self.paths[name]

    @property
    def window(self) -> float:
        """Seconds that panels look back on: all of the programs' run."""
        return self.at - self.begun + BEFORE

    @cached_property
    def received(self) -> list[dict[str, Any]]:
        """OTLP as the programs sent it."""
        return whole_lines(self.paths.raw)

    @cached_property
    def spans(self) -> list[Seen]:
        """Every span that the programs sent."""
        return from_otlp(self.received)


def serve(paths: Paths, folder: Path, environment: Mapping[str, str]) -> Served:
    """Run the programs and wait until the last of their numbers has arrived on every way."""
    begun = time.time()
    common = {
        **environment,
        "OTEL_EXPORTER_OTLP_ENDPOINT": paths.http,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "INFERSPAN_SAMPLER_INTERVAL": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    script = Path(__file__).with_name("dashboard_job.py")
    running = []
    for number, program in enumerate(PROGRAMS):
        output = (folder / f"program-{number}.log").open("w+b")
        command = [sys.executable, str(script), str(folder / f"program-{number}.json")]
        running.append((subprocess.Popen(command, env={**common, **program}, cwd=folder, stdout=output, stderr=subprocess.STDOUT), output))
    try:
        for process, output in running:
            code = process.wait(300)
            output.seek(0)
            assert code == 0, output.read()[-8000:].decode(errors="replace")
    finally:
        for process, output in running:
            process.kill()
            process.wait()
            output.close()
    requests, failed = _said(folder)
    for stack in paths.by_name.values():
        eventually(lambda stack=stack: _arrived(stack, requests))  # type: ignore[misc]
    time.sleep(2.0)  # one more scrape, and one more evaluation of the rules
    metadata = get_json(f"{paths['scrape'].prometheus}/api/v1/metadata")["data"]
    return Served(paths, begun, time.time(), metadata, requests, failed)


def _said(folder: Path) -> tuple[dict[str, int], int]:
    requests: dict[str, int] = {}
    failed = 0
    for number, program in enumerate(PROGRAMS):
        said = json.loads((folder / f"program-{number}.json").read_text(encoding="utf-8"))
        service = program["OTEL_SERVICE_NAME"]
        requests[service] = requests.get(service, 0) + said["requests"]
        failed += said["failed"]
    return requests, failed


def _arrived(stack: Stack, requests: Mapping[str, int]) -> None:
    for metric, selector in (
        ("gen_ai_server_request_duration_seconds_count", ""),
        ("traces_span_metrics_calls_total", 'span_name=~"(text_completion|generate_content) .*"'),
    ):
        counted = stack.query(f"sum by (service_name) ({metric}{{{selector}}})")
        assert {labels["service_name"]: value for labels, value in counted} == requests, metric
