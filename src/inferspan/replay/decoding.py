"""OTLP JSON -> protobuf messages of the export services, driven by the descriptors of these messages.

In comes the decoded object of a line; out come messages and texts about the spans, metrics and log records that could not be read. One
of those costs itself only. Unknown fields are left out, as the specification asks; names of fields are taken in both spellings of
protobuf's JSON form, ids in hex.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped, unused-ignore]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["MESSAGES", "messages_of"]

MESSAGES: Mapping[str, Any] = {
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
}
_KEYS = {"traces": "resourceSpans", "metrics": "resourceMetrics", "logs": "resourceLogs"}
_ITEMS = {"spans": "span", "metrics": "metric", "log_records": "log record"}
_IDS = {"trace_id": 16, "span_id": 8, "parent_span_id": 8}
_DEEPEST = 60
"""Messages inside one another; receivers refuse a hundred."""
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_LONGEST_NUMBER = 40


def messages_of(line: Mapping[str, Any], complain: Callable[[str], None]) -> Iterator[tuple[str, Any]]:
    """The requests that a line of OTLP JSON holds.

    Args:
        line: the decoded object.
        complain: is called with a text about each item that cannot be read.

    Returns:
        Signal and message of each.
    """
    for signal, key in _KEYS.items():
        if not isinstance(line.get(key), list):
            continue
        kind = MESSAGES[signal]
        try:
            yield signal, kind(**_Reader(complain).message({key: line[key]}, kind.DESCRIPTOR, 0))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            complain(f"{key}: {_words(error)}")


class _Reader:
    """Reads the JSON form of one request into what the constructor of its message takes."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._seen = dict.fromkeys(_ITEMS, 0)

    def message(self, given: object, descriptor: Descriptor, depth: int) -> dict[str, Any]:
        """The fields of a message.

        Raises:
            ValueError: it is no object, or one of its fields cannot be read; the text names the field.
        """
        if not isinstance(given, dict):
            raise ValueError(f"{descriptor.name} is no object")
        if depth > _DEEPEST:
            raise ValueError("values are nested too deeply")
        fields = _fields(descriptor)
        found: dict[str, Any] = {}
        for key, value in given.items():
            field = fields.get(key)
            if field is None or value is None:
                continue
            name, read, inner, repeated, items = field
            if items is not None:
                found[name] = self._items(value, inner, name, items, depth)
            elif not repeated:
                found[name] = self.message(value, inner, depth + 1) if read is None else _checked(read, value, key)
            elif not isinstance(value, list):
                raise ValueError(f"{key} is no list")
            elif read is None:
                found[name] = [self.message(item, inner, depth + 1) for item in value]
            else:
                found[name] = [_checked(read, item, key) for item in value]
        return found

    def _items(self, values: object, inner: Descriptor, name: str, kind: str, depth: int) -> list[dict[str, Any]]:
        if not isinstance(values, list):
            raise ValueError(f"the {kind}s are no list")
        found = []
        for value in values:
            self._seen[name] += 1
            try:
                item = self.message(value, inner, depth + 1)
                if name == "spans" and not (item.get("trace_id") and item.get("span_id")):
                    raise ValueError("it has no ids")
                found.append(item)
            except (ValueError, OverflowError, RecursionError) as error:
                self._complain(f"{kind} {self._seen[name]}: {_words(error)}")
        return found


def _words(error: Exception) -> str:
    return "values are nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]


def _checked(read: Callable[[Any], Any], value: object, key: str) -> Any:
    try:
        return read(value)
    except (ValueError, TypeError, OverflowError, binascii.Error):
        raise ValueError(f"{key} is not what it must be") from None


_Field = tuple[str, Callable[[Any], Any] | None, Any, bool, str | None]
_known: dict[str, dict[str, _Field]] = {}


def _fields(descriptor: Descriptor) -> dict[str, _Field]:
    """For each name of a field: its name, how a value is read, the message that it holds, whether it is repeated, what its items are."""
    known = _known.get(descriptor.full_name)
    if known is None:
        known = _known[descriptor.full_name] = {}
        for field in descriptor.fields:
            repeated = getattr(field, "is_repeated", None)
            repeated = field.label == FieldDescriptor.LABEL_REPEATED if repeated is None else bool(repeated)
            inner = field.message_type
            items = _ITEMS.get(field.name) if inner is not None and repeated and descriptor.name.startswith("Scope") else None
            entry = (field.name, None if inner is not None else _value_reader(field), inner, repeated, items)
            known[field.json_name] = known[field.name] = entry
    return known


def _value_reader(field: FieldDescriptor) -> Callable[[Any], Any]:
    kind = field.cpp_type
    if kind in _RANGES:
        return _whole(*_RANGES[kind])
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        names = {value.name: value.number for value in field.enum_type.values}
        whole = _whole(*_RANGES[FieldDescriptor.CPPTYPE_INT32])
        return lambda value: names[value] if isinstance(value, str) and value in names else whole(value)
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return _double
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return _boolean
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _id_of(_IDS[field.name]) if field.name in _IDS else _binary
    return _text


def _whole(least: int, most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if (isinstance(value, str) and len(value) <= _LONGEST_NUMBER) or (isinstance(value, float) and value.is_integer()):
            number = int(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            number = value
        else:
            raise ValueError
        if not least <= number <= most:
            raise ValueError
        return number

    return read


def _double(value: Any) -> float:
    if isinstance(value, bool) or (isinstance(value, str) and len(value) > _LONGEST_NUMBER):
        raise ValueError
    number = float(value)
    if isinstance(value, str) and math.isinf(number) and value.lstrip("-") != "Infinity":
        raise ValueError
    return number


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _id_of(size: int) -> Callable[[Any], bytes]:
    def read(value: Any) -> bytes:
        found = bytes.fromhex(value)
        if found and len(found) != size:
            raise ValueError
        return found if any(found) else b""

    return read


def _binary(value: Any) -> bytes:
    return base64.b64decode(value, validate=True)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate is no text for protobuf
