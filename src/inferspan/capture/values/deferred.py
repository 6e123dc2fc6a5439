"""Counts of small outputs on a device, many at a time: outputs are kept for some passes, and five operations count those of one shape.

In: outputs, and the modules that returned them. Out: for each output its counts, read at the end of the request. Nothing waits for the
device. Counting later is exact only if nothing writes to an output until then:

- The version of a kept tensor and its address must be the same when it is counted. If one differs, the call counts as left out, and outputs
  of this module are not kept any more.
- A kernel may write without raising the version. So outputs of a module are kept only after ``PROOF`` of them have been compared, bit by
  bit, with copies taken at the call when all are counted, in requests that have ended. Each request compares one more of them, of
  ``CHECKED`` modules in turn where C code keeps them, and if that one has changed, no kept output of this module counts.
- Outputs without a version (those made in inference mode), those of an autograd graph, and those in a large memory are never kept, and
  none is once torch.compile was used: its CUDA graphs depend on which of their outputs are alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from inferspan.capture.compile.state import has_compiled
from inferspan.capture.compile.transforms import is_capturing
from inferspan.capture.modules.device_rows import DeviceRows, Place
from inferspan.guard import contain

from .bits import counts_of_stack
from .kept import Keeper, KeptModules, Limits, NoKeeper, Note, notes_of, number_of_notes
from .staging import LARGEST_STAGED
from .unseen import hidden

__all__ = ["MOST_BYTES", "MOST_KEPT", "PROOF", "DeferredCounts", "Stability"]

PROOF = 4
"""Outputs of a module that must have stayed as they were before any is kept."""
MOST_BYTES = 4 << 20
"""Memory of the outputs that are kept at a time, and of those that are compared in one pass."""
LARGEST_KEPT = 256 << 10
"""Memory of one of them."""
MOST_KEPT = 512
"""Outputs that are kept at a time."""
CHECKED = 8
"""Modules whose outputs are compared in a request, of those that C code keeps outputs of."""
MOST_MODULES = 4_000
CHANGED, ELSEWHERE, FAILED = "changed in place", "on another stream", "failed"
_AT_ONCE = -1
_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_Key = tuple[int, int, int]
"""The caller's number for a shape and dtype, index of the device, and stream."""


_Kept = tuple[str, Any, Tensor, int, int]
"""Module, the caller's note, output, and its version and address at the call. If these are the same, nothing that raises versions has
written to the output, and nothing has replaced its values or freed its memory."""


class Stability:
    """Which modules of one model leave their outputs as they are for some passes; requests on several threads may share it."""

    def __init__(self) -> None:
        self._same: Counter[str] = Counter()
        self._changed: set[str] = set()

    def checks(self, module: str) -> int:
        """Outputs of a module to be compared in a request; -1 if its outputs are known to change, or too many modules are known."""
        if module in self._changed or (module not in self._same and len(self._same) >= MOST_MODULES):
            return _AT_ONCE
        return 1 if self.is_proven(module) else PROOF

    @property
    def changed(self) -> frozenset[str]:
        """Modules of which an output has changed."""
        return frozenset(self._changed)

    def is_proven(self, module: str) -> bool:
        """Whether enough of its outputs have stayed as they were, and none has changed."""
        return self._same[module] >= PROOF and module not in self._changed

    def note(self, module: str, *, same: bool) -> None:
        """An output of a module has been compared."""
        if not same:
            self._changed.add(module)
        elif self._same[module] < PROOF:
            self._same[module] += 1


