"""The command ``bundle``: writes configurations and dashboards to a folder."""

from __future__ import annotations

import argparse
from typing import Any

from .paths import file_or_folder
from .stack import run_command

__all__ = ["add_bundle"]

_BUNDLE_END = """\
examples:
  inferspan bundle ./stack
  inferspan stack up --bundle ./stack
"""


def add_bundle(commands: Any) -> None:
    """Add ``bundle`` to a parser's commands."""
    bundle = commands.add_parser(
        "bundle",
        help="write configurations and dashboards to a folder",
        description="Write the configurations of the collector, Jaeger and Prometheus, and the\n"
        "dashboards, rules and provisioning of Grafana to a folder, to be changed there or\ntaken elsewhere.",
        epilog=_BUNDLE_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bundle.add_argument("folder", metavar="DIR", type=file_or_folder, help="folder; is made if it is not there")
    bundle.add_argument("--force", action="store_true", help="overwrite files that you have changed")
    bundle.set_defaults(run=run_command, command="bundle")
