"""The environment variables that configurations read, with their defaults."""

from __future__ import annotations

import re
from pathlib import Path

from tests.collector_config.combinations import FOLDER, text

__all__ = ["VARIABLE", "defaults", "files_with_variables"]

VARIABLE = re.compile(r"\$\{env:(\w+)(?::-([^}]*))?}")
# In a compose file the program, not the configuration, fills them in.
_COMPOSE = re.compile(r"\$\{(\w+):-([^}]*)}")


def defaults(name: str) -> dict[str, str]:
    """Variable and default of each place in a file that reads one; ``none`` if the default is empty, ``required`` without any."""
    pattern = _COMPOSE if name == "docker-compose.yaml" else VARIABLE
    found = list(pattern.finditer(text(name)))
    return {each[1]: "required" if each[2] is None else each[2] or "none" for each in found}


def files_with_variables() -> list[str]:
    """Every YAML file of the folder, below it too."""
    return sorted(path.relative_to(FOLDER).as_posix() for path in Path(FOLDER).rglob("*.yaml"))