class DeferredCounts:
    """The counts of one request.

    Args:
        stability: of the modules of the model.
        left_out: counts the outputs that could not be counted, by reason.
        modules: whose outputs C code may keep.
        most_calls: that are looked at.

    Attributes:
        keeper: keeps outputs in C, of modules of which one has been kept here; ``None`` without the extension.
        calls: the keeper, or what counts calls in its place.
    """

    def __init__(
        self, stability: Stability, left_out: Counter[str], modules: KeptModules | None = None, most_calls: int = 1 << 18
    ) -> None:
        self._stability = stability
        self._left_out = left_out
        self._allowed = not has_compiled()
        self._modules = KeptModules() if modules is None else modules
        # As they are now: others may be selected while the request runs.
        self._names, self._numbers = self._modules.names, self._modules.numbers
        limits = Limits(MOST_KEPT, MOST_BYTES, most_calls, LARGEST_STAGED, LARGEST_KEPT)
        self.keeper = self._modules.keeper(limits) if self._allowed else None
        self.calls: Any = NoKeeper() if self.keeper is None else self.keeper
        if self.keeper is not None:
            for module in (*stability.changed, *self._modules.in_turn(CHECKED)):
                self._refuse(module)
        self._noted: list[tuple[Place[int], bytes]] = []
        self._lost_notes: list[bytes] = []
        self._seen = (0, 0)
        """Outputs that were kept at the end of the last pass, and their bytes."""
        self._checks: dict[str, int] = {}
        """By module: outputs still to be compared; 0 if its outputs are kept, -1 if they are not."""
        self._kept: dict[_Key, list[_Kept]] = {}
        self._watched: dict[_Key, list[tuple[_Kept, Tensor]]] = {}
        """Outputs to be compared with their copies."""
        self._number = self._bytes = self._watched_bytes = 0
        self._counts: DeviceRows[int] = DeviceRows()
        self._same: DeviceRows[int] = DeviceRows()
        self._counted: list[tuple[Place[int], list[tuple[str, Any]]]] = []
        self._compared: list[tuple[Place[int], list[str]]] = []
        self._lost: list[Any] = []

    def keep(self, module: str, note: Any, tensor: Tensor, kind: int, index: int = -1, stream: int = 0) -> bool:
        """Keep an output of a device until the end of the pass.

        Args:
            module: that returned it.
            note: given back by ``read``.
            tensor: plain, not empty, of at most ``LARGEST_STAGED`` values.
            kind: a number for its shape and dtype.
            index: of its device, -1 for the memory of the host.
            stream: the current one of this device, which captures no graph.

        Returns:
            Whether it is kept; if not, it must be counted now.
        """
        checks = self._checks.get(module)
        if checks is None:
            checks = self._checks[module] = self._stability.checks(module) if self._allowed else _AT_ONCE
        if checks < 0 or tensor.requires_grad:
            return False
        memory = tensor.untyped_storage().nbytes()
        if not 0 < memory <= LARGEST_KEPT:
            return False
        try:
            version = tensor._version
        except RuntimeError:  # made in inference mode
            self._checks[module] = _AT_ONCE
            return False
        key = (kind, index, stream)
        kept = (module, note, tensor, version, tensor.data_ptr())
        if checks:
            self._watch(key, kept, memory, checks)
            return False
        self._bytes += memory
        self._number += 1
        if self._bytes + self.calls.bytes > MOST_BYTES or self._number > MOST_KEPT:
            self._count_all()
            self._bytes, self._number = memory, 1
        found = self._kept.get(key)
        if found is None:
            self._kept[key] = [kept]
        else:
            found.append(kept)
        return True

    def allow(self, number: int, tensor: Tensor, stream: int) -> None:
        """Keep outputs of a module in C from now on.

        Args:
            number: of the module.
            tensor: one of them, which is kept.
            stream: the current one of its device.
        """
        if self.keeper is not None:
            self.keeper.allow(number, tensor, stream)

    def _watch(self, key: _Key, kept: _Kept, memory: int, checks: int) -> None:
        """Compare an output at the end of the pass, no earlier, which is the last moment at which others are counted."""
        module, _, tensor, *_ = kept
        if self._watched_bytes + memory > MOST_BYTES:
            return
        self._watched_bytes += memory
        self._watched.setdefault(key, []).append((kept, tensor.clone()))
        self._checks[module] = checks - 1 or (0 if self._stability.is_proven(module) else _AT_ONCE)

    def end_pass(self) -> None:
        """A pass has ended: count what is kept if another one would fill the room."""
        (number, size), self._seen = self._seen, (self._number + self.calls.count, self._bytes + self.calls.bytes)
        full = 2 * self._seen[0] - number > MOST_KEPT or 2 * self._seen[1] - size > MOST_BYTES or 2 * self._watched_bytes > MOST_BYTES
        if full or (self._allowed and has_compiled()):
            self.flush()

    @hidden
    def flush(self, *, may_wait: bool = False) -> None:
        """Count what is kept, compare what is to be compared, and keep neither; may wait for a device whose current stream is another."""
        self._seen = (0, 0)
        if self._number or self.calls.count:
            self._count_all(may_wait=may_wait)
        if self._watched:
            watched, self._watched, self._watched_bytes = self._watched, {}, 0
            for key, pairs in watched.items():
                self._compare(key, pairs)
        if self._allowed and has_compiled():
            self._allowed, self._checks = False, dict.fromkeys(self._checks, _AT_ONCE)
            if self.keeper is not None:
                self.keeper.refuse()

    def _count_all(self, *, may_wait: bool = False) -> None:
        if self.keeper is not None and self.keeper.count:
            self._count_kept(self.keeper, may_wait=may_wait)
        groups, self._kept, self._number, self._bytes = self._kept, {}, 0, 0
        for key, kept in groups.items():
            if not _is_here(key, may_wait=may_wait):
                self._lose(kept, ELSEWHERE)
                continue
            same: list[_Kept] = []
            changed: list[_Kept] = []
            for one in kept:
                (same if _is_unchanged(one) else changed).append(one)
            self._lose(changed, CHANGED)
            if not same:
                continue
            place = None
            with contain("numerics watch"), torch.no_grad():
                found = counts_of_stack(torch.stack([one[2] for one in same]))
                place = self._counts.append(len(same), found)
            if place is None:
                self._lose(same, FAILED)
            else:
                self._counted.append((place, [(one[0], one[1]) for one in same]))

    def _count_kept(self, keeper: Keeper, *, may_wait: bool) -> None:
        """The same of what is kept in C."""
        groups, changed = keeper.take()
        here = _is_here((0, keeper.device, keeper.stream), may_wait=may_wait)
        self._lose_noted(changed, CHANGED)
        for tensors, notes in groups:
            place = None
            if here:
                with contain("numerics watch"), torch.no_grad():
                    place = self._counts.append(len(tensors), counts_of_stack(torch.stack(tensors)))
            if place is None:
                self._lose_noted(notes, FAILED if here else ELSEWHERE)
            else:
                self._noted.append((place, notes))

    def _lose_noted(self, notes: bytes, reason: str) -> None:
        if notes:
            self._left_out[reason] += number_of_notes(notes)
            self._lost_notes.append(notes)
        for note in notes_of(notes):
            self._change(self._names[note.module])

    def _lose(self, kept: list[_Kept], reason: str) -> None:
        """They cannot be counted any more, and no output of these modules is kept from now on."""
        if kept:
            self._left_out[reason] += len(kept)
        for one in kept:
            self._lost.append(one[1])
            self._change(one[0])

    def _change(self, module: str) -> None:
        self._checks[module] = _AT_ONCE
        self._stability.note(module, same=False)
        self._refuse(module)

    def _refuse(self, module: str) -> None:
        """Keep no more outputs of a module in C."""
        if self.keeper is not None and (number := self._numbers.get(module)) is not None:
            self.keeper.refuse(number)

    def _compare(self, key: _Key, pairs: list[tuple[_Kept, Tensor]]) -> None:
        """Launch the comparison of outputs of one shape with their copies."""
        here, same = _is_here(key), []
        for pair in pairs:
            if here and _is_unchanged(pair[0]):
                same.append(pair)
            else:
                self._change(pair[0][0])
        if same:
            whole = _WHOLE[pairs[0][1].element_size()]
            with contain("numerics watch"), torch.no_grad():
                now, then = torch.stack([one[2] for one, _ in same]), torch.stack([copy for _, copy in same])
                equal = (now.view(whole) == then.view(whole)).reshape(len(same), -1).all(1, keepdim=True)
                self._compared.append((self._same.append(len(same), equal), [one[0] for one, _ in same]))

    def read(self) -> Iterator[tuple[Any, tuple[int, int, int] | None]]:
        """Read what has been kept since the last time, which may wait for the device.

        Returns:
            For each output that was kept its note, and its numbers of NaN, Inf, and finite values near the limit; ``None`` if it could not
            be counted.
        """
        self.flush(may_wait=True)
        counted, self._counted = self._counted, []
        compared, self._compared = self._compared, []
        lost, self._lost = self._lost, []
        same = {group: rows.tolist() for group, rows in self._same.read().items()}
        noted, self._noted = self._noted, []
        lost_notes, self._lost_notes = self._lost_notes, []
        rows = self._counts.read()
        counts = {group: rows[group].tolist() for group in {place.group for place, _ in counted}}
        changed = set()
        for place, modules in compared:
            for module, (equal,) in zip(modules, same[place.group][place.order], strict=True):
                if equal:
                    self._stability.note(module, same=True)
                else:
                    changed.add(module)
                    self._change(module)
        for note in lost:
            yield note, None
        for notes in lost_notes:
            for one in notes_of(notes):
                yield self._note(one), None
        yield from self._read_noted(noted, rows, changed)
        for place, calls in counted:
            for (module, note), numbers in zip(calls, counts[place.group][place.order], strict=True):
                if module in changed:
                    self._left_out[CHANGED] += 1
                    yield note, None
                else:
                    high, nonfinite, nan = map(int, numbers)
                    yield note, (nan, nonfinite - nan, high - nonfinite)

    def _read_noted(
        self, noted: Sequence[tuple[Place[int], bytes]], rows: Mapping[Any, Tensor], changed: set[str]
    ) -> Iterator[tuple[Any, tuple[int, int, int] | None]]:
        """Of what was kept in C, which is much, only calls that have something to show, or whose module has changed."""
        showing: dict[Any, dict[int, set[int]]] = {}
        for place, notes in noted:
            if place.group not in showing:
                found = showing[place.group] = {}
                for order, row in rows[place.group][:, :, 0].nonzero().tolist():
                    found.setdefault(order, set()).add(row)
            some = showing[place.group].get(place.order, ())
            if not changed and not some:
                continue
            for row, one in enumerate(notes_of(notes)):
                if self._names[one.module] in changed:
                    self._left_out[CHANGED] += 1
                    yield self._note(one), None
                elif row in some:
                    high, nonfinite, nan = map(int, rows[place.group][place.order, row].tolist())
                    yield self._note(one), (nan, nonfinite - nan, high - nonfinite)

    def _note(self, note: Note) -> list[Any]:
        """A note of the keeper as the caller of ``keep`` makes one, with the number of the recorded call."""
        step = None if note.step < 0 else note.step
        return [self._names[note.module], step, note.call, note.time, note.elements, None, note.row]

    def counted(self) -> Iterator[tuple[str, int, int]]:
        """Module, number of calls, and values of all, of what was kept in C since the last time."""
        for number, calls, elements in () if self.keeper is None else self.keeper.counted():
            yield self._names[number], calls, elements

    def drop(self) -> None:
        """Keep nothing any more, and count none of it."""
        if self.keeper is not None:
            self.keeper.drop()
            self._modules.remember(self.keeper, self._names)
        self._kept, self._watched, self._number, self._bytes, self._watched_bytes = {}, {}, 0, 0, 0


def _is_unchanged(kept: _Kept) -> bool:
    """Whether an output has the version and the address that it had at the call."""
    _, _, tensor, version, address = kept
    return tensor._version == version and tensor.data_ptr() == address


def _is_here(key: _Key, *, may_wait: bool = False) -> bool:
    """Whether work that is launched now comes after what was on the stream of the call; that can be waited for."""
    _, index, stream = key
    if index < 0:
        return True
    if is_capturing():
        return False
    if _raw_stream(index) != stream and may_wait:
        torch.cuda.synchronize(index)
    return may_wait or bool(_raw_stream(index) == stream)
