"""``python -m grafana.generator``: write the dashboards; ``--check`` only says which are not current, and lints them.

In: the modules of the table below, each with a function ``dashboard()``. Out: ``grafana/dashboards/*.json``. Exit code 1 if a file is
not current (``--check``) or the lint finds something.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import fleet, gpu, model, overview

__all__ = ["DASHBOARDS", "FOLDER", "files", "main"]

FOLDER = Path(__file__).resolve().parents[1] / "dashboards"
DASHBOARDS: tuple[Callable[[], dict[str, Any]], ...] = (overview.dashboard, gpu.dashboard, model.dashboard, fleet.dashboard)
"""Every dashboard that is written."""


def files() -> dict[Path, str]:
    """Path and text of each file."""
    made = [dashboard() for dashboard in DASHBOARDS]
    return {FOLDER / f"{item['uid']}.json": json.dumps(item, indent=2, sort_keys=True, ensure_ascii=False) + "\n" for item in made}


def main(arguments: Sequence[str] = ()) -> int:
    """Write or check the files."""
    wanted = files()
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    left_over = sorted(set(FOLDER.glob("*.json")) - set(wanted))
    if "--check" in arguments:
        for path in (*stale, *left_over):
            print(f"{path.name} is not current: run `make dashboards`")
        return int(bool(stale or left_over))
    FOLDER.mkdir(exist_ok=True)
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path.name}")
    for path in left_over:
        path.unlink()
        print(f"removed {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
