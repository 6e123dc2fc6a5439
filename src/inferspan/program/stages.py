"""``stage(name)``: a part of the program as a span; and who records such parts in this process.

``instrument`` and open sessions register their recorder here, so that a stage costs next to nothing where nothing is recorded. This module
loads nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

__all__ = ["OFF", "AnyStage", "Off", "OffGeneration", "StageRecorder", "add", "check_name", "newest", "stage"]


class AnyStage(Protocol):
    """What ``stage()`` returns: a context manager, or to be started and ended by hand.

    Attributes:
        name: of the stage.
        duration: seconds from start to end, all that is inside included; ``None`` until it has ended, and where nothing is recorded.
        self_time: the same without the stages inside.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def duration(self) -> float | None: ...  # noqa: D102
    @property
    def self_time(self) -> float | None: ...  # noqa: D102

    def start(self) -> AnyStage:
        """Begin now; the stage is current in this context until it ends. Returns itself."""

    def end(self, /, **attributes: Any) -> None:
        """End now; stages inside that are still open end first. A second call does nothing.

        Args:
            **attributes: further attributes of the span, by their exact name.
        """

    def __enter__(self) -> AnyStage: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class StageRecorder(Protocol):
    """Makes stages that are recorded."""

    def stage(self, name: str, attributes: dict[str, Any]) -> AnyStage:
        """A stage that has not begun."""


class Off:
    """Stands for a stage where nothing is recorded: one object for all of them, which does nothing."""

    __slots__ = ()
    name = ""
    duration: float | None = None
    self_time: float | None = None

    def start(self) -> Off:
        """Do nothing."""
        return self

    def end(self, /, **attributes: Any) -> None:
        """Do nothing."""

    def __enter__(self) -> Off:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None


class OffGeneration:
    """Stands for a generation that cannot be recorded: every call does nothing, also as the block around a pass."""

    __slots__ = ()

    def prefill(self, inputs: Any = None) -> OffGeneration:
        """Do nothing."""
        return self

    def step(self, inputs: Any = None) -> OffGeneration:
        """Do nothing."""
        return self

    def token(self, logits: Any, token: Any) -> None:
        """Do nothing."""

    def finish(self, reason: Any = "stop") -> None:
        """Do nothing."""

    def __enter__(self) -> OffGeneration:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None


OFF = Off()
_recorders: list[StageRecorder] = []
"""Of instrumented models and open sessions, the newest last."""


def add(recorder: StageRecorder) -> Callable[[], None]:
    """Register a recorder; returns what takes it out again."""
    _recorders.append(recorder)

    def remove() -> None:
        # By identity, and twice does nothing.
        for place, known in enumerate(_recorders):
            if known is recorder:
                del _recorders[place]
                return

    return remove


def newest() -> Any:
    """The recorder that was registered last; ``None`` where nothing is recorded."""
    try:
        return _recorders[-1]
    except IndexError:
        return None


def stage(name: str, /, **attributes: Any) -> AnyStage:
    """A part of the program as a span: ``with inferspan.stage("rerank", candidates=20):``, or ``.start()`` and ``.end()`` by hand.

    Stages nest to any depth, and requests inside become their children. An exception ends the stage with an error and passes. Where no
    model is instrumented and no session is open, one shared object is returned that does nothing.

    Args:
        name: of the span; few different ones, with what varies as attributes.
        **attributes: of the span, by their exact name (``**{"app.tenant": "blue"}`` for names with dots): text, numbers, booleans, or lists
            of one of them; what cannot be sent is left out.

    Raises:
        TypeError: ``name`` is no text.
        ValueError: ``name`` is empty.
    """
    if type(name) is not str or not name.strip():
        check_name(name, "stage")
    if not _recorders:
        return OFF
    recorder = newest()
    return OFF if recorder is None else recorder.stage(name, attributes)


def check_name(name: object, what: str) -> None:
    """Raise if ``name`` cannot be that of a stage or session."""
    if not isinstance(name, str):
        raise TypeError(f"inferspan.{what}() takes a name as text, not {type(name).__name__}")
    if not name.strip():
        raise ValueError(f"inferspan.{what}() takes a name that is not empty")
