"""Facts of the files of a checkpoint: names without their folders, sizes, and what the headers of safetensors say of the tensors.

Only sizes and headers are read. A file that cannot be read leaves out what it would have said.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from inferspan import semconv
from inferspan.records import AttributeValue

__all__ = ["checkpoint_facts", "files_among"]

MOST_NAMES = 32
LARGEST_HEADER = 100 << 20
"""Bytes that the format allows a header to have."""
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip


def files_among(values: Iterable[Any]) -> list[str]:
    """The files that are named by some arguments, alone or in lists."""
    found: list[str] = []
    for value in values:
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, str | os.PathLike) and os.path.isfile(one):
                found.append(os.fspath(one))
    return found


def _header(path: str) -> dict[str, Any] | None:
    """The header of a safetensors file: dtype, shape and place by tensor."""
    if not path.endswith(".safetensors"):
        return None
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size)) if size <= LARGEST_HEADER else None
    return header if isinstance(header, dict) else None


def checkpoint_facts(files: Sequence[str]) -> dict[str, AttributeValue]:
    """What is known of a checkpoint; empty without files.

    Args:
        files: paths of its files.
    """
    if not files:
        return {}
    facts: dict[str, AttributeValue] = {
        semconv.CHECKPOINT_FILES: tuple(os.path.basename(path) for path in files[:MOST_NAMES]),
        semconv.CHECKPOINT_SHARDS: len(files),
    }
    try:
        facts[semconv.CHECKPOINT_BYTES] = sum(os.path.getsize(path) for path in files)
        tensors, dtypes = 0, set()
        for path in files:
            header = _header(path)
            if header is None:
                return facts
            entries = [entry for name, entry in header.items() if name != "__metadata__"]
            tensors += len(entries)
            dtypes |= {str(entry["dtype"]) for entry in entries}
    except (OSError, ValueError, KeyError, TypeError):
        return facts
    facts[semconv.CHECKPOINT_TENSORS] = tensors
    facts[semconv.CHECKPOINT_DTYPES] = tuple(sorted(_DTYPES.get(dtype, dtype.lower()) for dtype in dtypes))
    return facts
