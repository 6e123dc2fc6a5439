"""Messages of the export services, whichever signal they are of: their items, their times, and their halves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["count", "halves", "latest", "shift"]

_ITEMS = ("spans", "metrics", "log_records")
_DATA = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
_LAST_MOMENT = 2**64 - 1


def _parts(message: Any, *names: str) -> Any:
    """The list of a message that has one of these names."""
    return next(getattr(message, name) for name in names if name in message.DESCRIPTOR.fields_by_name)


def _resources(message: Any) -> Any:
    return _parts(message, "resource_spans", "resource_metrics", "resource_logs")


def _scopes(resource: Any) -> Any:
    return _parts(resource, "scope_spans", "scope_metrics", "scope_logs")


def _points(metric: Any) -> Any:
    kind = metric.WhichOneof("data")
    return getattr(metric, kind).data_points if kind in _DATA else ()


def _items(message: Any) -> Iterator[Any]:
    for resource in _resources(message):
        for scope in _scopes(resource):
            yield from _parts(scope, *_ITEMS)


def count(signal: str, message: Any) -> int:
    """Spans, data points or log records in a message: what a receiver counts when it refuses some."""
    if signal == "metrics":
        return sum(len(_points(metric)) for metric in _items(message))
    return sum(1 for _ in _items(message))


def _times(signal: str, message: Any) -> Iterator[tuple[Any, str]]:
    """Each field of a message that holds a moment: its owner and its name."""
    for item in _items(message):
        if signal == "traces":
            yield item, "start_time_unix_nano"
            yield item, "end_time_unix_nano"
            for event in item.events:
                yield event, "time_unix_nano"
        elif signal == "logs":
            yield item, "time_unix_nano"
            yield item, "observed_time_unix_nano"
        else:
            for point in _points(item):
                yield point, "start_time_unix_nano"
                yield point, "time_unix_nano"
                for exemplar in getattr(point, "exemplars", ()):
                    yield exemplar, "time_unix_nano"


def latest(signal: str, message: Any) -> int:
    """The latest moment in a message, in nanoseconds since the epoch; 0 if there is none."""
    return max((getattr(owner, name) for owner, name in _times(signal, message)), default=0)


def shift(signal: str, message: Any, by: int) -> None:
    """Move all moments of a message by nanoseconds; one that is not known (0) stays so."""
    for owner, name in _times(signal, message):
        moment = getattr(owner, name)
        if moment:
            setattr(owner, name, min(max(moment + by, 1), _LAST_MOMENT))


def halves(message: Any) -> tuple[Any, Any] | None:
    """Two messages with half of the items each; ``None`` if there is only one item."""
    size = len(_divided(message))
    if size < 2:
        return None
    first, second = type(message)(), type(message)()
    first.CopyFrom(message)
    second.CopyFrom(message)
    del _divided(first)[size // 2 :]
    del _divided(second)[: size // 2]
    return first, second


def _divided(message: Any) -> Any:
    """The outermost list of a message that has not exactly one element."""
    level: Any = _resources(message)
    if len(level) == 1:
        level = _scopes(level[0])
        if len(level) == 1:
            level = _parts(level[0], *_ITEMS)
            if len(level) == 1 and level[0].DESCRIPTOR.name == "Metric":
                level = _points(level[0])
    return level
