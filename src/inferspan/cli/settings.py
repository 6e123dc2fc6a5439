"""The command ``settings``: lists every setting with its value here and where that comes from."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shutil
import textwrap
from collections.abc import Iterable
from typing import Any

from .failure import Failure

__all__ = ["add_settings"]

_END = """\
examples:
  inferspan settings                      all of them, with their meaning
  inferspan settings --changed            those that are not at their default
  inferspan settings modules keep         these two
  inferspan settings modules=all          as instrument(model, modules="all") has them in this environment
  inferspan settings --config inferspan.yaml --json
"""


def add_settings(commands: Any) -> None:
    """Add ``settings`` to a parser's commands."""
    settings = commands.add_parser(
        "settings",
        help="list all settings, with values and sources",
        description="List every setting with its environment variable, default, value in this environment and the source of that, and\n"
        "meaning. An argument of inferspan.instrument() wins over the environment, the environment over the YAML file of\n"
        "INFERSPAN_CONFIG, the file over the preset of INFERSPAN_PRESET.",
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    settings.add_argument(
        "given", metavar="NAME[=VALUE]", nargs="*", help="show this setting alone; with a value, all, as with an argument of instrument()"
    )
    settings.add_argument("--config", metavar="FILE", help="as config_file=FILE, instead of INFERSPAN_CONFIG")
    settings.add_argument("--preset", metavar="NAME", help="as preset=NAME, instead of INFERSPAN_PRESET")
    settings.add_argument("--changed", action="store_true", help="only those that are not at their default")
    settings.add_argument("--json", action="store_true", help="as JSON, for programs")
    settings.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from inferspan.doctor.settings import effective, value_text
    from inferspan.settings import SettingsError, describe

    given = dict(_pair(text) for text in arguments.given if "=" in text)
    names = _names(text for text in arguments.given if "=" not in text)
    try:
        found = {name: (value, source) for name, value, source in effective(
            os.environ, given, preset=arguments.preset, config_file=arguments.config
        )}  # fmt: skip
    except SettingsError as error:
        raise Failure(str(error)) from None
    rows = [
        (*row, *found[row[0]])
        for row in describe()
        if (not arguments.changed or found[row[0]][1] != "default") and (not names or row[0] in names)
    ]
    if arguments.json:
        table = {name: {"value": value, "source": source, "variable": variable} for name, variable, _, _, value, source in rows}
        print(json.dumps(table, indent=2))
        return
    width = max(60, shutil.get_terminal_size((100, 24)).columns)
    for name, variable, default, meaning, value, source in rows:
        print(f"{name}  ({variable}{f', default {default}' if default else ''})")
        print(f"    = {value_text(value)}  [{source}]")
        print(textwrap.fill(meaning, width - 1, initial_indent="    ", subsequent_indent="    "))
        if names:
            print(textwrap.fill(f"allowed: {_allowed(name)}", width - 1, initial_indent="    ", subsequent_indent="    "))
    if names:
        print("an argument of instrument() wins over the environment, that over the file of INFERSPAN_CONFIG, that over the preset")


def _names(texts: Iterable[str]) -> set[str]:
    """The settings of these names; environment variables stand for their settings.

    Raises:
        Failure: there is none of that name.
    """
    from inferspan.settings import describe

    variables = {variable: name for name, variable, _, _ in describe()}
    known = set(variables.values())
    found = set()
    for text in texts:
        name = variables.get(text.strip(), text.strip())
        if name not in known:
            close = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise Failure(f"there is no setting {text!r}: {hint}inferspan settings lists them")
        found.add(name)
    return found


def _allowed(name: str) -> str:
    """What a setting may be, as its error says it."""
    from dataclasses import fields

    from inferspan.settings import Settings, SettingsError

    check = next(item.metadata["check"] for item in fields(Settings) if item.name == name)
    try:
        check(name, object())
    except SettingsError as error:
        return str(error).partition(": ")[2].removeprefix("use ")
    return "anything"


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip(), value
