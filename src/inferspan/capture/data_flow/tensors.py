"""Where tensors come from: which module call, or input of the model, has made each of them, and through which operations.

A tensor is known by its identity, verified by a weak reference because identities are used again; a view also by its storage, of which a
weak reference is held as well. So nothing here keeps a tensor or its memory alive.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from inferspan.capture.modules.shapes import describe, parts_of

__all__ = ["Made", "Sources", "Tensors", "facts_of", "tensors_in"]

MOST_TENSORS = 64
"""Tensors of one call's arguments or result that are looked at."""
MOST_SOURCES = 64
"""Tensors of modules that one tensor is known to depend on."""
MOST_OPERATIONS = 8
"""Names of operations between two modules."""
_DEEPEST = 4
_MOST_ENTRIES = 1_024
VIEW, CHANGED = "view", "in place"


class Made:
    """A tensor that a module has returned, or that the model was given. It holds plain values only."""

    __slots__ = ("name", "number", "origin", "run", "tensor", "version")

    def __init__(self, origin: str, name: str, number: int, run: int, tensor: int, version: int | None) -> None:
        self.origin, self.name, self.number, self.run, self.tensor, self.version = origin, name, number, run, tensor, version


Sources = dict[Made, tuple[str, ...]]
"""The tensors that another one depends on, each with the operations between."""


def tensors_in(value: Any, left_out: Counter[str]) -> list[Tensor]:
    """The different tensors in arguments or a result, at most ``MOST_TENSORS``; ``left_out`` counts the others."""
    found: dict[int, Tensor] = {}
    _look(value, 0, found, left_out)
    return list(found.values())


def _look(value: Any, depth: int, found: dict[int, Tensor], left_out: Counter[str]) -> None:
    if isinstance(value, Tensor):
        if len(found) < MOST_TENSORS:
            found[id(value)] = value
        elif id(value) not in found:
            left_out["tensors of a call"] += 1
    elif depth < _DEEPEST:
        for part in parts_of(value, _MOST_ENTRIES):
            if part is not None:
                _look(part, depth + 1, found, left_out)


