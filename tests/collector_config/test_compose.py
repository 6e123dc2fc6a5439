"""docker-compose.yaml without containers: the format, and that everything it names is there, is read and fits the configurations.

A check of the format alone would let pass what really breaks such files: a mount of nothing, a variable that nobody reads, a port on which
nobody listens, a health check with a program that the image does not have.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from inferspan import bundles
from tests.collector_config.combinations import FOLDER, ROOT, load, text
from tests.collector_config.conftest import Run
from tests.collector_config.readings import VARIABLE, defaults

# Compose fills in ${NAME:-default} before it looks at the format.
WRITTEN = re.sub(r"\$\{(\w+):-([^}]*)}", r"\2", text("docker-compose.yaml"))
COMPOSE: dict[str, Any] = yaml.safe_load(WRITTEN)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

# What the images bring along: folder of their data, the port of the program where no configuration of ours says it, whether there is a
# shell's tool to ask with.
DATA = {"prometheus": "/prometheus", "grafana": "/var/lib/grafana"}
FIXED_PORTS = {"prometheus": {9090}, "grafana": {3000}}
CAN_ASK = {"prom/prometheus": "wget", "grafana/grafana": "wget", "jaegertracing/jaeger": "wget"}
CONFIGURATION = {"collector": "dev.yaml", "jaeger": "jaeger.yaml"}


def mounts(service: str) -> dict[str, str]:
    """Target and source of each mount."""
    found = {}
    for mount in SERVICES[service].get("volumes", ()):
        source, target, *rest = mount.split(":")
        assert rest in ([], ["ro"])
        found[target] = source
    return found


def listening(service: str) -> set[int]:
    """The ports on which a service listens."""
    if service in FIXED_PORTS:
        return FIXED_PORTS[service]
    return {int(default) for name, default in defaults(CONFIGURATION[service]).items() if name.endswith("_PORT")}


def test_format() -> None:
    """The file is one that the compose specification allows: known keys only, each of the right kind."""
    compose_spec = pytest.importorskip("compose_spec", reason="compose-spec is in the dev dependencies")
    compose_spec.PyCompose.from_yaml(WRITTEN)
    for wrong in (
        ("restart:", "restrat:"),
        ("service_healthy", "healthy"),
        ("retries: 12", "retires: 12"),
        ("mem_limit: 1g", "mem_limit: much"),
    ):
        with pytest.raises(ValueError, match=r"services\."):
            compose_spec.PyCompose.from_yaml(WRITTEN.replace(*wrong, 1))


def test_images_are_pinned() -> None:
    """Every image has the tag of one release, and the collector's is the one that the manifest names too."""
    tags = {name: service["image"].rpartition(":")[2] for name, service in SERVICES.items()}
    assert {name for name, tag in tags.items() if not re.fullmatch(r"v?\d+\.\d+\.\d+(-busybox)?", tag)} == set()
    # Prometheus has images with and without the program that its health check calls.
    assert "wget" in SERVICES["prometheus"]["healthcheck"]["test"] and tags["prometheus"].endswith("-busybox")
    assert tags["collector"] == load("builder-config.yaml")["dist"]["version"]


def test_every_mount_is_there() -> None:
    """What is mounted exists and cannot be written to; volumes are declared, used, and mounted where the image keeps its data."""
    kept = {}
    for name, service in SERVICES.items():
        for target, source in mounts(name).items():
            if source.startswith("."):
                assert (FOLDER / source).exists(), f"{name}: {source}"
                assert f"{source}:{target}:ro" in service["volumes"]
            else:
                kept[name] = target
                assert source in COMPOSE["volumes"]
    assert kept == DATA
    assert set(COMPOSE["volumes"]) == {source for name in SERVICES for source in mounts(name).values() if not source.startswith(".")}


def test_every_file_that_a_program_is_told_of_is_mounted() -> None:
    """Paths in commands and variables lie under a mount, and so do those that Prometheus and Grafana find in their own files."""
    for name, service in SERVICES.items():
        told = [*service.get("command", ()), *service.get("environment", {}).values()]
        for path in (found for word in told for found in re.findall(r"(?<![\w:/])/(?:etc|prometheus)[\w./-]*", word)):
            assert resolve(name, path) is not None, f"{name}: {path}"
    (configuration,) = [target for target in mounts("prometheus") if target.endswith("prometheus.yml")]
    for rules in load("prometheus-compose.yml")["rule_files"]:
        target = (Path(configuration).parent / rules).as_posix()
        assert any(resolve("prometheus", each) for each in (target, re.sub(r"/[^/]+/\.\.", "", target)))
    for file in (ROOT / "grafana" / "provisioning" / "dashboards").glob("*.yaml"):
        for provider in yaml.safe_load(file.read_text(encoding="utf-8"))["providers"]:
            assert resolve("grafana", provider["options"]["path"]) is not None


def resolve(service: str, path: str) -> Path | None:
    """The file or folder here that a path in a container is; data folders are themselves."""
    for target, source in mounts(service).items():
        if path == target or path.startswith(f"{target}/"):
            place = (FOLDER / source / path.removeprefix(target).lstrip("/")) if source.startswith(".") else Path(path)
            return place if not source.startswith(".") or place.exists() else None
    return None


