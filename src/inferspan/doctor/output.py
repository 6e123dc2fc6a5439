"""Findings as text for people, and as JSON.

Text is plain and fits any terminal; with rich installed, on a terminal that it can use, states have colours.
"""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from inferspan.doctor.examine import Result
from inferspan.doctor.findings import NOTE, OK, PROBLEM, WARNING, Finding
from inferspan.text.numbers import counted

__all__ = ["as_json", "show"]

_TITLES = {
    "versions": "Versions", "extension": "Recorder of module calls", "program": "Program", "environment": "Environment",
    "settings": "Settings that are not at their default", "providers": "Where telemetry goes", "session file": "Session file",
    "endpoints": "Endpoints", "emitted": "What is emitted", "nvml": "GPU readings (NVML)", "cuda": "CUDA and profiler", "start": "Start",
}  # fmt: skip
_MARKS = {OK: "ok", NOTE: "", WARNING: "!", PROBLEM: "X"}
_STYLES = {OK: "green", NOTE: "", WARNING: "yellow", PROBLEM: "bold red"}
_NAME = 30
_Print = Callable[[str, str, int], None]
"""Prints a line; that many characters of it are in this style."""


def as_json(result: Result, command: Sequence[str]) -> str:
    """One object: ``ok``, ``command``, ``topics`` with their findings, and the problems once more."""
    whole: Mapping[str, Any] = {
        "schema": 1,
        "ok": not result.problems,
        "command": list(command),
        "topics": {name: [finding.plain() for finding in findings] for name, findings in result.topics.items()},
        "problems": [finding.plain() for finding in result.problems],
        "warnings": [finding.plain() for finding in result.warnings],
    }
    return json.dumps(whole, indent=2)


def show(result: Result, file: TextIO) -> None:
    """Print all findings, and at the end what to fix."""
    width = max(60, shutil.get_terminal_size((100, 24)).columns) - 1
    put = _printer(file)
    for name, findings in result.topics.items():
        if not findings:
            continue
        put(_TITLES.get(name, name), "bold", width)
        for finding in findings:
            for number, line in enumerate(_lines(finding, width)):
                put(line, _STYLES[finding.state], 0 if number else _NAME + 4)
        put("", "", 0)
    _conclude(result, put, width)


def _lines(finding: Finding, width: int) -> Iterator[str]:
    source = f"  [{finding.source}]" if finding.source else ""
    head = f" {_MARKS[finding.state]:>2} {finding.name:<{_NAME}} "
    text = f"{finding.value}{source}"
    if len(finding.name) > _NAME:
        yield head.rstrip()
        head = " " * (_NAME + 5)
    yield from _wrapped(text, head, " " * (_NAME + 5), width) or [head]
    if finding.fix:
        yield from _fix(finding, " " * (_NAME + 5), width)


def _fix(finding: Finding, indent: str, width: int) -> list[str]:
    return _wrapped(f"fix: {finding.fix}", indent, f"{indent}     ", width)


def _wrapped(text: str, first: str, later: str, width: int) -> list[str]:
    """Lines of a text; addresses, paths and options of commands stay whole."""
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False)


def _conclude(result: Result, put: _Print, width: int) -> None:
    found = [*result.problems, *result.warnings]
    if not found:
        put("Nothing to fix.", "green", width)
        return
    problems, warnings = len(result.problems), len(result.warnings)
    parts = [counted(problems, "problem")] if problems else []
    parts += [counted(warnings, "warning")] if warnings else []
    put(f"{' and '.join(parts)}:", "bold", width)
    for number, finding in enumerate(found, 1):
        head = f" {number}. "
        text = f"{finding.name}: {finding.value}"
        for line in _wrapped(text, head, " " * len(head), width):
            put(line, _STYLES[finding.state], width)
        for line in _fix(finding, " " * len(head), width):
            put(line, "", 0)


def _printer(file: TextIO) -> _Print:
    """Prints with colours where there is a terminal and rich, without elsewhere."""
    if file.isatty():
        try:
            from rich.console import Console
            from rich.text import Text
        except ImportError:
            pass
        else:
            console = Console(file=file, highlight=False, soft_wrap=True)

            def coloured(line: str, style: str, size: int) -> None:
                text = Text(line)
                if style:
                    text.stylize(style, 0, size)
                console.print(text)

            return coloured
    return lambda line, style, size: print(line, file=file)
