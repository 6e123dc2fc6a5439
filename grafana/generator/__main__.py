"""``python -m grafana.generator [NAME ...]``: write the dashboards, or those of the names; ``--check`` only says which are not current.

In: the folders of the table below, each with a module ``dashboard``, and ``rules.yml``. Out: ``grafana/dashboards/*.json`` and the
alerts for Grafana in ``grafana/provisioning/alerting``. With ``--check`` the exit
code is 1 if a file is not current.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import alerts

__all__ = ["DASHBOARDS", "FOLDER", "files", "made", "main"]

FOLDER = Path(__file__).resolve().parents[1] / "dashboards"
DASHBOARDS = ("overview", "gpu", "model", "fleet")
"""Folders of this package, each of a dashboard."""


def made(names: Sequence[str] = DASHBOARDS) -> list[dict[str, Any]]:
    """The dashboards of these modules."""
    return [importlib.import_module(f"{__package__}.{name}.dashboard").dashboard() for name in names]


def files(names: Sequence[str] = DASHBOARDS) -> dict[Path, str]:
    """Path and text of each file."""
    dumped = {item["uid"]: json.dumps(item, indent=2, sort_keys=True, ensure_ascii=False) + "\n" for item in made(names)}
    return {FOLDER / f"{uid}.json": text for uid, text in dumped.items()}


def main(arguments: Sequence[str] = ()) -> int:
    """Write or check the files."""
    names = [item for item in arguments if item != "--check"]
    unknown = sorted(set(names) - set(DASHBOARDS))
    if unknown:
        print(f"no dashboard {', '.join(unknown)}: there are {', '.join(DASHBOARDS)}")
        return 2
    wanted = files(names) if names else {**files(), alerts.PATH: alerts.provisioning()}
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    left_over = [] if names else sorted(set(FOLDER.glob("*.json")) - set(wanted))
    if "--check" in arguments:
        for path in (*stale, *left_over):
            print(f"{path.name} is not current: run `make dashboards`")
        return int(bool(stale or left_over))
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path.name}")
    for path in left_over:
        path.unlink()
        print(f"removed {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
