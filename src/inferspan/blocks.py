"""``with session(...)``: a block of the user's program that is recorded.

In: a name and tags. Out: a session, connected to the recorder of the model that was instrumented last, or to one of its own where nothing
is instrumented. A wrong argument raises; whatever fails in telemetry is contained, and the block runs without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from inferspan.spans import origin

from . import composition, stages
from .guard import contain
from .settings import Settings
from .stages import check_name

if TYPE_CHECKING:
    from inferspan.spans.stages import Session

__all__ = ["session"]


def session(name: str, /, tags: Mapping[str, object] | None = None, *, tracer_provider: Any = None) -> Session:
    """Requests and stages that belong together, under one id: ``with inferspan.session("nightly", tags={"mode": "t2v"}) as s:``.

    The session is a span, current in its context; requests and stages inside are its children, in threads that are started inside as well.
    They and their log events carry its id, name and tags; metrics do not. A session inside a session is a stage of it. It needs no
    instrumented model: it sets up export as ``instrument()`` does.

    Args:
        name: of the session.
        tags: texts or numbers by key, beside those of the setting ``session_tags``; these here are stronger.
        tracer_provider: where its spans go; default that of the model that was instrumented last, else the global one.

    Returns:
        The session, to be used in ``with``, or by ``start()`` and ``end()``. ``s.id`` is its id.

    Raises:
        TypeError: ``name`` is no text, or ``tags`` no mapping of texts and numbers.
        ValueError: ``name`` is empty.
    """
    check_name(name, "session")
    if tags is not None and not isinstance(tags, Mapping):
        raise TypeError(f"inferspan.session() takes tags as a mapping such as {{'mode': 't2v'}}, not {type(tags).__name__}")
    for key, value in (tags or {}).items():
        if not isinstance(key, str) or not isinstance(value, str | int | float):
            raise TypeError(f"inferspan.session() takes texts and numbers as tags; {key!r} is {type(value).__name__}")
    plain = {key: str(value) for key, value in (tags or {}).items()}
    recorder = stages.newest() if tracer_provider is None else None
    if recorder is None:
        settings = Settings.resolve()
        providers = (tracer_provider, None, None)
        with contain("set-up of a session"):
            composition.set_up_export(settings, providers)
        recorder = composition.stage_recorder(settings, providers)
    made: Session = recorder.session(name, plain, lambda: _hold(recorder))
    return made


def _hold(recorder: stages.StageRecorder) -> Callable[[], None]:
    """Have stages recorded while a session is open, and threads that are started in it find it."""
    held = ExitStack()
    held.callback(stages.add(recorder))
    with contain("origins of requests"):
        held.callback(origin.follow())
    return held.close
