"""Values that every exporter can send: values of callers, exceptions and configurations are converted or left out.

In: any attribute value. Out: exactly ``bool``, ``int`` (64 bits), finite ``float``, encodable ``str``, or a list
of one of them; ``None`` for a value that cannot be sent. One value that cannot be encoded would cost its whole batch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from .records import AttributeValue

__all__ = ["AttributeLimits", "exportable", "exportable_attributes", "exportable_text", "shape_attributes"]

_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class AttributeLimits:
    """How many attributes a span may have, and how many characters a text; ``None`` is no limit."""

    count: int | None
    length: int | None

    def apply(self, attributes: Mapping[str, AttributeValue]) -> tuple[dict[str, AttributeValue], int]:
        """The attributes that a span of the SDK would keep of these, and how many it would drop: those that were set first."""
        dropped = 0 if self.count is None else max(0, len(attributes) - self.count)
        kept = list(attributes.items())[dropped:]
        return {key: self._cut(value) for key, value in kept} if self.length is not None else dict(kept), dropped

    def _cut(self, value: AttributeValue) -> AttributeValue:
        if isinstance(value, str):
            return value[: self.length]
        if isinstance(value, list | tuple) and any(isinstance(item, str) for item in value):
            return tuple(item[: self.length] if isinstance(item, str) else item for item in value)
        return value


def exportable_text(text: str) -> str:
    """``text`` as a plain ``str`` without lone surrogates, which have no UTF-8 form."""
    plain = str.__str__(text)
    return plain if plain.isascii() else plain.encode("utf-8", "replace").decode("utf-8")


def _plain(value: object) -> bool | int | float | str | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return exportable_text(value)
    if isinstance(value, Integral):
        whole = int(value)
        return whole if -_INT64 <= whole < _INT64 else None
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else None
    return None


def _fits(value: list[Any]) -> bool:
    """Whether a list can be sent unchanged. Our own arrays of numbers can, and they are long."""
    kinds = set(map(type, value))
    if kinds == {int}:
        return bool(-_INT64 <= min(value) and max(value) < _INT64)
    return kinds == {float} and math.isfinite(sum(value))


def exportable(value: object) -> AttributeValue | None:
    """``value`` in a form that can be sent, or ``None``; a list with an item that cannot be sent is left out whole."""
    if not isinstance(value, list | tuple):
        return _plain(value)
    if not value:
        return []
    items = list(value)
    if _fits(items):
        return items
    plain = [_plain(item) for item in items]
    if None in plain or len({type(item) for item in plain}) > 1:
        return None
    return plain  # type: ignore[return-value]  # of one type, as checked above


def exportable_attributes(attributes: Mapping[str, object]) -> dict[str, AttributeValue]:
    """Those attributes that can be sent."""
    found = ((exportable_text(key), exportable(value)) for key, value in attributes.items())
    return {key: value for key, value in found if value is not None}


@functools.lru_cache(maxsize=4096)
def _shape_texts(described: tuple[tuple[Any, Any], ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Texts of (shape, dtype) pairs, ``1x12x4096`` and ``bfloat16``; cached, because the same shapes occur in every step."""
    sizes = tuple("x".join(map(str, shape)) or "scalar" for shape, _ in described)
    return sizes, tuple(str(dtype).removeprefix("torch.") for _, dtype in described)


def shape_attributes(described: tuple[tuple[Any, Any], ...], shapes: str, dtypes: str) -> dict[str, AttributeValue]:
    """Shapes as ``1x12x4096`` and dtypes as ``bfloat16`` under the given keys; no attributes for an empty description."""
    if not described:
        return {}
    sizes, kinds = _shape_texts(described)
    return {shapes: sizes, dtypes: kinds}
