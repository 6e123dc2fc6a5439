"""Write the model of the example with ONNX Runtime: a tiny language model with random weights, in the ONNX format."""

from __future__ import annotations

from pathlib import Path

import numpy

VOCABULARY, WIDTH = 64, 32


def _field(number: int, value: bytes | str | int) -> bytes:
    """One field of a protobuf message; the numbers are those of ``onnx.proto``."""
    if isinstance(value, int):
        return bytes([number << 3]) + _whole(value)
    raw = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2]) + _whole(len(raw)) + raw


def _whole(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _tensor(name: str, values: numpy.ndarray) -> bytes:
    kind = {"float32": 1, "int64": 7}[str(values.dtype)]
    return b"".join(_field(1, size) for size in values.shape) + _field(2, kind) + _field(8, name) + _field(9, values.tobytes())


def _node(operation: str, inputs: list[str], output: str) -> bytes:
    return b"".join(_field(1, name) for name in inputs) + _field(2, output) + _field(4, operation)


def _value(name: str, kind: int, *dimensions: str) -> bytes:
    shape = b"".join(_field(1, _field(2, dimension)) for dimension in dimensions)
    return _field(1, name) + _field(2, _field(1, _field(1, kind) + _field(2, shape)))


def write(path: str) -> None:
    """Write a model that maps ``ids`` [rows, positions] to ``logits`` [rows, positions, vocabulary], each from all positions so far."""
    random = numpy.random.default_rng(0)
    weights = {
        "embedding": random.normal(size=(VOCABULARY, WIDTH)).astype(numpy.float32),
        "axis": numpy.array([1], numpy.int64),
        "head": random.normal(size=(WIDTH, VOCABULARY)).astype(numpy.float32),
    }
    nodes = [_node("Gather", ["embedding", "ids"], "each"), _node("CumSum", ["each", "axis"], "sum"), _node("MatMul", ["sum", "head"], "logits")]
    graph = b"".join(_field(1, node) for node in nodes) + _field(2, "tiny")
    graph += b"".join(_field(5, _tensor(name, values)) for name, values in weights.items())
    graph += _field(11, _value("ids", 7, "rows", "positions")) + _field(12, _value("logits", 1, "rows", "positions", "vocabulary"))
    Path(path).write_bytes(_field(1, 8) + _field(7, graph) + _field(8, _field(2, 17)))
