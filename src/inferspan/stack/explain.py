"""Why a program ended, in its own words and ours: the end of its log, and the variable, file and line behind it.

In: the command, its exit code and its log. Out: a text. Nothing here fails.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from pathlib import Path

from inferspan.stack.configs import Reading, readings
from inferspan.stack.plan import Command
from inferspan.stack.ports import number_of, port_owner

__all__ = ["ended", "log_end", "not_ready"]

_ERROR = re.compile(r"^(Error|panic|fatal)\b", re.IGNORECASE)
_LEVEL = re.compile(r"level=(ERROR|error)|\terror\t|\bFATAL\b")
_TAKEN = re.compile(r"address already in use|Only one usage of each socket")
_TOO_LONG = 300
# Meanings of messages that do not name their cause.
_HINTS = (
    (
        "unknown type",
        "This collector was built without a component that the file needs: take the distribution contrib, 0.157 or later.",
    ),
    (
        "unknown (long |shorthand )?flag|flag provided but not defined",
        "This program does not know our arguments: `inferspan stack up --help` says which version is needed.",
    ),
    ("lock DB directory|resource temporarily unavailable", "Another process uses the same data folder: choose another one with --dir."),
    ("too many colons in address", "An IPv6 address has brackets here: [::1]."),
    ("no space left on device", "The disk is full: choose a folder on another one with --dir."),
)


def ended(command: Command, code: int, environ: Mapping[str, str], *, starting: bool) -> str:
    """A program ended on its own."""
    how = f"with exit code {code}"
    if code < 0:
        how = f"by signal {_signal_name(-code)}" + (" (out of memory?)" if -code == getattr(signal, "SIGKILL", 9) else "")
    head = f"{command.name} ended {'while starting, ' if starting else ''}{how}."
    return _report(head, command, environ)


def not_ready(command: Command, seconds: float, environ: Mapping[str, str]) -> str:
    """A program runs, but did not become healthy in time."""
    return _report(f"{command.name} was not ready after {seconds:g} s: {command.health} gave no answer of it.", command, environ)


def log_end(path: Path, lines: int) -> list[str]:
    """The last lines of a log; none if there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 400 * max(lines, 50)))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-lines:] if lines > 0 else []


def _report(head: str, command: Command, environ: Mapping[str, str]) -> str:
    said = _what_it_said(command)
    lines = [f"{head} The end of its log, {command.log}:", *(f"  {line}" for line in said or ["(empty)"])]
    text = "\n".join(said)
    lines += _taken_ports(command, text) or _variables(command, text, environ)
    lines += [hint for pattern, hint in _HINTS if re.search(pattern, text)]
    return "\n".join(lines)


def _what_it_said(command: Command) -> list[str]:
    """The lines that tell: from the last that starts as an error, else those of that level, else the last ones."""
    lines = [line.rstrip() for line in log_end(Path(command.log), 60) if line.strip()]
    starts = [number for number, line in enumerate(lines) if _ERROR.match(line)]
    chosen = lines[starts[-1] :] if starts else [line for line in lines if _LEVEL.search(line)] or lines
    # Jaeger says its last words twice, the second time with the date before them.
    first = chosen[0].removeprefix("Error: ") if chosen else ""
    chosen = [*chosen[:1], *(line for line in chosen[1:] if not line.endswith(first))]
    return [line if len(line) <= _TOO_LONG else f"{line[:_TOO_LONG]}..." for line in chosen[-8:]]


def _taken_ports(command: Command, said: str) -> list[str]:
    if not _TAKEN.search(said):
        return []
    return [
        f"Port {text} was taken by {port_owner(int(text))} in the meantime: another one with {variable}, or `--free-ports`."
        for variable, text in command.ports.items()
        if number_of(text) and re.search(rf":{text}\b", said)
    ]


def _variables(command: Command, said: str, environ: Mapping[str, str]) -> list[str]:
    """The user's variables that the program reads: those that its words point to, or all of them."""
    read = [reading for file in command.files for reading in readings(Path(file))]
    set_by_user = [reading for reading in read if environ.get(reading.variable, "").strip()]
    wrong_ports = [each for each in set_by_user if each.variable in command.ports and number_of(command.ports[each.variable]) is None]
    by_value = [each for each in set_by_user if re.search(rf"(?<!\w){re.escape(environ[each.variable].strip())}(?!\w)", said)]
    by_key = [each for each in set_by_user if re.search(rf"\b{re.escape(each.key)}\b", said)]
    rule = ": a port is a number from 1 to 65535." if wrong_ports else "."
    if pointed := wrong_ports or by_value or by_key:
        return [place + rule for place in _places(pointed, environ)]
    return ["Of your environment it reads:", *(f"  {place}" for place in _places(set_by_user, environ))] if set_by_user else []


def _places(found: list[Reading], environ: Mapping[str, str]) -> list[str]:
    """A line for each variable and file, with all the places in it."""
    lines = []
    for variable, file in dict.fromkeys((each.variable, each.file) for each in found):
        places = [each for each in found if (each.variable, each.file) == (variable, file)]
        where = ", ".join(f"line {each.line} (`{each.key}`)" for each in places)
        default = places[0].default or "none"
        lines.append(f"{variable}={environ[variable].strip()} (default {default}) is read by {file.name}, {where}")
    return lines


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
