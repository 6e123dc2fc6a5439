"""``session(name)``: a block, or every call of a function, as a session.

In: a name and tags. Out: a session that is set up when it begins, so that a decorated function costs nothing at import. A wrong argument
raises at once. This module loads neither torch nor OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .recorders import check_name

if TYPE_CHECKING:
    from inferspan.spans.stages import Session

__all__ = ["session"]


class _Session:
    """A session that is made when it begins, or when it is first looked at."""

    def __init__(
        self, name: str, tags: dict[str, str], of_result: Callable[[Any], Any] | None, tracer_provider: Any
    ) -> None:
        self._name, self._tags, self._of_result, self._tracer_provider = name, tags, of_result, tracer_provider
        self._made: Any = None

    def _make(self) -> Any:
        from .blocks import open_session

        return open_session(self._name, self._tags, self._tracer_provider)

    def _session(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made

    def start(self) -> Any:
        """Begin; returns the session."""
        return self._session().start()

    def end(self, /, **attributes: Any) -> None:
        """End it; does nothing if it has not begun."""
        if self._made is not None:
            self._made.end(**attributes)

    def __enter__(self) -> Any:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._session().__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._session(), name)

    def __call__(self, function: Any) -> Any:
        """Make every call of a function a session of its own."""
        from .layers import SessionLayer
        from .wrappers import decorate

        return decorate(function, SessionLayer(self._make, self._of_result), "session")

    def __repr__(self) -> str:
        return f"<inferspan.session {self._name!r}: not started>" if self._made is None else repr(self._made)


def session(
    name: str,
    /,
    tags: Mapping[str, object] | None = None,
    *,
    of_result: Callable[[Any], Mapping[str, Any]] | None = None,
    tracer_provider: Any = None,
) -> Session:
    """Requests and stages that belong together, under one id: ``with inferspan.session("nightly", tags={"mode": "t2v"}) as s:``.

    The session is a span, current in its context; requests and stages inside are its children, in threads that are started inside as well.
    They, their log events and the events of the program carry its id, name and tags; metrics do not. A session inside a session is a stage
    of it. It needs no instrumented model: it sets up export as ``instrument()`` does.

    ``@inferspan.session("nightly")`` makes every call of a function such a session, of asynchronous functions and of generators, too.

    Args:
        name: of the session.
        tags: texts or numbers by key, beside those of the setting ``session_tags``; these here are stronger.
        of_result: of a decorated function: gets what the call has returned, and returns attributes of the session; see ``stage()``.
        tracer_provider: where its spans go; default that of the model that was instrumented last, else the global one.

    Returns:
        The session, to be used in ``with``, as a decorator, or by ``start()`` and ``end()``. ``s.id`` is its id.

    Raises:
        TypeError: ``name`` is no text, ``tags`` no mapping of texts and numbers, or ``of_result`` cannot be called.
        ValueError: ``name`` is empty.
    """
    check_name(name, "session")
    if tags is not None and not isinstance(tags, Mapping):
        raise TypeError(f"inferspan.session() takes tags as a mapping such as {{'mode': 't2v'}}, not {type(tags).__name__}")
    for key, value in (tags or {}).items():
        if not isinstance(key, str) or not isinstance(value, str | int | float):
            raise TypeError(f"inferspan.session() takes texts and numbers as tags; {key!r} is {type(value).__name__}")
    if of_result is not None and not callable(of_result):
        raise TypeError(f"inferspan.session() takes a function of the result as of_result, not {type(of_result).__name__}")
    made: Any = _Session(name, {key: str(value) for key, value in (tags or {}).items()}, of_result, tracer_provider)
    return made  # type: ignore[no-any-return]  # it has the same methods and attributes
