"""Which ranks run each request on a model together: those of tensor and pipeline parallelism, and not those that have data of their own.

In: a model and the setting ``ranks``. Out: a :class:`RankGroup`, or ``None``. Only names, meshes and types are looked
at, never values; nothing is sent before the first request.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch import nn

from inferspan.guard import contain, read_attribute

from .starts import Starts

__all__ = ["RankGroup", "group_of", "has_process_group"]

OF_DATA = ("dp", "ddp", "fsdp", "hsdp", "data", "replicate", "batch")
"""Beginnings of the names of those dimensions of a mesh along which ranks have requests of their own."""
PATIENCE = timedelta(seconds=2)
"""How long the store may take for an answer."""
_numbers: dict[str, int] = {}
"""Groups made so far, by what they have in common on all ranks."""


class RankGroup:
    """Ranks that run each request on a model together, as ``spans/ranks`` asks them.

    Args:
        members: ranks of the job, the one whose requests the others join first.
        own: the rank of this process.
        name: of the model, the same on all of them.
    """

    def __init__(self, members: tuple[int, ...], own: int, name: str) -> None:
        self.members = members
        self.first = own == members[0]
        common = f"inferspan/{'-'.join(map(str, members))}/{name}"
        number = _numbers[common] = _numbers.get(common, 0) + 1
        starts = Starts(_store, f"{common}/{number}")
        self.publish: Callable[[int, str], Callable[[int], None]] = starts.publish
        self.expect: Callable[[int], Callable[[float, int | None], str | None]] = starts.expect


def _store() -> Any:
    """A connection of our own to the store of the default process group, where torch can make one."""
    from torch.distributed import distributed_c10d

    store: Any = distributed_c10d._get_default_store()
    try:
        own = store.clone()
        own.set_timeout(PATIENCE)
    except (AttributeError, NotImplementedError, RuntimeError):
        return store  # torch before 2.8; its store may be used from several threads
    return own


def has_process_group() -> bool:
    """Whether the program has joined a process group."""
    # A torch without the package has no such function.
    joined = getattr(sys.modules.get("torch.distributed"), "is_initialized", None)
    return joined is not None and bool(joined())


def group_of(model: nn.Module, setting: str, known: RankGroup | None) -> RankGroup | None:
    """The ranks that run the requests on a model together, ``known`` if they still are the same.

    Args:
        model: without wrappers.
        setting: ``auto``, ``joined`` (all ranks of the job) or ``separate``.
        known: what was found before.
    """
    if setting == "separate" or not has_process_group():
        return None
    with contain("ranks"):
        distributed: Any = sys.modules["torch.distributed"]
        own = distributed.get_rank()
        members = tuple(range(distributed.get_world_size())) if setting == "joined" else _of_mesh(_mesh_of(model), own)
        if len(members) < 2 or own not in members:
            return None
        if known is not None and known.members == members:
            return known
        return RankGroup(members, own, type(model).__name__)
    return None


def _mesh_of(model: nn.Module) -> Any:
    """The mesh over which the weights of a model are divided: that of transformers, or that of its first divided parameter."""
    mesh = read_attribute(model, "_device_mesh")
    if mesh is not None:
        return mesh
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    if kind is None:
        return None
    found = next((parameter.device_mesh for parameter in model.parameters() if isinstance(parameter, kind)), None)
    sharded = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    unnamed = found is not None and not found.mesh_dim_names
    if unnamed and sharded is not None and any(issubclass(type(one), sharded) for one in model.modules()):
        return None  # FSDP2 divides weights too, of ranks with data of their own
    return found


def _of_mesh(mesh: Any, own: int) -> tuple[int, ...]:
    """Ranks of a mesh that have the same data as ``own``."""
    coordinate = None if mesh is None else mesh.get_coordinate()
    if coordinate is None:
        return ()
    # Without names the last dimension is that of tensor parallelism, by custom.
    names = mesh.mesh_dim_names or (*["data"] * (mesh.mesh.ndim - 1), "tp")
    ranks = mesh.mesh
    for dimension in reversed(range(len(names))):
        if names[dimension].lower().startswith(OF_DATA):
            ranks = ranks.select(dimension, coordinate[dimension])
    return tuple(ranks.flatten().tolist())
