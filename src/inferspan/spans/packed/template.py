"""The OTLP bytes of a whole forward pass, prepared once and filled in for each pass that has the same structure.

Decoding calls the same modules in the same order, step after step: little more than ids, times and the number of the step differ. A
template stores the rest of each span as bytes. Filling it in takes a fixed number of C-level operations on columns (one read of random
bytes, strided copies, one join), however many spans there are: 0.2 us a span. Calls whose shapes differ, or that have statistics or a
failure, are changed one by one.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from inferspan.export import protobuf
from inferspan.records import ModuleColumns
from inferspan.spans import attributes

__all__ = ["PassHead", "SpanTemplate"]

MAX_TWO_BYTE_SIZE = 0x3FFF
"""Largest body whose length takes two bytes. The smallest, 0x80, is below the size of any module span."""
_LOW, _HIGH, _ID, _PARENT, _START, _END = 1, 2, 23, 33, 42, 51
"""Offsets of the columns in the fixed beginning of a span; see ``PassHead.chunk``."""
_UNCOUNTED = 3
"""Bytes that a span's length does not count: its own and the tag's."""
_FLAGS = struct.pack("<HI", 0x0185, 0x100)
"""``Span.flags`` with its tag: the parent is known to be local."""
DEVICE_TIME = protobuf.attributes(attributes.of_device_time(0.0))
"""The attribute of a device time of zero; the last eight bytes are the value."""


class PassHead(NamedTuple):
    """The values that all spans of one forward pass share."""

    trace_id: bytes
    state: bytes
    """Packed trace state, possibly empty."""
    step: bytes
    """Packed attribute with the number of the step, possibly empty."""
    offset: int
    """Added to the times of calls, gives nanoseconds since the epoch."""

    def chunk(self, *, timed: bool) -> bytes:
        """The fixed beginning of a span with empty columns; ``timed`` spans have a device time, at the end."""
        empty = bytes(8)
        ids = b"\x12\x00\x00\x0a\x10%b\x12\x08%b\x22\x08%b" % (self.trace_id, empty, empty)
        return ids + b"\x39%b\x41%b%b%b%b%b" % (empty, empty, _FLAGS, self.state, self.step, DEVICE_TIME if timed else b"")


def _put(target: bytearray, offset: int, stride: int, column: bytes) -> None:
    """Copy a column of eight bytes each into every ``stride`` bytes: eight strided copies, whatever its length."""
    for byte in range(8):
        target[offset + byte :: stride] = column[byte::8]


class SpanTemplate:
    """The bytes of some consecutive calls of a pass: few enough to be filled in without keeping other threads waiting.

    Args:
        first: place of the first call in the pass.
        above: for each call the place of its parent in the pass, or the number of all calls for the span above them.
        inputs: described inputs of each call.
        outputs: described outputs of each call.
        tails: the bytes after the fixed beginning of each span.
    """

    def __init__(self, first: int, above: Sequence[int], inputs: list[Any], outputs: list[Any], tails: list[bytes]) -> None:
        self.first, self.count = first, len(above)
        self.stop = first + self.count
        # One index more, because with a single index itemgetter returns no tuple.
        self._parents: Callable[[Sequence[bytes]], tuple[bytes, ...]] = itemgetter(*above, 0)
        self._inputs, self._outputs, self._tails = inputs, outputs, tails
        self._ones = int.from_bytes(struct.pack("<Q", 1) * self.count, "little")
        self._stride = 0
        self._low, self._high = bytearray(self.count), bytearray(self.count)
        self._long: dict[int, bytes] = {}

    def adapt(self, calls: ModuleColumns, tail: Callable[[int], bytes]) -> None:
        """Renew the tails of calls whose shapes have changed since the last pass; ``tail`` makes one, for a place in this template."""
        if calls.inputs == self._inputs and calls.outputs == self._outputs:
            return
        columns = zip(calls.inputs, self._inputs, calls.outputs, self._outputs, strict=True)
        changed = [place for place, (taken, before, given, last) in enumerate(columns) if taken is not before or given is not last]
        for place in changed:
            self._tails[place] = tail(place)
        self._inputs, self._outputs = calls.inputs, calls.outputs
        self._measure(changed)

    def fill(self, head: PassHead, calls: ModuleColumns, ids: Sequence[bytes], times: bytes | None, extra: Mapping[int, bytes]) -> bytes:
        """The framed spans of these calls.

        Args:
            head: the values that they share.
            calls: the calls of this template.
            ids: span ids of all calls of the pass, and of the span above them.
            times: a device time for each call, packed, or ``None``.
            extra: further bytes of spans, by place in this template.
        """
        chunk = head.chunk(timed=times is not None)
        stride, count = len(chunk), self.count
        if stride != self._stride:
            self._stride = stride
            self._measure(range(count))
        fixed = bytearray(chunk * count)
        fixed[_LOW::stride], fixed[_HIGH::stride] = self._low, self._high
        _put(fixed, _ID, stride, b"".join(ids[self.first : self.stop]))
        _put(fixed, _PARENT, stride, b"".join(self._parents(ids)[:-1]))
        _put(fixed, _START, stride, self._epoch(calls.starts, head.offset))
        _put(fixed, _END, stride, self._epoch(calls.ends, head.offset))
        if times is not None:
            _put(fixed, stride - 8, stride, times)
        pieces: list[bytes] = [b""] * (2 * count)
        pieces[0::2] = struct.unpack(f"{stride}s" * count, fixed)
        pieces[1::2] = self._tails
        for place, more in ({**self._long, **extra} if extra or self._long else extra).items():
            size = stride - _UNCOUNTED + len(self._tails[place]) + len(more)
            pieces[2 * place] = b"\x12" + protobuf.varint(size) + pieces[2 * place][_UNCOUNTED:]
            pieces[2 * place + 1] += more
        return b"".join(pieces)

    def _epoch(self, moments: list[int], offset: int) -> bytes:
        # One addition of two long numbers instead of one for each time. Each sum fits its 8 bytes, so none carries over.
        column = array("Q", moments)
        if sys.byteorder == "big":
            column.byteswap()
        return (int.from_bytes(column.tobytes(), "little") + self._ones * offset).to_bytes(8 * self.count, "little")

    def _measure(self, places: Iterable[int]) -> None:
        for place in places:
            size = self._stride - _UNCOUNTED + len(self._tails[place])
            self._low[place], self._high[place] = size & 0x7F | 0x80, size >> 7 & 0x7F
            self._long.pop(place, None)
            if size > MAX_TWO_BYTE_SIZE:
                self._long[place] = b""
