"""What the doctor finds: one fact, its state, and the fix if there is something to fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["OK", "PROBLEM", "WARNING", "Finding", "Look", "Topic", "note", "ok", "problem", "warning"]

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"


@dataclass(frozen=True)
class Finding:
    """A line of the result.

    ``state`` is ``ok``, ``note`` (nothing to judge), ``warning`` (works, with something missing) or ``problem`` (does not work); the last
    two have a ``fix``.
    """

    name: str
    value: str
    state: str = NOTE
    fix: str = ""
    source: str = ""
    """Where a value comes from."""

    def plain(self) -> dict[str, str]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True)
class Look:
    """What topics look at.

    ``environ`` is that of the program, ``outside`` that of the doctor, ``program`` the file that the command runs, ``started_by`` the
    launcher (``inferspan run``, ``opentelemetry-instrument``) or nothing.
    """

    environ: Mapping[str, str]
    outside: Mapping[str, str]
    program: str | None = None
    name: str | None = None
    """Of the program, as a service is called that has no other name."""
    started_by: str = ""
    command: bool = False
    send: bool = True
    seconds: float = 5.0
    shared: dict[str, Any] = field(default_factory=dict)
    """What one topic has found out for the next."""


Topic = Callable[[Look], Iterator[Finding]]


def ok(name: str, value: object, source: str = "") -> Finding:
    """Something that works."""
    return Finding(name, str(value), OK, source=source)


def note(name: str, value: object, source: str = "") -> Finding:
    """A fact."""
    return Finding(name, str(value), NOTE, source=source)


def warning(name: str, value: object, fix: str, source: str = "") -> Finding:
    """Something that is missing and that the rest does without."""
    return Finding(name, str(value), WARNING, fix, source)


def problem(name: str, value: object, fix: str, source: str = "") -> Finding:
    """Something that does not work."""
    return Finding(name, str(value), PROBLEM, fix, source)
