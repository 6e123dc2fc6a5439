"""Attributes that the caller gives: ``inferspan.context(...)`` puts them on the requests inside it.

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


_ARGUMENTS = {semconv.CONVERSATION_ID: "conversation_id", semconv.USER_ID: "user_id"}
"""Arguments whose attributes have other names."""


def _checked(name: str, value: object) -> AttributeValue | None:
    plain = exportable(value)
    if plain is None and not all(isinstance(part, Real) for part in (value if isinstance(value, list | tuple) else (value,))):
        raise TypeError(f"inferspan.context({name}=...) takes text, numbers, booleans or a list of one of them, not {type(value).__name__}")
    return plain


def _typed(name: str, value: object, kind: type) -> None:
    """Raise if a named argument is not of the type that the conventions give its attribute."""
    if value is not None and not isinstance(value, kind):
        wanted = {str: "text", bool: "True or False"}[kind]
        raise TypeError(f"inferspan.context({name}=...) takes {wanted}, not {type(value).__name__}")


@contextmanager
def context(
    *,
    conversation_id: str | None = None,
    user_id: str | None = None,
    output_type: str | None = None,
    prompt_name: str | None = None,
    prompt_version: str | None = None,
    reasoning_level: str | None = None,
    conversation_compacted: bool | None = None,
    response_id: str | None = None,
    **attributes: AttributeValue | None,
) -> Iterator[None]:
    """Put what the caller knows on every request span that starts inside the block.

    Args:
        conversation_id: becomes ``gen_ai.conversation.id``.
        user_id: becomes ``user.id``.
        output_type: kind of output that was asked for, ``text``, ``json``, ``image`` or ``speech``; becomes ``gen_ai.output.type``.
        prompt_name: name of the prompt or template; becomes ``gen_ai.prompt.name``.
        prompt_version: its version; becomes ``gen_ai.prompt.version``.
        reasoning_level: how much reasoning was asked for, ``low`` for instance; becomes ``gen_ai.request.reasoning.level``.
        conversation_compacted: whether earlier turns were summarised; becomes ``gen_ai.conversation.compacted``.
        response_id: id of the one answer inside the block; becomes ``gen_ai.response.id``, which is never invented.
        **attributes: further attributes, by their exact name (``**{"app.tenant": "blue"}`` for names with dots). Inner blocks
            add to and override outer ones; ``None`` takes an outer value away, and so does a number that cannot be sent (NaN, infinite,
            beyond 64 bits).

    Raises:
        TypeError: a value is no text, number, boolean or list of one of them, or a named one is not of the type above.
    """
    merged = dict(_attributes.get())
    texts = {
        "output_type": (semconv.OUTPUT_TYPE, output_type),
        "prompt_name": (semconv.PROMPT_NAME, prompt_name),
        "prompt_version": (semconv.PROMPT_VERSION, prompt_version),
        "reasoning_level": (semconv.REASONING_LEVEL, reasoning_level),
        "response_id": (semconv.RESPONSE_ID, response_id),
    }
    for name, (_, text) in texts.items():
        _typed(name, text, str)
    _typed("conversation_compacted", conversation_compacted, bool)
    named: dict[str, AttributeValue | None] = {
        semconv.CONVERSATION_ID: conversation_id,
        semconv.USER_ID: user_id,
        semconv.CONVERSATION_COMPACTED: conversation_compacted,
        **dict(texts.values()),
    }
    for name, value in {**{key: one for key, one in named.items() if one is not None}, **attributes}.items():
        checked = None if value is None else _checked(_ARGUMENTS.get(name, name), value)
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
