"""The caller's ids: what ``inferspan.context(...)`` puts on the requests inside it.

Values travel in a context variable, so they follow ``await`` and ``copy_context().run`` as trace context does. They become
attributes of request spans only, never of metrics: ids have no bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real

from . import semconv
from .attribute_values import exportable
from .records import AttributeValue

__all__ = ["caller_attributes", "context"]

_attributes: ContextVar[Mapping[str, AttributeValue]] = ContextVar("inferspan_caller", default={})  # noqa: B039 - never mutated


def _checked(name: str, value: object) -> AttributeValue | None:
    plain = exportable(value)
    if plain is None and not all(isinstance(part, Real) for part in (value if isinstance(value, list | tuple) else (value,))):
        raise TypeError(f"inferspan.context({name}=...) takes text, numbers, booleans or a list of one of them, not {type(value).__name__}")
    return plain


@contextmanager
def context(*, conversation_id: str | None = None, user_id: str | None = None, **attributes: AttributeValue | None) -> Iterator[None]:
    """Put ids of the caller's on every request span that starts inside the block.

    Args:
        conversation_id: becomes ``gen_ai.conversation.id``.
        user_id: becomes ``user.id``.
        **attributes: further attributes, by their exact name (``**{"app.tenant": "blue"}`` for names with dots). Inner blocks
            add to and override outer ones; ``None`` takes an outer value away, and so does a number that cannot be sent (NaN, infinite,
            beyond 64 bits).

    Raises:
        TypeError: a value is no text, number, boolean or list of one of them.
    """
    merged = dict(_attributes.get())
    named = {semconv.CONVERSATION_ID: conversation_id, semconv.USER_ID: user_id}
    for name, value in {**{key: one for key, one in named.items() if one is not None}, **attributes}.items():
        checked = None if value is None else _checked(name, value)
        if checked is None:
            merged.pop(name, None)
        else:
            merged[name] = checked
    token = _attributes.set(merged)
    try:
        yield
    finally:
        _attributes.reset(token)


def caller_attributes() -> Mapping[str, AttributeValue]:
    """Attributes that the blocks around the running code have set."""
    return _attributes.get()
