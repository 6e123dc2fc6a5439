"""Files that come with the package: configurations for the collector, Jaeger and Prometheus, and what Grafana and Prometheus load.

In: the name of a file, or a folder to write all of them to. Out: paths. Fails with ``FileNotFoundError`` that lists what there is, and
with ``FileExistsError`` that names the files of the user that would be overwritten.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["bundled_files", "collector_config", "grafana", "write"]

_COLLECTOR_CONFIG = "collector-config"
_GRAFANA = "grafana"
# What a wheel holds of each folder; in the repository there is more, such as the generator of the dashboards.
_PARTS = {_COLLECTOR_CONFIG: ("",), _GRAFANA: ("dashboards", "provisioning", "rules.yml")}
_LEFT_OUT = {"data", "jaeger-data", "scrape-targets.json", "__pycache__"}  # what servers write when they run in the repository


def collector_config(name: str = "dev.yaml") -> Path:
    """Path of a bundled configuration file.

    Args:
        name: a file of ``collector-config``, such as ``dev.yaml``, ``jaeger.yaml`` or ``prometheus.yml``.

    Raises:
        FileNotFoundError: there is no such file; the message lists those that there are.
    """
    return _file(_COLLECTOR_CONFIG, name, "collector configuration")


def grafana(name: str) -> Path:
    """Path of a bundled file for Grafana or of the rules, or of a folder of them.

    Args:
        name: path below ``grafana``, such as ``rules.yml``, ``dashboards`` or ``provisioning``.

    Raises:
        FileNotFoundError: there is no such file; the message lists those that there are.
    """
    return _file(_GRAFANA, name, "Grafana file")


def bundled_files() -> dict[str, Path]:
    """Every file, by the path that it has below a folder written by ``write``, such as ``grafana/rules.yml``."""
    return {
        f"{top}/{path.relative_to(_folder(top)).as_posix()}": path
        for top, parts in _PARTS.items()
        for part in parts
        for path in _walk(_folder(top) / part)
    }


def write(folder: Path, *, force: bool = False) -> list[Path]:
    """Write all files to a folder, where they can be changed.

    Args:
        folder: is made if it is not there.
        force: overwrite files that differ.

    Returns:
        The files that were written; those that were there already, and the same, are not.

    Raises:
        NotADirectoryError: a file is where a folder is wanted.
        FileExistsError: files differ, and ``force`` is off. Nothing is written then. ``args[0]`` is the list of them.
    """
    for path in {above for name in bundled_files() for above in (folder / name).parents}:
        if os.path.lexists(path) and not path.is_dir():  # a link that leads nowhere as well
            raise NotADirectoryError(errno.ENOTDIR, "a file is where a folder is wanted", str(path))
    wanted = {folder / name: source.read_bytes() for name, source in bundled_files().items()}
    to_write = [path for path, content in wanted.items() if not path.is_file() or path.read_bytes() != content]
    differing = [path for path in to_write if path.exists()]
    if differing and not force:
        raise FileExistsError(differing)
    for path in to_write:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wanted[path])
    return to_write


def _file(top: str, name: str, what: str) -> Path:
    path = _folder(top) / name
    if not path.exists() or not name:
        there = ", ".join(name.partition("/")[2] for name in bundled_files() if name.startswith(top)) or "none"
        raise FileNotFoundError(f"inferspan has no {what} {name!r}; it has {there}")
    return path


def _folder(top: str) -> Path:
    package = Path(__file__).resolve().parent
    # A wheel holds the folder inside the package; in the repository, and so in an editable install, it is at the top.
    return next((place for place in (package / top, package.parents[1] / top) if place.is_dir()), package / top)


def _walk(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        for child in sorted(path.iterdir()):
            if child.name not in _LEFT_OUT and not child.name.startswith("."):
                yield from _walk(child)
