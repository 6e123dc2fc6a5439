"""The shortest ignore list with which a model can be traced, found by trying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from .errors import Place, TraceError
from .selection import Selection, inside, select

_MOST_TRIES = 40
Try = Callable[[tuple[str, ...]], "TraceError | None"]


@dataclass(frozen=True)
class Proposal:
    """What a search found.

    ``ignore`` is a list that has been tried and works, None if there is none; ``needless`` are given entries that are not needed;
    ``needed`` are entries without which tracing fails, which was tried; ``note`` says why there is none.
    """

    ignore: tuple[str, ...] | None
    needless: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    note: str = ""
    tries: int = 0


def _holds_target(path: str, selection: Selection) -> bool:
    return any(inside(target, path) for target in selection.targets)


def _candidate(where: Place | None, added: dict[str, tuple[str | None, int | None]], selection: Selection) -> tuple[str | None, str]:
    """The innermost module around a break that is not ignored yet and holds no target; a common parent of two breaks in one line.

    None if there is none; the text is then the module that holds targets.
    """
    away = (*added, *selection.ignored_paths)
    for path in reversed(where.modules if where else ()):
        if any(inside(path, other) for other in away):
            continue
        if path == "" or _holds_target(path, selection):
            return None, path
        twins = [other for other, line in added.items() if where and line == (where.file, where.line) and line[0] is not None]
        if twins and where:
            parents = [parent for parent in where.modules if parent and inside(path, parent) and inside(twins[0], parent)]
            shared = [parent for parent in parents if not _holds_target(parent, selection)]
            return shared[-1] if shared else path, ""
        return path, ""
    return None, ""


def search(model: nn.Module, targets: tuple[str, ...] | None, ignore: tuple[str, ...], first: TraceError, attempt: Try) -> Proposal:
    """Look for an ignore list that makes a trace work, and drop what it does not need.

    Args:
        model: whose modules the paths name.
        targets: as given to ``trace``; they stay as they are.
        ignore: as given to ``trace``.
        first: how the trace failed with ``ignore``.
        attempt: traces with an ignore list; the failure, or None if it worked.
    """
    selection = select(model, targets, ignore, warn=False)
    error: TraceError | None = first
    added: dict[str, tuple[str | None, int | None]] = {}
    tries = 0
    while error is not None:
        candidate, holder = _candidate(error.where, added, selection)
        if candidate is None:
            return Proposal(None, note=_why_none(error, holder), tries=tries)
        if tries >= _MOST_TRIES:
            return Proposal(None, note=f"no list was found in {tries} tries", tries=tries)
        added = {path: line for path, line in added.items() if not inside(path, candidate)}
        added[candidate] = (error.where.file, error.where.line) if error.where else (None, None)
        tries += 1
        error = attempt((*ignore, *added))
    entries, needed = (*ignore, *added), []
    wanted = select(model, targets, entries, warn=False).targets
    for entry in entries if len(entries) > 1 else ():
        fewer = tuple(other for other in entries if other != entry)
        if select(model, targets, fewer, warn=False).targets != wanted:
            continue
        tries += 1
        if attempt(fewer) is None:
            entries = fewer
        else:
            needed.append(entry)
    needless = tuple(entry for entry in ignore if entry not in entries)
    return Proposal(entries, needless, tuple(needed) if len(entries) > 1 else entries, "", tries)


def _why_none(error: TraceError, holder: str) -> str:
    where = error.where
    if where is None:
        return "the failure has no place in the model, so no ignore list can be proposed"
    name = f"the module {holder!r}, which" if holder else "the model's own forward, which"
    function = f": rewrite {where.function} ({where.file}:{where.line})" if where.function else ""
    return f"no ignore list can help: the failure is in {name} holds the targets{function}"
