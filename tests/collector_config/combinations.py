"""The configurations as they are meant to be run: each file alone, and each overlay on the files that its own first lines name.

A YAML file at the top of ``collector-config`` says in its leading comment how it is started (``otelcol-contrib --config dev.yaml --config
dev-scrape.yaml``); one that says nothing runs alone. So a new overlay is tested by being there, with the command that its reader is given.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

__all__ = ["COMBINATIONS", "FOLDER", "ROOT", "Combination", "load", "merged", "text"]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "collector-config"

# For other programs than the collector and Jaeger; tests of their own look at them.
OTHERS = {"builder-config.yaml", "docker-compose.yaml", "kustomization.yaml"}

# Components that the collector of the tests lacks, by file. Nothing else may be wrong with the file: a test takes them out and starts it.
MISSING: dict[str, dict[str, tuple[str, ...]]] = {"kubernetes/agent-attributes.yaml": {"processors": ("k8s_attributes",)}}

_COMMAND = re.compile(r"#.*?\b(otelcol-contrib|otelcol|jaeger)((?: --config \S+\.yaml)+)")


@dataclass(frozen=True)
class Combination:
    """Files laid over one another, for one program."""

    program: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return "+".join(self.files)

    @property
    def arguments(self) -> list[str]:
        """``--config`` for each file."""
        return [word for name in self.files for word in ("--config", str(FOLDER / name))]


def text(name: str) -> str:
    """A file as it is written."""
    return (FOLDER / name).read_text(encoding="utf-8")


def load(name: str) -> Any:
    """A file as YAML; a variable stays the text that it is."""
    return yaml.safe_load(text(name))


def merged(files: tuple[str, ...]) -> dict[str, Any]:
    """What a program makes of several files: maps are merged, everything else is replaced."""
    whole: dict[str, Any] = {}
    for name in files:
        whole = _laid_over(whole, load(name))
    return whole


def _laid_over(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return {**below, **{key: _laid_over(below.get(key), value) for key, value in above.items()}}


def _files_of(arguments: str) -> tuple[str, ...]:
    """The files of a command line."""
    return tuple(re.findall(r"--config (\S+)", arguments))


def _combinations() -> list[Combination]:
    found = set()
    nested = [path for path in (FOLDER / "kubernetes").glob("*.yaml") if path.relative_to(FOLDER).as_posix() in MISSING]
    for path in sorted([*FOLDER.glob("*.yaml"), *nested]):
        name = path.relative_to(FOLDER).as_posix()
        if name in OTHERS:
            continue
        commands = [Combination(program.partition("-")[0], _files_of(files)) for program, files in _COMMAND.findall(text(name))]
        found |= {each for each in commands if name in each.files}
        if all(each.files[0] == name for each in commands):
            found.add(Combination("jaeger" if "jaeger_storage" in text(name) else "otelcol", (name,)))
    return sorted(found, key=str)


COMBINATIONS = _combinations()
