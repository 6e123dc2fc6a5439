"""The copies of configuration files that a stack makes, and the folder that it keeps them in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from inferspan import bundles
from inferspan.stack.configs import readings, write_configs
from inferspan.stack.state import default_folder

ADDRESSES = {
    "OTELCOL_METRICS_PORT": "127.0.0.1:1",
    "INFERSPAN_STACK_GATEWAY_METRICS_PORT": "127.0.0.1:2",
    "OTELCOL_SCRAPE_PORT": "127.0.0.1:3",
    "INFERSPAN_STACK_GRAFANA_PORT": "127.0.0.1:4",
}


def _write(folder: Path, *variables: str, mode: str = "dev", grafana: bool = False) -> Path:
    source = folder / "bundle"
    shutil.rmtree(source, ignore_errors=True)
    bundles.write(source)
    provisioning = source / "grafana" / "provisioning" / "dashboards"
    provisioning.mkdir(parents=True, exist_ok=True)
    (provisioning / "mine.yaml").write_text("providers: [{name: a, options: {path: /etc/grafana/dashboards, x: 1}}]\n")
    write_configs(
        source / "collector-config",
        folder / "state",
        mode=mode,
        url=lambda name: ADDRESSES[name] if name in variables else "",
        grafana=grafana,
    )
    return folder / "state"


def test_prometheus_looks_at_the_collectors_of_this_stack(tmp_path: Path) -> None:
    """The collectors' own metrics are at this stack's ports; everything else in the file is as it was."""
    state = _write(tmp_path, "OTELCOL_METRICS_PORT", "INFERSPAN_STACK_GATEWAY_METRICS_PORT", mode="fleet")
    written = yaml.safe_load((state / "collector-config" / "prometheus.yml").read_text())
    bundled = yaml.safe_load(bundles.collector_config("prometheus.yml").read_text())
    (job,) = [job for job in bundled["scrape_configs"] if job["job_name"] == "otelcol"]
    job["static_configs"] = [{"targets": ["127.0.0.1:1", "127.0.0.1:2"]}]
    assert written == bundled


def test_scrape_targets(tmp_path: Path) -> None:
    """Prometheus fetches everybody's metrics from the collector in the mode scrape, and in no other."""
    targets = _write(tmp_path, "OTELCOL_SCRAPE_PORT", mode="scrape") / "collector-config" / "scrape-targets.json"
    assert json.loads(targets.read_text()) == [{"targets": ["127.0.0.1:3"]}]
    _write(tmp_path)
    assert not targets.exists()


def test_rules_are_where_prometheus_looks(tmp_path: Path) -> None:
    """The path of the rules in the copy leads to them."""
    file = _write(tmp_path) / "collector-config" / "prometheus.yml"
    (rules,) = yaml.safe_load(file.read_text())["rule_files"]
    assert (file.parent / rules).read_text() == bundles.grafana("rules.yml").read_text()


def test_provisioning_names_this_folder(tmp_path: Path) -> None:
    """Grafana finds the dashboards in the folder of this stack."""
    state = _write(tmp_path)
    provider = yaml.safe_load((state / "grafana" / "provisioning" / "dashboards" / "mine.yaml").read_text())
    assert provider["providers"] == [{"name": "a", "options": {"path": str(state / "grafana" / "dashboards"), "x": 1}}]
    for file in (state / "grafana" / "provisioning" / "dashboards").glob("*.yaml"):
        assert "/etc/" not in file.read_text()


def test_links_of_jaeger(tmp_path: Path) -> None:
    """Jaeger's pages link to this stack's Grafana, and to none where there is none."""
    page = _write(tmp_path, "INFERSPAN_STACK_GRAFANA_PORT", grafana=True) / "collector-config" / "jaeger-ui.json"
    links = json.loads(page.read_text())["linkPatterns"]
    assert links and all(link["url"].startswith("http://127.0.0.1:4/") for link in links)
    bundled = json.loads(bundles.collector_config("jaeger-ui.json").read_text())
    del bundled["linkPatterns"]
    assert json.loads((_write(tmp_path) / "collector-config" / "jaeger-ui.json").read_text()) == bundled


def test_readings_name_line_and_key(tmp_path: Path) -> None:
    """Every variable with default, line and key; comments are none, a line may read two."""
    file = tmp_path / "a.yaml"
    file.write_text('# ${env:NO:-1}\nextensions:\n  - endpoint: "${env:A:-x}:${env:B:-2}"\n  file: ${env:C}\n')
    assert [(each.variable, each.default, each.line, each.key) for each in readings(file)] == [
        ("A", "x", 3, "endpoint"),
        ("B", "2", 3, "endpoint"),
        ("C", "", 4, "file"),
    ]


@pytest.mark.parametrize(
    ("system", "environ", "expected"),
    [
        ("linux", {"XDG_STATE_HOME": "/s"}, Path("/s/inferspan/stack")),
        ("linux", {"XDG_STATE_HOME": "relative"}, Path.home() / ".local/state/inferspan/stack"),
        ("linux", {}, Path.home() / ".local/state/inferspan/stack"),
        ("darwin", {"XDG_STATE_HOME": "/s"}, Path.home() / "Library/Application Support/inferspan/stack"),
        ("win32", {"LOCALAPPDATA": "/l"}, Path("/l/inferspan/stack")),
        ("win32", {}, Path.home() / "AppData/Local/inferspan/stack"),
    ],
)
def test_default_folder(system: str, environ: dict[str, str], expected: Path) -> None:
    """The state of programs goes where each system keeps it."""
    assert default_folder(environ, system) == expected


def test_read_only_package(tmp_path: Path) -> None:
    """The copies can be written to, again and again, where the package is installed without the right to write."""
    bundles.write(source := tmp_path / "bundle")
    folders = [source, *(path for path in source.rglob("*") if path.is_dir())]
    for path in source.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        for _ in range(2):
            write_configs(source / "collector-config", tmp_path / "state", mode="dev", url=lambda _: "", grafana=False)
    finally:
        for path in folders:
            path.chmod(0o755)
    assert all(path.stat().st_mode & 0o200 for path in (tmp_path / "state").rglob("*"))


def test_dollar_in_the_folder(tmp_path: Path) -> None:
    """Grafana reads $NAME in provisioning as a variable; that of a folder is doubled."""
    (tmp_path / "$x").mkdir()
    state = _write(tmp_path / "$x")
    provider = yaml.safe_load((state / "grafana" / "provisioning" / "dashboards" / "mine.yaml").read_text())
    assert provider["providers"][0]["options"]["path"] == str(tmp_path / "$$x" / "state" / "grafana" / "dashboards")
