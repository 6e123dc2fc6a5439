"""Tracer and logger of requests: those of the provider that was passed, else of the global one, looked up late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferspan import semconv
from inferspan.export import otlp
from inferspan.export.ids import adopt_ids
from inferspan.export.providers import without_unusable
from inferspan.guard import contain
from inferspan.version import version

__all__ = ["logger_source", "tracer_source"]


def tracer_source(provider: Any, before: Callable[[], None], found_provider: Callable[[Any], None] = lambda _: None) -> Callable[[], Any]:
    """Returns a function that gives the tracer; it is kept only once it belongs to a provider that is really there.

    Args:
        provider: what was passed; ``None`` for the global one.
        before: called before each request.
        found_provider: called with the provider that the tracer is kept of.
    """
    kept: list[Any] = []
    otlp.in_use("traces", provider)

    def tracer() -> Any:
        before()
        otlp.look_at_sigterm()
        if kept:
            return kept[0]
        owner = provider or otlp.current_provider("traces")
        with without_unusable():
            found = owner.get_tracer(semconv.SCOPE, version())
        with contain("id generator"):
            adopt_ids(found)
        if provider is not None or otlp.span_parts(found) is not None:
            with contain("flush of a provider"):
                found_provider(owner)
                otlp.in_use("traces", provider)
            kept.append(found)
        return found

    return tracer


def logger_source(provider: Any) -> Callable[[], Any]:
    """Returns a function that gives the logger of the events."""
    otlp.in_use("logs", provider)
    return lambda: (provider or otlp.current_provider("logs")).get_logger(semconv.SCOPE, version())
