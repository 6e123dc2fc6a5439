"""Values that every exporter can send: values of callers, exceptions and configurations are converted or left out.

In: any attribute value. Out: exactly ``bool``, ``int`` (64 bits), finite ``float``, encodable ``str``, or a list
of one of them; ``None`` for a value that cannot be sent. One value that cannot be encoded would cost its whole batch.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from inferspan.guard import pass_on

from .records import AttributeValue
from .semconv import OBSERVABLE_UP_DOWN_COUNTER, Metric

__all__ = [
    "AttributeLimits", "add_event_within_limits", "count_dropped", "count_limit", "exportable", "exportable_attributes",
    "exportable_or_text", "exportable_reading", "exportable_text", "most_important", "number_in",
    "set_within_limits", "shape_attributes", "start_within_limits",
]  # fmt: skip

_INT64 = 2**63
LONGEST_TEXT = 1024
"""Characters of a value that is sent as text because it has no other form."""
MOST_ENTRIES = 32
"""Entries of a collection in such a text."""
DEEPEST = 4
"""Collections inside collections in such a text."""


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


def _last_to_go(key: str) -> tuple[bool, bool]:
    """What a reader needs most comes first: whether it failed, then what every trace store of GenAI knows."""
    return not key.startswith("error."), not key.startswith("gen_ai.")


def most_important(attributes: Mapping[str, AttributeValue], most: int) -> dict[str, AttributeValue]:
    """At most so many of some attributes: those of errors, those of GenAI, then the others, each in their order."""
    kept = set(sorted(attributes, key=_last_to_go)[: max(0, most)])
    return {key: value for key, value in attributes.items() if key in kept}


def count_limit(owner: Any) -> int | None:
    """How many attributes a span may have, of a span or tracer of the SDK; ``None`` if there is no limit, or it is not known."""
    real = getattr(owner, "_tracer", owner)
    limit = getattr(getattr(real, "_limits", getattr(real, "_span_limits", None)), "max_span_attributes", None)
    return limit if isinstance(limit, int) else None


def count_dropped(owner: Any, count: int) -> None:
    """Count attributes that were left out, as the SDK counts those that it drops; nothing where it has no such count."""
    kept: Any = getattr(owner, "_attributes", None)
    if count > 0 and isinstance(getattr(kept, "dropped", None), int):
        kept.dropped += count


def start_within_limits(tracer: Any, name: str, attributes: Mapping[str, AttributeValue], **options: Any) -> Any:
    """Start a span of a tracer with no more attributes than it may have, and count the others: see ``set_within_limits``."""
    limit = count_limit(tracer)
    kept = attributes if limit is None or len(attributes) <= limit else most_important(attributes, limit)
    span = tracer.start_span(name, attributes=kept, **options)
    count_dropped(span, len(attributes) - len(kept))
    return span


def set_within_limits(span: Any, attributes: Mapping[str, AttributeValue]) -> None:
    """Set attributes on a span, no more than it may have: the SDK would drop the oldest, which say most, and log a line for each."""
    limit, present = count_limit(span), getattr(span, "_attributes", None)
    if limit is not None and isinstance(present, Mapping) and len(present) + len(attributes) > limit:
        new = {key: value for key, value in attributes.items() if key not in present}
        kept = most_important(new, limit - len(present))
        attributes = {key: value for key, value in attributes.items() if key in kept or key not in new}
        count_dropped(span, len(new) - len(kept))
    span.set_attributes(attributes)


def add_event_within_limits(span: Any, name: str, attributes: Mapping[str, AttributeValue], time_ns: int) -> None:
    """Add an event to a span, with the first of its attributes if it may not have all: the SDK would keep the last and log the others."""
    limit = getattr(getattr(span, "_limits", None), "max_event_attributes", None)
    kept = dict(list(attributes.items())[:limit]) if isinstance(limit, int) else attributes
    span.add_event(name, kept, timestamp=time_ns)
    events = getattr(span, "events", ()) if len(kept) < len(attributes) else ()
    if events:
        count_dropped(events[-1], len(attributes) - len(kept))


def exportable_text(text: str) -> str:
    """``text`` as a plain ``str`` without lone surrogates, which have no UTF-8 form."""
    plain = str.__str__(text)
    return plain if plain.isascii() else plain.encode("utf-8", "replace").decode("utf-8")


def _plain(value: object) -> bool | int | float | str | None:
    if type(value) is int:  # not of a subclass; asking the abstract types takes longer than all else
        return value if -_INT64 <= value < _INT64 else None
    if type(value) is float:
        return value if math.isfinite(value) else None
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
    found: dict[str, AttributeValue] = {}
    for key, value in attributes.items():
        plain = exportable(value)
        if plain is not None:
            found[exportable_text(key)] = plain
    return found


def exportable_or_text(value: object) -> AttributeValue | None:
    """``value`` in a form that can be sent, as text where it has no other; ``None`` for ``None``.

    A tensor of one element on the CPU is its number. Others are described by shape and dtype: printing one would wait for its device.
    """
    if value is None:
        return None
    value = _number_of(value)
    plain = exportable(value)
    return exportable_text(_as_text(value, 0)[:LONGEST_TEXT]) if plain is None else plain


def number_in(value: object) -> int | float | None:
    """A finite number, also in a tensor of one element on the CPU; ``None`` of anything else."""
    with contextlib.suppress(Exception):  # of a tensor that raises whatever it is asked for
        plain = exportable(_number_of(value))
        if isinstance(plain, int | float) and not isinstance(plain, bool):
            return plain
    return None


def _number_of(value: Any) -> Any:
    """The number in a tensor or array of one element that is in the host's memory, else ``value``."""
    if not _is_array(value) or getattr(getattr(value, "device", None), "type", "cpu") != "cpu":
        return value
    try:
        return value.item()
    except Exception as error:  # of one with several elements, or without data
        pass_on(error)
        return value


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _as_text(value: Any, depth: int) -> str:
    if _is_array(value):
        sizes, kinds = "x".join(map(str, value.shape)) or "scalar", str(value.dtype).removeprefix("torch.")
        return f"{type(value).__name__}({sizes} {kinds})"
    if hasattr(value, "named_modules"):  # the text of a model has a line for each of its modules
        return type(value).__name__
    if not isinstance(value, Mapping | list | tuple | set | frozenset):
        return repr(value) if depth and isinstance(value, str) else str(value)
    if depth >= DEEPEST:
        return "..."
    entries = list(itertools.islice(value.items() if isinstance(value, Mapping) else value, MOST_ENTRIES))
    if isinstance(value, Mapping):
        parts = [f"{_as_text(key, depth + 1)}: {_as_text(item, depth + 1)}" for key, item in entries]
    else:
        parts = [_as_text(item, depth + 1) for item in entries]
    if len(value) > len(entries):
        parts.append("...")
    opening, closing = "()" if isinstance(value, tuple) else "[]" if isinstance(value, list) else "{}"
    return opening + ", ".join(parts) + closing


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


def exportable_reading(metric: Metric, value: float) -> int | float | None:
    """A reading of the machine in the type of its metric; ``None`` if no backend can store it: one would fail its whole batch."""
    if not math.isfinite(value) or abs(value) >= _INT64 or (value < 0 and metric.unit != "Cel"):
        return None
    whole = metric.instrument == OBSERVABLE_UP_DOWN_COUNTER or metric.unit == "By" or metric.unit.startswith("{")
    return int(value) if whole else float(value)
