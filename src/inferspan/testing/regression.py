"""A gate as an assertion: two recordings -> nothing, or an exception with the table of what became slower."""

from __future__ import annotations

import os
from pathlib import Path

from inferspan.diff.compare import REGRESSION, UNDECIDED, Comparison, DiffError, compare
from inferspan.diff.text import text_lines
from inferspan.report.files import session_files
from inferspan.report.session import Session, SessionFileError, read_sessions

from .recording import Recording

__all__ = ["CannotJudge", "assert_no_regression"]

Source = Recording | str | os.PathLike[str]


class CannotJudge(Exception):
    """The recordings do not tell whether there is a regression: too few requests, too much noise, other models or machines."""


def assert_no_regression(base: Source, new: Source, *, gate: float | str = "3%") -> Comparison:
    """Compare two recordings as ``inferspan diff --gate`` does.

    Args:
        base: a recording, or the path of a session file or of a folder of them.
        new: what is compared with it. Record both in turns, on one machine.
        gate: slow-down to look for, ``"3%"`` or 0.03.

    Returns:
        The comparison.

    Raises:
        AssertionError: something became slower, or takes more memory or energy; the message is the table.
        CannotJudge: the recordings do not tell.
        ValueError: the gate is no share above 0.
    """
    share = _share(gate)
    try:
        found = compare(_session(base), _session(new), gate=share)
    except (DiffError, SessionFileError) as error:
        raise CannotJudge(str(error)) from None
    if found.verdict == REGRESSION:
        raise AssertionError("\n".join(text_lines(found)))
    if found.verdict == UNDECIDED:
        raise CannotJudge("\n".join(text_lines(found)))
    return found


def _session(source: Source) -> Session:
    return source.session() if isinstance(source, Recording) else read_sessions(session_files([Path(source)]))


def _share(gate: float | str) -> float:
    if isinstance(gate, str):
        text = gate.strip()
        try:
            return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            raise ValueError(f"gate={gate!r} is not a share such as '3%' or 0.03") from None
    return gate
