"""Files that come with the package: configurations for the collector, Jaeger and Prometheus.

In: the name of a file. Out: its path, in the installed package or in the repository. Fails with ``FileNotFoundError`` that lists
what there is.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["collector_config"]

_FOLDER = "collector-config"


def collector_config(name: str = "dev.yaml") -> Path:
    """Path of a bundled configuration file.

    Args:
        name: ``dev.yaml``, ``jaeger.yaml`` or ``prometheus.yml``.

    Raises:
        FileNotFoundError: there is no such file; the message lists those that there are.
    """
    package = Path(__file__).resolve().parent
    # A wheel holds the folder inside the package; in the repository, and so in an editable install, it is at the top.
    folder = next((place for place in (package / _FOLDER, package.parents[1] / _FOLDER) if place.is_dir()), package / _FOLDER)
    path = folder / name
    if not path.is_file():
        there = ", ".join(sorted(file.name for file in folder.glob("*.y*ml"))) or "none"
        raise FileNotFoundError(f"inferspan has no collector configuration {name!r}; it has {there}")
    return path
