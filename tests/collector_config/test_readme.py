"""The README of the configurations against the files: every file, every variable with its default, every command."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict

from tests.collector_config.combinations import COMBINATIONS, FOLDER, text
from tests.collector_config.readings import defaults, files_with_variables

README = text("README.md")
COMMANDS = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL)).replace("\\\n", " ")


def rows(first_cell: str) -> list[list[str]]:
    """Cells of the table rows whose first cell begins so."""
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in README.splitlines() if re.match(rf"\| {first_cell}", row)]


def test_every_variable_is_documented() -> None:
    """The tables list exactly the variables that the files read, each with the default that it has in all of them."""
    used = defaultdict(set)
    for name in files_with_variables():
        for variable, default in defaults(name).items():
            used[variable].add(default)
    documented = defaultdict(set)
    for variables, given, _ in rows("`[A-Z_]+`"):
        for variable, default in zip(re.findall(r"\w+", variables), given.split(", "), strict=True):
            assert variable not in documented
            documented[variable].add(default.strip("`"))
    assert documented == used


def test_every_file_is_listed() -> None:
    """The table of files has each file of the folder, and no other."""
    listed = {name for cells in rows(r"`[a-z]+[a-z-]*[./]") for name in re.findall(r"`([^`]+)`", cells[0])}
    there = {f"{path.name}/" if path.is_dir() else path.name for path in FOLDER.iterdir()}
    assert listed == there - {"README.md", "data/", "jaeger-data/", "scrape-targets.json"}


def test_commands_are_those_that_are_tested() -> None:
    """Each start of a collector or of Jaeger is a combination of files that is started in a test, with variables that it reads."""
    starts = [line for line in COMMANDS.splitlines() if re.search(r"\b(otelcol-contrib|jaeger) --config", line)]
    assert len(starts) == 5
    for line in starts:
        words = shlex.split(line, comments=True)
        files = tuple(words[place + 1] for place, word in enumerate(words) if word == "--config")
        assert files in {each.files for each in COMBINATIONS}
        set_here = {word.partition("=")[0] for word in words if re.match(r"[A-Z_]+=", word)}
        assert set_here <= {variable for name in files for variable in defaults(name)}


def test_prometheus_is_started_alike_everywhere() -> None:
    """README, the first lines of prometheus.yml and the containers give the same switches."""
    switches = [set(re.findall(r"--(?:web\.enable|enable-feature)\S*[^\s\"]", words)) for words in (COMMANDS, text("docker-compose.yaml"))]
    header = set(re.findall(r"--(?:web\.enable|enable-feature)\S*", text("prometheus.yml").split("global:")[0]))
    assert switches == [header, header]
