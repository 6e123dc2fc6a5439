"""The configuration files: which variables they read, where a value stands, and copies with this stack's addresses.

In: the bundled folder, or one that the user has written and changed. Out: ``Reading`` rows, and the files that cannot read the
environment, written to the state folder. Fails with ``StackError`` where a value cannot be right but no program would refuse it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from inferspan import bundles
from inferspan.stack.errors import StackError

__all__ = ["Reading", "check_values", "config_folder", "readings", "write_configs"]

_VARIABLE = re.compile(r"\$\{env:(\w+)(?::-([^}]*))?}")
_DASHBOARDS = re.compile(r"(path:\s*)[^\s},]*/dashboards\b")


@dataclass(frozen=True)
class Reading:
    """A place in a configuration file where a variable is read."""

    variable: str
    default: str
    file: Path
    line: int
    key: str


def config_folder(bundle: Path | None, needed: Iterable[str]) -> Path:
    """The folder of the configurations, which has all the files that are needed."""
    folder = bundle / "collector-config" if bundle else bundles.collector_config("dev.yaml").parent
    missing = sorted(name for name in needed if not (folder / name).is_file())
    if missing:
        way_out = f"write the folder with `inferspan bundle {bundle}`" if bundle else "install inferspan again"
        raise StackError(f"{folder} has no {', '.join(missing)}: {way_out}")
    return folder.resolve()


def readings(file: Path) -> list[Reading]:
    """Every variable that a file reads, with the place."""
    found = []
    for number, line in enumerate(_text(file).splitlines(), 1):
        code = "" if line.lstrip().startswith("#") else line
        key = code.strip().removeprefix("- ").partition(":")[0]
        found += [Reading(name, default, file, number, key) for name, default in _VARIABLE.findall(code)]
    return found


def check_values(files: Iterable[Path], environ: Mapping[str, str]) -> None:
    """Refuse a URL that is none: the programs would start, call themselves healthy and lose everything."""
    for each in (reading for file in files if file.suffix == ".yaml" for reading in readings(file)):
        value = environ.get(each.variable, "").strip()
        if value and each.default.startswith("http"):
            parts = urlsplit(value)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise StackError(
                    f"{each.variable}={value} is no URL. {each.file.name} reads it in line {each.line}, `{each.key}`;\n"
                    "the program would start, and fail with 'unsupported protocol scheme' at the first data.\n"
                    f"Use one such as {each.default}, or unset it."
                )


def write_configs(source: Path, folder: Path, *, mode: str, url: Callable[[str], str], grafana: bool) -> None:
    """Write what cannot read the environment into the state folder, laid out as in the bundle.

    Args:
        source: folder of the configurations.
        folder: state folder.
        mode: mode of the stack.
        url: gives ``host:port`` for the variable of a port.
        grafana: whether Grafana runs.
    """
    target = folder / "collector-config"
    target.mkdir(parents=True, exist_ok=True)
    own_metrics = [url(name) for name in ("OTELCOL_METRICS_PORT", "INFERSPAN_STACK_GATEWAY_METRICS_PORT") if url(name)]
    text = _text(source / "prometheus.yml")
    (target / "prometheus.yml").write_text(
        text.replace('"127.0.0.1:8888"', ", ".join(f'"{each}"' for each in own_metrics)), encoding="utf-8"
    )
    targets = target / "scrape-targets.json"
    targets.unlink(missing_ok=True)
    if mode == "scrape":
        targets.write_text(json.dumps([{"targets": [url("OTELCOL_SCRAPE_PORT")]}]), encoding="utf-8")
    _write_jaeger_ui(source, target, url("INFERSPAN_STACK_GRAFANA_PORT") if grafana else "")
    _write_grafana(source.parent / "grafana", folder / "grafana")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise StackError(f"{file} is no text in UTF-8: {error}") from None


def _copy(source: Path, target: Path) -> None:
    """A folder's files without their permissions: an installed package may be read-only, and the copies are written to."""
    target.mkdir(parents=True, exist_ok=True)
    for each in source.iterdir():
        if each.is_dir():
            _copy(each, target / each.name)
        else:
            shutil.copyfile(each, target / each.name)


def _write_jaeger_ui(source: Path, target: Path, grafana: str) -> None:
    """Jaeger's pages link to Grafana; without Grafana those links would lead nowhere."""
    file = source / "jaeger-ui.json"
    try:
        page = json.loads(_text(file)) if file.is_file() else {}
    except json.JSONDecodeError as error:
        raise StackError(f"{file} is no JSON: {error}") from None
    if not isinstance(page, dict):
        raise StackError(f"{file} is no JSON object")
    if not grafana:
        page.pop("linkPatterns", None)
    text = re.sub(r"http://(?:localhost|127\.0\.0\.1):3000\b", f"http://{grafana}", json.dumps(page, indent=2))
    (target / "jaeger-ui.json").write_text(text, encoding="utf-8")


def _write_grafana(source: Path, target: Path) -> None:
    """Rules and dashboards; the provisioning names the folder of the dashboards as it is in a container, here it is another."""
    shutil.rmtree(target, ignore_errors=True)
    for part in ("dashboards", "provisioning"):
        if (source / part).is_dir():
            _copy(source / part, target / part)
    target.mkdir(exist_ok=True)
    if (source / "rules.yml").is_file():
        shutil.copyfile(source / "rules.yml", target / "rules.yml")
    dashboards = json.dumps(str(target / "dashboards")).replace("$", "$$")  # Grafana reads $NAME there as a variable
    for file in (target / "provisioning" / "dashboards").glob("*.y*ml"):
        text = file.read_text(encoding="utf-8")
        file.write_text(_DASHBOARDS.sub(lambda found: found[1] + dashboards, text), encoding="utf-8")