def facts_of(tensor: Tensor) -> tuple[tuple[int, ...] | None, str, int | None]:
    """Shape, dtype and bytes of the elements of a tensor; no shape and no bytes of one that has none, or whose sizes are symbols."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    described = describe(tensor)
    if not described:
        return None, dtype, None
    shape, size = tuple(described[0][0]), tensor.dtype.itemsize
    for extent in shape:
        size *= extent
    return shape, dtype, size


def _version(tensor: Tensor) -> int | None:
    """How often the tensor was written to; ``None`` for tensors of the inference mode, where that is not counted."""
    try:
        return int(tensor._version)
    except (RuntimeError, AttributeError):
        return None


def _storage(tensor: Any) -> Any:
    """The storage of a tensor, ``None`` if it has none of its own."""
    try:
        return tensor.untyped_storage() if tensor.layout is torch.strided and not tensor.is_nested else None
    except (RuntimeError, NotImplementedError):
        return None


class _Known:
    """What is known of one tensor; ``moment`` orders it among the writes to its storage."""

    __slots__ = ("moment", "reference", "sources")

    def __init__(self, reference: weakref.ref[Tensor], sources: Sources, moment: int) -> None:
        self.reference, self.sources, self.moment = reference, sources, moment


class _Shared:
    """What is known of a storage: what was made in it last, and what operations have written to it since."""

    __slots__ = ("reference", "sources", "writes")

    def __init__(self, reference: Any) -> None:
        self.reference = reference
        self.sources: Sources = {}
        self.writes: list[tuple[int, Sources]] = []


class Tensors:
    """The tensors of one request."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._shared: dict[int, _Shared] = {}
        self._moment = 0
        self._written = False
        self.left_out: Counter[str] = Counter()

    def sources(self, tensor: Tensor) -> Sources:
        """What a tensor depends on; empty if that is not known."""
        known = self._known.get(id(tensor))
        if known is not None and known.reference() is tensor:
            found = known.sources
            if self._written and (shared := self._of_storage(tensor)) is not None:
                found = _joined(found, (sources for moment, sources in shared.writes if moment > known.moment))
            return self._with_changes(tensor, found)
        shared = self._of_storage(tensor)
        if shared is None:
            return {}
        found = {made: via or (VIEW,) for made, via in shared.sources.items()}
        return self._with_changes(tensor, _joined(found, (sources for _, sources in shared.writes)))

    def exact(self, tensor: Tensor) -> Sources | None:
        """The same of a tensor that is known by its identity; ``None`` if it is not."""
        known = self._known.get(id(tensor))
        return known.sources if known is not None and known.reference() is tensor else None

    @staticmethod
    def _with_changes(tensor: Tensor, found: Sources) -> Sources:
        """Name the change of a tensor that was written to since it was made, where no operation was seen to do so."""
        version = _version(tensor) if found else None
        if version is None:
            return found
        changed = any(not via or via == (VIEW,) for made, via in found.items() if made.version not in (None, version))
        if not changed:
            return found
        return {
            made: (*via, CHANGED) if made.version not in (None, version) and (not via or via == (VIEW,)) else via
            for made, via in found.items()
        }

    def _of_storage(self, tensor: Tensor) -> _Shared | None:
        storage = _storage(tensor) if self._shared else None
        return None if storage is None else self._shared.get(storage._cdata)

    def _shared_of(self, tensor: Tensor) -> _Shared | None:
        """What is known of the memory of a tensor, from now on; ``None`` if it has none that can be known."""
        storage = _storage(tensor)
        if storage is None:
            return None
        shared = self._shared.get(storage._cdata)
        if shared is None:
            # While the weak reference is held, no other storage gets this address.
            shared = self._shared[storage._cdata] = _Shared(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        return shared

    def add(self, tensor: Tensor, made: Made) -> None:
        """A module has returned the tensor, or the model was given it."""
        made.version = _version(tensor)
        self._keep(tensor, {made: ()})
        shared = self._shared_of(tensor)
        if shared is None:
            return
        same = next(iter(shared.sources), None)
        if same is not None and (same.number, same.run, same.origin) == (made.number, made.run, made.origin) and made.origin == "module":
            shared.sources[made] = ()
        else:
            shared.sources = {made: ()}
        shared.writes.clear()

    def derive(self, tensor: Tensor, sources: Sources) -> None:
        """An operation has made the tensor out of others."""
        self._keep(tensor, sources)

    def write(self, tensor: Tensor, sources: Sources) -> None:
        """An operation has written to the tensor; others that share its memory have changed as well."""
        self._keep(tensor, sources)
        shared = self._shared_of(tensor)
        if shared is None:
            return
        shared.writes.append((self._moment, sources))
        self._written = True

    def _keep(self, tensor: Tensor, sources: Sources) -> None:
        self._moment += 1
        self._known[id(tensor)] = _Known(weakref.ref(tensor), sources, self._moment)

    def prune(self) -> None:
        """Forget what is gone; of what is left, several tensors of one module in earlier passes count as one."""
        self._known = {key: known for key, known in self._known.items() if known.reference() is not None}
        self._shared = {key: shared for key, shared in self._shared.items() if not shared.reference.expired()}
        for known in self._known.values():
            known.sources = _one_each(known.sources)
        for shared in self._shared.values():
            shared.sources = _one_each(shared.sources)
            joined = _joined({}, (sources for _, sources in shared.writes))
            shared.writes = [(self._moment, _one_each(joined))] if joined else []

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._shared.clear()
        self._written = False

    def union(self, tensors: Iterable[Tensor], operation: str) -> Sources:
        """The sources of the result of an operation on tensors."""
        found: Sources = {}
        for tensor in tensors:
            for made, via in (self._quick(tensor)).items():
                if made not in found:
                    if len(found) >= MOST_SOURCES:
                        self.left_out["sources of a tensor"] += 1
                        continue
                    found[made] = via if operation in via or len(via) >= MOST_OPERATIONS else (*via, operation)
        return found

    def _quick(self, tensor: Tensor) -> Sources:
        """``sources`` without a look at versions: operations are seen themselves."""
        known = self._known.get(id(tensor))
        if known is not None and not self._written and known.reference() is tensor:
            return known.sources
        return {} if known is None and type(tensor) is torch.nn.Parameter else self.sources(tensor)


def _joined(first: Sources, others: Iterator[Sources]) -> Sources:
    found = first
    for sources in others:
        if any(made not in found for made in sources):
            found = {**sources, **found} if len(found) + len(sources) <= MOST_SOURCES else found
    return found


def _one_each(sources: Sources) -> Sources:
    if len(sources) < 2:
        return sources
    found: dict[tuple[str, str], Made] = {}
    for made in sources:
        found[made.origin, made.name] = made
    return {made: sources[made] for made in found.values()}
