"""Module calls packed straight into OTLP bytes, for the raw way out of our own provider.

A ``ReadableSpan`` costs 2 us to make and 28 us to encode, both under the interpreter lock that the model's thread needs. Packed from
parts that are kept per module a span costs 2 us; a pass with the structure of an earlier one is filled into its template, at 0.2 us a
span. What comes out is what the SDK's encoder would make of the same spans.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opentelemetry.trace import SpanContext

from inferspan import semconv
from inferspan.export import protobuf
from inferspan.records import Attributes, ModuleBatch, ModuleColumns, ModuleInfo

from .template import Head, Part

__all__ = ["ModulePacker"]

INTERNAL = 1
LOCAL_PARENT = 0x100
KEPT = 8192
KEPT_CALLS = 16_384
"""Calls whose templates are kept; one takes some 500 bytes."""
SLICE = 96
"""Spans packed one by one before others can have the interpreter: some 0.2 ms."""
PART = 1024
"""The same for spans of a template."""
WORTH = 16
"""Calls from which on a template is worth its fixed cost."""
Described = Callable[[Any], tuple[tuple[str, ...], tuple[str, ...]]]
_DEVICE = protobuf.attribute(semconv.DEVICE_TIME, 0.0)[:-8]
"""The attribute without its value, which is the last eight bytes."""
_double = struct.Struct("<d").pack


class _Structure:
    """Which modules were called in which order and nesting, and from the second time on the template of such passes."""

    def __init__(self, calls: ModuleColumns) -> None:
        self.numbers, self.parents, self.modules = calls.numbers, calls.parents, calls.modules
        self.parts: list[Part] | None = None

    def is_of(self, calls: ModuleColumns) -> bool:
        return calls.modules == self.modules and calls.numbers == self.numbers and calls.parents == self.parents


class ModulePacker:
    """Packs batches of module calls.

    Args:
        described: texts of shapes and dtypes.
    """

    def __init__(self, described: Described) -> None:
        self._described = described
        self._static: dict[tuple[ModuleInfo, str], bytes] = {}
        self._inputs: dict[Any, bytes] = {}
        self._outputs: dict[Any, bytes] = {}
        self._structures: OrderedDict[tuple[Any, ...], _Structure] = OrderedDict()
        self._kept_calls = 0

    def pack(self, context: SpanContext, batch: ModuleBatch, above: int) -> Iterator[tuple[bytes, int]]:
        """Pack the calls of one forward pass, in pieces of some 0.2 ms each, between which others can have the interpreter.

        Args:
            context: context of the request's span.
            batch: the calls.
            above: span id that calls without a parent in the batch hang under.

        Yields:
            Framed spans and their number.
        """
        calls = batch.calls.columns()
        count = len(calls.numbers)
        # One draw for all; an id of eight zero bytes would be invalid, and is as likely as any other.
        ids = [*struct.unpack("8s" * count, os.urandom(8 * count)), above.to_bytes(8, "big")]
        state = protobuf.text(b"\x1a", context.trace_state.to_header()) if context.trace_state else b""
        step = protobuf.attribute(semconv.STEP_INDEX, batch.step) if batch.step is not None else b""
        head = Head(context.trace_id.to_bytes(16, "big"), state, step, batch.offset)
        parts = self._template(calls, batch.phase) if count >= WORTH else None
        if parts is None:
            yield from self._one_by_one(head, batch, calls, ids)
        for part in parts or ():
            some = calls.cut(part.first, part.stop)
            part.adapt(some, lambda place, some=some: self._tail(some, place, batch.phase))  # type: ignore[misc]
            times, extra = self._late(batch, some)
            yield part.fill(head, some, ids, times, extra), part.count
        if batch.profiled:
            yield from self._profiled(head, batch, dict(zip(calls.numbers, ids, strict=False)), ids[-1])

    @staticmethod
    def _profiled(head: Head, batch: ModuleBatch, own: dict[int, bytes], above: bytes) -> Iterator[tuple[bytes, int]]:
        """Kernels and operations of a profiler window, of which no two passes have the same."""
        count = len(batch.profiled)
        for record, drawn in zip(batch.profiled, struct.unpack("8s" * count, os.urandom(8 * count)), strict=True):
            own[record.number] = drawn
        packed: list[bytes] = []
        for number, parent, name, start, end, attributes in batch.profiled:
            kept = protobuf.static_part(name, INTERNAL, {semconv.PHASE: batch.phase, **attributes})
            dynamic = head.step + kept
            packed.append(
                protobuf.span(
                    head.trace_id,
                    own[number],
                    own.get(parent, above),
                    LOCAL_PARENT,
                    "",
                    head.state,
                    start + head.offset,
                    end + head.offset,
                    dynamic,
                )
            )
            if len(packed) == SLICE:
                yield b"".join(packed), SLICE
                packed = []
        if packed:
            yield b"".join(packed), len(packed)

    def _one_by_one(self, head: Head, batch: ModuleBatch, calls: ModuleColumns, ids: list[bytes]) -> Iterator[tuple[bytes, int]]:
        above = _places(calls)
        packed: list[bytes] = []
        for place, (number, start, end) in enumerate(zip(calls.numbers, calls.starts, calls.ends, strict=True)):
            seconds = batch.device.get(number)
            dynamic = head.step + self._tail(calls, place, batch.phase)
            if seconds is not None:
                dynamic += _DEVICE + _double(seconds)
            dynamic += self._extra(batch.statistics, calls, place)
            own, parent = ids[place], ids[above[place]]
            packed.append(
                protobuf.span(head.trace_id, own, parent, LOCAL_PARENT, "", head.state, start + head.offset, end + head.offset, dynamic)
            )
            if len(packed) == SLICE:
                yield b"".join(packed), SLICE
                packed = []
        if packed:
            yield b"".join(packed), len(packed)

    # -------------------------------------------------------------------------------------------------------- templates
    def _template(self, calls: ModuleColumns, phase: str) -> list[Part] | None:
        """The template for passes of this structure, or ``None`` for the first of them: what comes once is not worth one."""
        key = (phase, len(calls.numbers), id(calls.modules[0]), id(calls.modules[-1]))
        known = self._structures.get(key)
        if known is None or not known.is_of(calls):
            self._remember(key, calls)
            return None
        self._structures.move_to_end(key)
        if known.parts is None:
            known.parts = self._build(calls, phase)
        return known.parts

    def _remember(self, key: tuple[Any, ...], calls: ModuleColumns) -> None:
        if key not in self._structures:
            self._kept_calls += key[1]
        self._structures[key] = _Structure(calls)
        self._structures.move_to_end(key)
        while self._kept_calls > KEPT_CALLS and len(self._structures) > 1:
            (_, count, *_), _ = self._structures.popitem(last=False)
            self._kept_calls -= count

    def _build(self, calls: ModuleColumns, phase: str) -> list[Part]:
        above = _places(calls)
        parts = []
        for first in range(0, len(above), PART):
            some = calls.cut(first, first + PART)
            tails = [self._tail(some, place, phase) for place in range(len(some.numbers))]
            parts.append(Part(first, above[first : first + PART], some.inputs, some.outputs, tails))
        return parts

    def _late(self, batch: ModuleBatch, calls: ModuleColumns) -> tuple[bytes | None, dict[int, bytes]]:
        """Device times of calls, if all have one, and what only some calls have, by place."""
        times: bytes | None = None
        extra: dict[int, bytes] = {}
        if batch.device:
            seconds = list(map(batch.device.get, calls.numbers))
            if None in seconds:
                extra = {place: _DEVICE + _double(value) for place, value in enumerate(seconds) if value is not None}
            else:
                times = struct.pack(f"<{len(seconds)}d", *seconds)
        count = len(calls.numbers)
        if calls.slots.count(None) < count or calls.failures.count(None) < count:
            for place in range(count):
                more = self._extra(batch.statistics, calls, place)
                if more:
                    extra[place] = extra.get(place, b"") + more
        return times, extra

    # ------------------------------------------------------------------------------------------------- parts of one span
    def _tail(self, calls: ModuleColumns, place: int, phase: str) -> bytes:
        """What is the same whenever a module is called with the same shapes."""
        info, taken, given = calls.modules[place], calls.inputs[place], calls.outputs[place]
        tail = self._static.get((info, phase)) or self._keep_static(info, phase)
        if taken:
            tail += self._inputs.get(taken) or self._keep_shapes(self._inputs, taken, semconv.INPUT_SHAPES, semconv.INPUT_DTYPES)
        if given:
            tail += self._outputs.get(given) or self._keep_shapes(self._outputs, given, semconv.OUTPUT_SHAPES, semconv.OUTPUT_DTYPES)
        return tail

    @staticmethod
    def _extra(statistics: Mapping[int, Attributes], calls: ModuleColumns, place: int) -> bytes:
        """What few calls have: statistics of the output, and a failure."""
        slot, failure = calls.slots[place], calls.failures[place]
        found = b""
        if slot is not None:
            for key, value in statistics.get(slot, {}).items():
                found += protobuf.attribute(key, value)
        if failure is not None:
            found += protobuf.attribute(semconv.ERROR_TYPE, failure) + protobuf.error_status(failure)
        return found

    def _keep_static(self, info: ModuleInfo, phase: str) -> bytes:
        attributes: dict[str, Any] = {semconv.PHASE: phase, semconv.MODULE_NAME: info.name, semconv.MODULE_TYPE: info.type}
        if info.layer_index is not None:
            attributes[semconv.MODULE_LAYER_INDEX] = info.layer_index
        if len(self._static) >= KEPT:
            self._static.clear()
        kept = self._static[info, phase] = protobuf.static_part(info.span_name, INTERNAL, attributes)
        return kept

    def _keep_shapes(self, known: dict[Any, bytes], described: Any, shapes_key: str, dtypes_key: str) -> bytes:
        shapes, dtypes = self._described(described)
        if len(known) >= KEPT:
            known.clear()
        kept = known[described] = protobuf.attribute(shapes_key, shapes) + protobuf.attribute(dtypes_key, dtypes)
        return kept


def _places(calls: ModuleColumns) -> list[int]:
    """For each call the place of its parent, or the number of calls where the span above them is the parent."""
    place_of = {number: place for place, number in enumerate(calls.numbers)}
    return [place_of.get(parent, len(place_of)) for parent in calls.parents]
