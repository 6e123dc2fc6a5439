"""The same telemetry on three ways into Prometheus at once, each with servers of its own.

``push``: dev.yaml, OTLP into Prometheus. ``scrape``: dev.yaml with dev-scrape.yaml. ``fleet``: agent.yaml, gateway.yaml, remote write. In
front stands one more collector that hands everything it receives to all three, so whatever differs behind them is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from inferspan.bundles import collector_config
from tests.integration.servers import Collector, Servers, Stack

__all__ = ["NAMES", "Paths", "running_paths"]

NAMES = ("push", "scrape", "fleet")
RULES = Path(__file__).resolve().parents[3] / "grafana" / "rules.yml"

# No batching, no limits: what comes in goes out as it is, to each way and to a file.
SPLITTER = """
extensions:
  health_check: {{endpoint: "127.0.0.1:${{env:OTELCOL_HEALTH_PORT}}"}}
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: "127.0.0.1:${{env:OTELCOL_GRPC_PORT}}", max_recv_msg_size_mib: 64}}
      http: {{endpoint: "127.0.0.1:${{env:OTELCOL_HTTP_PORT}}"}}
exporters:
  otlp_http/push: {{endpoint: "{push}"}}
  otlp_http/scrape: {{endpoint: "{scrape}"}}
  otlp_http/fleet: {{endpoint: "{fleet}"}}
  file/raw: {{path: "{raw}", flush_interval: 100ms}}
service:
  extensions: [health_check]
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    traces: &all {{receivers: [otlp], exporters: [otlp_http/push, otlp_http/scrape, otlp_http/fleet, file/raw]}}
    metrics: *all
    logs: *all
"""


@dataclass(frozen=True)
class Paths:
    """Where programs send their telemetry, and the servers that each way ends at."""

    http: str
    raw: Path
    by_name: Mapping[str, Stack]

    def __getitem__(self, name: str) -> Stack:
        return self.by_name[name]


def quick_rules(folder: Path) -> Path:
    """The project's rules, evaluated every second: what they record is there when panels ask for it."""
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8")) or {"groups": []}
    for group in rules["groups"]:
        group["interval"] = "1s"
    copy = folder / "rules.yml"
    copy.write_text(yaml.safe_dump(rules), encoding="utf-8")
    return copy


def _backends(servers: Servers, name: str, *, own: list[str], scraped: str | None, rules: Path) -> tuple[str, str, str]:
    """A Prometheus that watches these collectors, and a Jaeger; returns the former's URL and the latter's two."""

    def change(settings: dict[str, Any]) -> None:
        settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        settings["rule_files"] = [str(rules)]
        jobs = {job["job_name"]: job for job in settings["scrape_configs"]}
        jobs["otelcol"]["static_configs"] = [{"targets": own}]
        jobs["otelcol-scrape"].pop("file_sd_configs")
        jobs["otelcol-scrape"]["static_configs"] = [{"targets": [scraped]}] if scraped else []

    prometheus = servers.prometheus(f"prometheus-{name}", change)
    return prometheus, *servers.jaeger(f"jaeger-{name}", prometheus)


def _push(servers: Servers, rules: Path) -> Stack:
    collector = Collector()
    prometheus, otlp, query = _backends(servers, "push", own=[collector.own], scraped=None, rules=rules)
    files = [collector_config("dev.yaml")]
    servers.collector("otelcol-push", collector, files, JAEGER_OTLP=otlp, PROMETHEUS_OTLP=f"{prometheus}/api/v1/otlp")
    return Stack(f"http://{collector.grpc}", collector.http, query, prometheus, servers.folder)


def _scrape(servers: Servers, rules: Path) -> Stack:
    collector = Collector()
    prometheus, otlp, query = _backends(servers, "scrape", own=[collector.own], scraped=collector.scraped, rules=rules)
    servers.collector("otelcol-scrape", collector, [collector_config("dev.yaml"), collector_config("dev-scrape.yaml")], JAEGER_OTLP=otlp)
    return Stack(f"http://{collector.grpc}", collector.http, query, prometheus, servers.folder)


def _fleet(servers: Servers, rules: Path) -> Stack:
    agent, gateway = Collector(), Collector()
    prometheus, otlp, query = _backends(servers, "fleet", own=[agent.own, gateway.own], scraped=None, rules=rules)
    servers.collector(
        "gateway",
        gateway,
        [collector_config("gateway.yaml")],
        OTELCOL_STORAGE=str(servers.folder),
        OTELCOL_DECISION_WAIT="4s",
        OTELCOL_DECISION_WAIT_AFTER_ROOT="1s",
        OTELCOL_BASELINE_PERCENT="50",  # of 5 % of few requests a search may find none
        JAEGER_OTLP=otlp,
        PROMETHEUS_REMOTE_WRITE=f"{prometheus}/api/v1/write",
    )
    servers.collector(
        "agent",
        agent,
        [collector_config("agent.yaml")],
        OTELCOL_STORAGE=str(servers.folder),
        OTELCOL_HOST_INTERVAL="1s",
        GATEWAY=gateway.grpc,
        GATEWAY_DNS="127.0.0.1",
        GATEWAY_PORT=gateway.grpc.rpartition(":")[2],
    )
    return Stack(f"http://{agent.grpc}", agent.http, query, prometheus, servers.folder)


@contextmanager
def running_paths(folder: Path, base_environment: Mapping[str, str], names: tuple[str, ...] = NAMES) -> Iterator[Paths]:
    """Start the servers of the three ways and what hands telemetry to them.

    Args:
        folder: empty folder for configurations, data and logs.
        base_environment: environment of the servers, to which the ports are added.
        names: the ways wanted.
    """
    raw = folder / "raw.jsonl"
    raw.touch()
    rules = quick_rules(folder)
    build = {"push": _push, "scrape": _scrape, "fleet": _fleet}
    with Servers(folder, base_environment) as servers:
        stacks = {name: build[name](servers, rules) for name in names}
        front = Collector()
        first = next(iter(stacks.values()))
        endpoints = {name: stacks.get(name, first).http for name in NAMES}
        servers.collector("splitter", front, [servers.written("splitter.yaml", SPLITTER.format(raw=raw, **endpoints))])
        yield Paths(front.http, raw, stacks)
