"""Comparing two recordings: a list of what differs, by scenario and place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Difference", "differences", "lines"]

_RELATIVE, _ABSOLUTE = 1e-4, 1e-5
"""Floats closer than this are equal: kernels may add in another order when memory is aligned in another way."""
_LONGEST = 160
_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it was.

    Args:
        scenario: its name.
        place: the path of a span, or the name of a metric with its attributes.
        what: the attribute or field.
        before: as text, ``-`` where there was nothing.
        after: the same.
    """

    scenario: str
    place: str
    what: str
    before: str
    after: str


def _text(value: Any) -> str:
    if value is _ABSENT:
        return "-"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(*pair) for pair in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """What differs between two recordings.

    Args:
        before: scenarios by name, as ``record`` has written them.
        after: the same.
    """
    found: list[Difference] = []
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            states = ["recorded" if name in side else "-" for side in (before, after)]
            found.append(Difference(name, "", "scenario", *states))
        else:
            found += _scenario(name, before[name], after[name])
    return found


def _scenario(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    deep = ("spans", "metrics", "logs")
    yield from _fields(name, "", _without(before, deep), _without(after, deep))
    yield from _spans(name, "", before.get("spans", []), after.get("spans", []))
    for metric, one, other in _pairs(before.get("metrics", {}), after.get("metrics", {})):
        yield from _metric(name, metric, one, other)
    for place, one, other in _pairs(_numbered(before.get("logs", []), "event"), _numbered(after.get("logs", []), "event")):
        yield from _whole_or_fields(name, f"log record {place}", "log record", one, other)


def _without(form: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in form.items() if key not in keys}


def _pairs(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for key in dict.fromkeys([*before, *after]):
        yield key, before.get(key, _ABSENT), after.get(key, _ABSENT)


def _numbered(forms: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """Forms by name, the second of a name as ``name[1]``."""
    seen: dict[str, int] = {}
    table = {}
    for form in forms:
        number = seen[form[key]] = seen.get(form[key], -1) + 1
        table[f"{form[key]}[{number}]" if number else str(form[key])] = form
    return table


def _fields(scenario: str, place: str, before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterator[Difference]:
    """Fields of two forms; attributes one by one, under their own name."""
    for key, one, other in _pairs(before, after):
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _fields(scenario, place, one, other, "" if key == "attributes" else f"{key}: ")
        elif one is _ABSENT or other is _ABSENT or not _same(one, other):
            yield Difference(scenario, place, prefix + key, _text(one), _text(other))


def _whole_or_fields(scenario: str, place: str, kind: str, one: Any, other: Any) -> Iterator[Difference]:
    """A form that is there once only is one difference."""
    if one is _ABSENT or other is _ABSENT:
        yield Difference(scenario, place, kind, *("-" if side is _ABSENT else "there" for side in (one, other)))
    else:
        yield from _fields(scenario, place, one, other)


def _spans(scenario: str, parent: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    one, other = _numbered(before, "name"), _numbered(after, "name")
    if [*one] != [*other] and sorted(one) == sorted(other):
        yield Difference(scenario, parent or "roots", "order", _text([*one]), _text([*other]))
    for name, left, right in _pairs(one, other):
        place = f"{parent} / {name}" if parent else name
        if left is _ABSENT or right is _ABSENT:
            yield Difference(scenario, place, "span", *("-" if side is _ABSENT else _size(side) for side in (left, right)))
            continue
        apart = ("children", "events", "links")  # compared one by one
        yield from _fields(scenario, place, _without(left, apart), _without(right, apart))
        for kind, key in (("events", "name"), ("links", "to")):
            for which, first, second in _pairs(_numbered(left.get(kind, []), key), _numbered(right.get(kind, []), key)):
                yield from _whole_or_fields(scenario, f"{place} ({kind[:-1]} {which})", kind[:-1], first, second)
        yield from _spans(scenario, place, left.get("children", []), right.get("children", []))


def _size(form: Mapping[str, Any]) -> str:
    below = _count(form) - 1
    return f"there, with {below} below" if below else "there"


def _count(form: Mapping[str, Any]) -> int:
    return 1 + sum(_count(child) for child in form.get("children", ()))


def _metric(scenario: str, name: str, one: Any, other: Any) -> Iterator[Difference]:
    if one is _ABSENT or other is _ABSENT:
        yield from _whole_or_fields(scenario, name, "metric", one, other)
        return
    yield from _fields(scenario, name, _without(one, ("points",)), _without(other, ("points",)))
    for attributes, left, right in _pairs(one["points"], other["points"]):
        yield from _whole_or_fields(scenario, f"{name} {attributes}", "data point", left, right)


def lines(found: Iterable[Difference], *, most: int = 200) -> list[str]:
    """Differences as text: those that are alike but for their place are one line, with the first place and the number of the others.

    Args:
        found: what ``differences`` has found.
        most: lines at most.
    """
    groups: dict[tuple[str, str, str, str], list[Difference]] = {}
    for one in found:
        last = one.place.rsplit(" / ", 1)[-1].split("[")[0]
        groups.setdefault((last, one.what, one.before, one.after), []).append(one)
    told = []
    for alike in groups.values():
        first = alike[0]
        places = len({one.scenario for one in alike})
        more = f"   (and {len(alike) - 1} alike, {places} scenario{'s' if places > 1 else ''} in all)" if len(alike) > 1 else ""
        told.append(f"{first.scenario}: {first.place or 'scenario'}: {first.what}: {first.before} -> {first.after}{more}")
    return told if len(told) <= most else [*told[:most], f"... and {len(told) - most} more lines"]
