"""The command ``settings``: lists every setting."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from typing import Any

__all__ = ["add_settings"]


def add_settings(commands: Any) -> None:
    """Add ``settings`` to a parser's commands."""
    settings = commands.add_parser(
        "settings",
        help="list all settings",
        description="List every setting with its environment variable, default and meaning. An argument of inferspan.instrument() wins"
        " over the environment, the environment over the YAML file of INFERSPAN_CONFIG, the file over the preset of INFERSPAN_PRESET.",
    )
    settings.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> None:
    from inferspan.settings import describe

    width = max(60, shutil.get_terminal_size((100, 24)).columns)
    for name, variable, default, meaning in describe():
        print(f"{name}  ({variable}{f', default {default}' if default else ''})")
        print(textwrap.fill(meaning, width - 1, initial_indent="    ", subsequent_indent="    "))
