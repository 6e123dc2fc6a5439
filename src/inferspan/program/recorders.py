"""Recorders of stages, sessions and events in this process, and what stands for these where nothing is recorded.

``instrument`` and open sessions register their recorder here, so that a stage costs next to nothing where nothing is recorded. This module
loads neither torch nor OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from inferspan.summaries.requests import RecordedRequest
    from inferspan.summaries.summary import RunSummary

__all__ = ["OFF", "AnyStage", "Off", "OffGeneration", "StageRecorder", "add", "check_name", "newest", "recorders"]

F = TypeVar("F", bound=Callable[..., Any])


class AnyStage(Protocol):
    """What ``stage()`` returns: a context manager and a decorator, or to be started and ended by hand.

    Attributes:
        name: of the stage.
        duration: seconds from start to end, all that is inside included; ``None`` until it has ended, and where nothing is recorded.
        self_time: the same without the stages inside.
        memory_delta: bytes in use at its end minus at its start; ``None`` until it has ended, and where nothing measures them.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def duration(self) -> float | None: ...  # noqa: D102
    @property
    def self_time(self) -> float | None: ...  # noqa: D102
    @property
    def memory_delta(self) -> int | None: ...  # noqa: D102

    def start(self) -> AnyStage:
        """Begin now; the stage is current in this context until it ends. Returns itself."""

    def end(self, /, **attributes: Any) -> None:
        """End now; stages inside that are still open end first. A second call does nothing.

        Args:
            **attributes: further attributes of the span, by their exact name.
        """

    def __enter__(self) -> AnyStage: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def __call__(self, function: F) -> F:
        """Make every call of a function such a stage."""


class StageRecorder(Protocol):
    """Makes stages and events that are recorded."""

    settings: Any

    def stage(self, name: str, attributes: dict[str, Any], decorate: Callable[[Any], Any] | None = None) -> AnyStage:
        """A stage that has not begun."""

    def event(self, name: str, describe: Callable[[], Mapping[str, Any]], request: Any) -> None:
        """An event on the innermost stage or request, or on its own."""

    def describe_session(self, describe: Callable[[], Mapping[str, Any]]) -> None:
        """Put attributes on the session around here."""

    def read_memory(self) -> Any:
        """The memory in use now, if something measures it."""


class Off:
    """Stands for a stage or session where nothing is recorded: one object for all of them, which does nothing."""

    __slots__ = ()
    name = ""
    id = ""
    tags: Mapping[str, str] = {}
    duration: float | None = None
    self_time: float | None = None
    memory_delta: int | None = None

    def start(self) -> Off:
        """Do nothing."""
        return self

    def end(self, /, **attributes: Any) -> None:
        """Do nothing."""

    def summary(self) -> RunSummary:
        """Figures of nothing."""
        from inferspan.summaries.recording import Recording
        from inferspan.summaries.summary import summary_of

        return summary_of(Recording())

    def requests(self) -> list[RecordedRequest]:
        """None are recorded."""
        return []

    def __enter__(self) -> Off:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def __call__(self, function: F) -> F:
        """Leave a function as it is."""
        return function


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
recorders: list[StageRecorder] = []
"""Of instrumented models and open sessions, the newest last."""


def add(recorder: StageRecorder) -> Callable[[], None]:
    """Register a recorder; returns what takes it out again."""
    recorders.append(recorder)

    def remove() -> None:
        # By identity, and twice does nothing.
        for place, known in enumerate(recorders):
            if known is recorder:
                del recorders[place]
                return

    return remove


def newest() -> Any:
    """The recorder that was registered last; ``None`` where nothing is recorded."""
    try:
        return recorders[-1]
    except IndexError:
        return None


def check_name(name: object, what: str) -> None:
    """Raise if ``name`` cannot be that of a stage or session."""
    if not isinstance(name, str):
        raise TypeError(f"inferspan.{what}() takes a name as text, not {type(name).__name__}")
    if not name.strip():
        raise ValueError(f"inferspan.{what}() takes a name that is not empty")
