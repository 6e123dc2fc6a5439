"""Replays files: reads, moves times if asked for, sends, and counts.

In come paths and clients; out comes an :class:`Outcome`. Nothing is held but the request that is being filled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inferspan.export.client.sending import Client
from inferspan.replay.messages import latest, shift
from inferspan.replay.reading import pieces
from inferspan.replay.sending import InVain, Sender, Totals

__all__ = ["Outcome", "Progress", "end_of", "replay"]

Progress = Callable[[Path, int, Totals], None]
"""Is called with the file, the bytes read of it, and what has been sent."""


@dataclass
class Outcome:
    """What a replay did."""

    totals: Totals
    damaged: int = 0
    """Lines, or parts of lines, that were not sent."""
    stopped: str = ""
    """Why the rest was not sent; empty if all was."""
    interrupted: bool = False
    """Whether Ctrl-C has ended it."""
    files: dict[str, int] = field(default_factory=dict)
    """Damaged lines by file."""


def end_of(files: Iterable[Path]) -> int:
    """The latest moment in recordings, in nanoseconds since the epoch; 0 if they hold none.

    Raises:
        SessionFileError: a file cannot be read.
    """
    return max((latest(piece.signal, piece.message) for file in files for piece in pieces(file, lambda place, why: None)), default=0)


def replay(
    files: Sequence[Path],
    clients: Mapping[str, Client],
    *,
    by: int = 0,
    patience: float = 30.0,
    damage: Callable[[Path, int, str], None],
    tell: Callable[[str], None],
    progress: Progress = lambda file, position, totals: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Send files, one after the other.

    Args:
        files: as ``pieces`` reads them.
        clients: by signal.
        by: nanoseconds by which all moments are moved.
        patience: seconds for which a request is tried again.
        damage: is called with file, line and reason for each line, or part of one, that cannot be read.
        tell: is called with reasons of the receiver.
        progress: is called after each line.
        sleep: waits for seconds.

    Raises:
        SessionFileError: a file cannot be read.
    """
    sender = Sender(clients, patience=patience, tell=tell, sleep=sleep)
    outcome = Outcome(sender.totals)
    try:
        for file in files:

            def damaged(place: int, why: str, file: Path = file) -> None:
                outcome.damaged += 1
                outcome.files[str(file)] = outcome.files.get(str(file), 0) + 1
                damage(file, place, why)

            for signal, message, position in pieces(file, damaged):
                if by:
                    shift(signal, message, by)
                sender.add(signal, message)
                progress(file, position, sender.totals)
        sender.finish()
    except InVain as failure:
        outcome.stopped = str(failure)
    except KeyboardInterrupt:
        outcome.interrupted = True
    return outcome
