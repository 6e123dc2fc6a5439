"""Rank of this process in a distributed job, from the launcher's environment variables, and paths that have it in them."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping

from . import semconv
from .setting_checks import PLACES, shown, warn_once

__all__ = ["filled", "ranks"]

# Rank, rank on this host, number of processes, and the smallest number that means a distributed job. Slurm sets SLURM_NTASKS in a
# batch script as well, where only one process runs; the number of tasks of the step is set by srun alone.
_LAUNCHERS = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", 1),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", 2),
)

_DIGITS = 18
"""Digits that a number of ours may have: with 18 it fits into the 64 bits of an attribute."""


def ranks(environ: Mapping[str, str]) -> dict[str, int | None]:
    """Rank, rank on this host and number of ranks, by attribute name; ``None`` where the launcher does not set it.

    Where a launcher has set rank and size and one of them cannot be used, that is a warning.
    """
    for rank_name, local_name, size_name, smallest in _LAUNCHERS:
        rank, size = _number(environ.get(rank_name)), _number(environ.get(size_name))
        if rank is not None and size is not None and size >= smallest and rank < size:
            local, text = _number(environ.get(local_name)), environ.get(local_name, "").strip()
            if text and local is None:
                warn_once("%s=%s is ignored: it must be a whole number", local_name, shown(text))
            return {semconv.RANK: rank, semconv.LOCAL_RANK: local, semconv.WORLD_SIZE: size}
        if size is not None and size < smallest:
            continue
        _warn_of_unusable(environ, rank_name, size_name)
    return {}


def _warn_of_unusable(environ: Mapping[str, str], rank_name: str, size_name: str) -> None:
    texts = {name: environ.get(name, "").strip() for name in (rank_name, size_name)}
    if not all(texts.values()):
        return  # both names are common words: one of them alone is not a launcher's
    wrong = [name for name, text in texts.items() if _number(text) is None] or [rank_name]
    for name in wrong:
        allowed = f"it must be a whole number below {size_name}" if name == rank_name else "it must be a whole number above zero"
        warn_once("%s=%s is ignored, spans and metrics carry no rank: %s", name, shown(texts[name]), allowed)


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= _DIGITS else None


def filled(path: str, environ: Mapping[str, str]) -> str:
    """A path with ``{rank}``, ``{local_rank}``, ``{world_size}``, ``{pid}`` and ``{host}`` filled in, as they are in this process now.

    Without a launcher the rank is 0 of 1. Other text in braces stays as it is.
    """
    if "{" not in path:
        return path
    found = ranks(environ)
    values = {
        "rank": found.get(semconv.RANK) or 0,
        "local_rank": found.get(semconv.LOCAL_RANK) or 0,
        "world_size": found.get(semconv.WORLD_SIZE) or 1,
        "pid": os.getpid(),
        "host": re.sub(r"[^\w.-]", "_", socket.gethostname()) or "host",
    }
    return re.sub(PLACES, lambda match: str(values[match[1]]), path)
