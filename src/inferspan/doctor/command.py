"""Which Python runs a command, under which launcher, and how to run the doctor's probe instead of its program.

In come the words of a command and an environment; out comes a :class:`Command`. The program itself is never run. ``python``,
``inferspan run``, ``opentelemetry-instrument``, ``env``, assignments of variables and scripts that begin with ``#!`` and a Python are
understood, one inside another; anything else raises :class:`NotUnderstood`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Command", "NotUnderstood", "here", "understand"]

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON = re.compile(r"(python|pypy)[0-9.]*(\.exe)?")
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_RUN_WITH_VALUE = ("--config", "--trace-output", "--include", "--exclude")
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "uvicorn", "gunicorn", "celery")
_INSTRUMENT = "opentelemetry-instrument"


class NotUnderstood(Exception):
    """The command cannot be looked into; the text says what to give instead."""


@dataclass
class Command:
    """How to run the probe instead of a program."""

    prefix: list[str] = field(default_factory=list)
    """Words before ``-m inferspan.doctor.probe``."""
    environ: dict[str, str] = field(default_factory=dict)
    program: str | None = None
    """The file that it runs, if that is known."""
    name: str | None = None
    started_by: str = ""


def here(environ: Mapping[str, str]) -> Command:
    """This Python, with no program."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return Command([sys.executable, *flags], dict(environ))


def understand(words: Sequence[str], environ: Mapping[str, str]) -> Command:
    """Look into a command.

    Raises:
        NotUnderstood: see the class.
    """
    found = Command(environ=dict(environ))
    _add(list(words), found)
    return found


def _add(words: list[str], found: Command) -> None:
    while words and (_ASSIGNMENT.match(words[0]) or _is(words[0], "env")):
        word = words.pop(0)
        if "=" in word:
            name, _, value = word.partition("=")
            found.environ[name] = value
        elif words and words[0].startswith("-"):
            raise NotUnderstood(f"env {words[0]} is not looked into: write the variables before the command")
    if not words:
        raise NotUnderstood("no command follows: inferspan doctor -- python app.py")
    if words[0].endswith((".py", ".pyw")) and not os.access(words[0], os.X_OK):
        raise NotUnderstood(f"{words[0]} is not a command: did you mean inferspan doctor -- python {shlex.join(words)}")
    program = shutil.which(words[0], path=found.environ.get("PATH")) or (words[0] if Path(words[0]).is_file() else None)
    if program is None:
        raise NotUnderstood(f"{words[0]} is not found on PATH: {_install(words[0])}")
    if _is(words[0], "inferspan") and words[1:2] == ["run"]:
        _add_run([_python_of(program) or sys.executable, "-m", "inferspan"], words[1:], found)
    elif _is(words[0], _INSTRUMENT):
        _add_instrument(program, words[1:], found)
    elif _PYTHON.fullmatch(os.path.basename(words[0]).lower()):
        _add_python(program, words[1:], found)
    else:
        _add_script(program, words[1:], found)


def _install(name: str) -> str:
    if os.path.basename(name) == _INSTRUMENT:
        return "pip install 'inferspan[zero-code]' opentelemetry-distro"
    return "check its name, or activate the environment that it is in"


def _is(word: str, name: str) -> bool:
    return os.path.basename(word).removesuffix(".exe") == name


def _python_of(script: str) -> str | None:
    """The Python in the first line of a script."""
    try:
        with open(script, "rb") as file:
            first = file.readline(1024).decode("utf-8", "replace")
    except OSError:
        return None
    if not first.startswith("#!"):
        return None
    parts = first[2:].split()
    if parts and os.path.basename(parts[0]) == "env":
        parts = [part for part in parts[1:] if not part.startswith("-")]
    if parts and _PYTHON.fullmatch(os.path.basename(parts[0]).lower()):
        return shutil.which(parts[0])
    return None


def _add_script(program: str, words: list[str], found: Command) -> None:
    python = _python_of(program)
    if python is None:
        raise NotUnderstood(
            f"doctor cannot look into {os.path.basename(program)}, which is no Python program: give the command that starts Python"
        )
    found.prefix.append(python)
    found.name = Path(program).stem
    _add_application(words, found)
    if found.program is None and b"inferspan" in Path(program).read_bytes()[:1_000_000]:
        found.program = program


def _add_application(words: list[str], found: Command) -> None:
    """The file that a launcher or a server runs: the first that is one (``train.py``), or that of ``module:app``."""
    for word in words:
        if word.endswith(".py") and Path(word).is_file():
            found.program, found.name = word, _stem(word)
            return
        if re.fullmatch(r"[A-Za-z_][\w.]*:[\w.()]+", word):
            path = Path(*word.partition(":")[0].split(".")).with_suffix(".py")
            if path.is_file():
                found.program = str(path)
                return


def _add_python(program: str, words: list[str], found: Command) -> None:
    found.prefix.append(program)
    while words:
        word = words.pop(0)
        if word in ("-m", "-c"):
            if not words:
                raise NotUnderstood(f"python {word} needs an argument")
            _add_module(words[0], words[1:], found) if word == "-m" else None
            return
        if word in _WITH_VALUE and words:
            found.prefix += [word, words.pop(0)]
        elif word.startswith("-") and word != "-":
            found.prefix.append(word)
        else:
            if word != "-":
                found.program, found.name = word, _stem(word)
            return


def _add_module(name: str, rest: list[str], found: Command) -> None:
    if name == "inferspan" and rest[:1] == ["run"]:
        python = found.prefix.pop()
        _add_run([*found.prefix, python, "-m", "inferspan"], rest, found, replace=True)
        return
    found.name = name.removesuffix(".__main__")
    if name in _LAUNCHERS:
        _add_application(rest, found)
        return
    spec = None
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        pass
    # Only a file beside the caller: what this Python finds elsewhere may not be what that Python finds.
    if spec is not None and spec.origin and Path(spec.origin).parent in (Path.cwd(), Path.cwd() / name):
        path = Path(spec.origin)
        found.program = str(path.with_name("__main__.py") if path.name == "__init__.py" else path)


def _add_run(start: list[str], words: list[str], found: Command, *, replace: bool = False) -> None:
    """``inferspan run`` with its options; the probe is the module that it runs."""
    if replace:
        found.prefix = []
    found.prefix += [*start, words.pop(0)]
    found.started_by = "inferspan run"
    while words:
        word = words.pop(0)
        if word == "-m" or not word.startswith("-"):
            if word == "-m":
                found.name = words[0] if words else None
            else:
                found.program, found.name = word, _stem(word)
            return
        found.prefix.append(word)
        if word in _RUN_WITH_VALUE and words:
            found.prefix.append(words.pop(0))
    raise NotUnderstood("inferspan run needs a program: inferspan doctor -- inferspan run app.py")


def _add_instrument(program: str, words: list[str], found: Command) -> None:
    """``opentelemetry-instrument``: each of its options has a value."""
    found.prefix.append(program)
    while words and words[0].startswith("-"):
        word = words.pop(0)
        found.prefix.append(word)
        if "=" not in word and words:
            found.prefix.append(words.pop(0))
    if not words:
        raise NotUnderstood("opentelemetry-instrument needs a command: inferspan doctor -- opentelemetry-instrument python app.py")
    _add(words, found)
    found.started_by = found.started_by or _INSTRUMENT


def _stem(path: str) -> str:
    return Path(path).stem if Path(path).stem != "__main__" else Path(path).absolute().parent.name