def test_every_variable_is_read() -> None:
    """A variable given to a service is read by its configuration, and those whose default is loopback are given."""
    for name, file in CONFIGURATION.items():
        given, read = SERVICES[name]["environment"], defaults(file)
        assert set(given) <= {*read, "GOMEMLIMIT"}  # that one is the Go runtime's
        assert {variable for variable, default in read.items() if default.startswith(("127.0.0.1", "http://127.0.0.1"))} <= set(given)
    provisioned = {
        variable
        for file in (ROOT / "grafana" / "provisioning").rglob("*.yaml")
        for variable in re.findall(r"(?<!\$)\$\{?([A-Z][A-Z_]+)\b", file.read_text(encoding="utf-8"))
    }
    given = SERVICES["grafana"]["environment"]
    assert provisioned == {variable for variable in given if not variable.startswith("GF_")}


def test_limits_of_memory() -> None:
    """The Go runtime gives memory back before a container is killed, and the traces in Jaeger's memory are half of its limit."""
    for name in ("collector", "jaeger"):
        limit = int(SERVICES[name]["mem_limit"].removesuffix("g")) * 1024
        assert 0.8 * limit < int(SERVICES[name]["environment"]["GOMEMLIMIT"].removesuffix("MiB")) < 0.9 * limit
    assert (
        int(SERVICES["jaeger"]["environment"]["JAEGER_MAX_TRACES"]) * 2 <= 1024 * int(SERVICES["jaeger"]["mem_limit"].removesuffix("g")) / 2
    )


def test_addresses_lead_to_services() -> None:
    """Each address given to a service names another service and a port on which that listens; the scrape target as well."""
    (scrape,) = [job for job in load("prometheus-compose.yml")["scrape_configs"] if "static_configs" in job]
    addresses = [f"http://{target}" for each in scrape["static_configs"] for target in each["targets"]]
    for service in SERVICES.values():
        addresses += (
            [value if "//" in value else f"//{value}" for value in service["environment"].values() if ":" in value]
            if "environment" in service
            else []
        )
    assert addresses
    for address in addresses:
        parts = urlsplit(address)
        assert parts.hostname in SERVICES and parts.port in listening(parts.hostname), address


def test_ports_are_published_on_loopback_only() -> None:
    """Each port is bound to 127.0.0.1, once, under its own number, and a program listens on it."""
    published = []
    for name, service in SERVICES.items():
        for port in service["ports"]:
            host, outside, inside = port.split(":")
            assert (host, outside) == ("127.0.0.1", inside)
            assert int(inside) in listening(name)
            published.append(inside)
    assert len(published) == len(set(published))
    assert {"4317", "4318", "16686", "9090", "3000"} <= set(published)


def test_health_checks_can_work() -> None:
    """Who has a tool to ask with asks itself at a port of its own; who has none, the collector, is waited for by nobody."""
    for name, service in SERVICES.items():
        tool = CAN_ASK.get(service["image"].partition(":")[0])
        if tool is None:
            assert "healthcheck" not in service
            continue
        kind, program, *arguments = service["healthcheck"]["test"]
        address = urlsplit(arguments[-1])
        assert (kind, program, address.hostname) == ("CMD", tool, "127.0.0.1")
        assert address.port in listening(name)
    for service in SERVICES.values():
        for other, terms in service.get("depends_on", {}).items():
            assert terms["condition"] == "service_healthy" and "healthcheck" in SERVICES[other]


@pytest.mark.integration
def test_commands_are_taken_by_the_programs(run_tool: Run) -> None:
    """The programs know each argument, with the configuration as it lies here in place of the mounted one."""
    for service, program, check in (("collector", "otelcol", ["validate"]), ("jaeger", "jaeger", ["validate"])):
        (argument,) = SERVICES[service]["command"]
        result = run_tool(program, *check, f"--config={FOLDER / argument.rpartition('/')[2]}", **SERVICES[service]["environment"])
        assert result.returncode == 0, result.stdout
    known = run_tool("prometheus", "--help").stdout
    for argument in SERVICES["prometheus"]["command"]:
        option, _, value = argument.partition("=")
        assert re.search(rf"^ +--(\[no-\])?{re.escape(option[2:])}\b", known, re.MULTILINE), argument
        if option == "--enable-feature":
            flat = re.sub(r"\s+", " ", known)
            assert all(re.search(rf"\b{feature}[,.]", flat) for feature in value.split(","))


def test_the_wheel_keeps_the_layout() -> None:
    """Mounts are relative paths, so the two folders lie side by side wherever the file is installed."""
    assert bundles.collector_config("docker-compose.yaml").parent.name == "collector-config"
    outside = {source.split("/")[1] for name in SERVICES for source in mounts(name).values() if source.startswith("../")}
    assert outside == {"grafana"}


def test_variables_of_the_file_itself_are_ports() -> None:
    """Only the published side of a port is left to the user."""
    asked = VARIABLE.sub("", text("docker-compose.yaml"))
    assert set(re.findall(r"\$\{(\w+)", asked)) == {
        "OTELCOL_GRPC_PORT", "OTELCOL_HTTP_PORT", "OTELCOL_HEALTH_PORT", "JAEGER_QUERY_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT",
    }  # fmt: skip
