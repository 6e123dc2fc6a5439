"""Rank of this process in a distributed job, from what launchers put into the environment; nothing where there is no launcher."""

from __future__ import annotations

from collections.abc import Mapping

from . import semconv

__all__ = ["ranks"]

# Rank, rank on this host, number of processes, and the smallest number that means a distributed job. Slurm sets SLURM_NTASKS in a
# batch script as well, where only one process runs; the number of tasks of the step is set by srun alone.
_LAUNCHERS = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", 1),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", 2),
)

def ranks(environ: Mapping[str, str]) -> dict[str, int | None]:
    """Rank, rank on this host and number of ranks, by attribute name; ``None`` for what the launcher does not say."""
    for rank_name, local_name, size_name, smallest in _LAUNCHERS:
        rank, size = _number(environ.get(rank_name)), _number(environ.get(size_name))
        if rank is not None and size is not None and size >= smallest and rank < size:
            return {semconv.RANK: rank, semconv.LOCAL_RANK: _number(environ.get(local_name)), semconv.WORLD_SIZE: size}
    return {}


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isdecimal() and text.isascii() else None
