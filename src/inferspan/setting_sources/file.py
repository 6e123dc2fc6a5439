"""The YAML file of settings: read with a limit, and checked setting by setting.

In: a path, and the table of settings. Out: values by name. What is wrong in a file raises if an argument names it, and is a warning if a
variable does.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from inferspan import setting_checks as check
from inferspan.setting_checks import SettingsError

__all__ = ["FILE_VARIABLE", "LARGEST_FILE", "read_file", "read_named_file", "unknown"]

FILE_VARIABLE = "INFERSPAN_CONFIG"
LARGEST_FILE = 1 << 20
"""Bytes of a settings file."""


def unknown(name: str, table: Mapping[str, Any], where: str) -> SettingsError:
    """The error for a name that is no setting; ``where`` says where it stands."""
    import difflib

    close = difflib.get_close_matches(name, table, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return SettingsError(f"unknown inferspan setting {name!r} ({where}): {hint}known settings are {', '.join(sorted(table))}")


def read_named_file(path: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the file that a variable names; what is wrong in it, or with it, is a warning."""
    complaints: list[str] = []
    try:
        values = read_file(path, table, complaints.append)
    except SettingsError as error:
        values, complaints = {}, [f"it is ignored: {error}"]
    if complaints:
        check.warn_once("%s=%s: %s", FILE_VARIABLE, check.shown(path), "; ".join(complaints))
    return values


def _load(path: str | os.PathLike[str]) -> Any:
    try:
        import yaml
    except ImportError:
        raise SettingsError(f"inferspan needs PyYAML to read {path}: pip install 'inferspan[yaml]'") from None
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE:  # a pipe or a device might never end
            raise SettingsError(f"inferspan settings file {path} must be a file of at most {LARGEST_FILE >> 20} MiB")
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"inferspan cannot read its settings file {path}: {error.strerror or error}") from None
    except SettingsError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # numbers and dates that Python cannot hold are ValueErrors
        raise SettingsError(f"inferspan settings file {path} is not YAML: {error}") from None


def read_file(
    path: str | os.PathLike[str] | None, table: Mapping[str, Any], complain: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """The settings of a file; a wrong one is passed to ``complain`` and left out, or raises without ``complain``."""
    if not path:
        return {}
    loaded = _load(path)
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise SettingsError(f"inferspan settings file {path} must hold a mapping of settings, not {type(loaded).__name__}")
    values: dict[str, Any] = {}
    for name, value in loaded.items():
        try:
            if name != "preset" and name not in table:
                raise unknown(str(name), table, f"file {path}")
            if name != "preset" and (value is not None or table[name].default is not None):
                table[name].metadata["check"](f"{name} (file {path})", value)
            values[name] = value
        except SettingsError as error:
            if complain is None:
                raise
            complain(str(error))
    return values
