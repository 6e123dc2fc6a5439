"""What tracing raises: one class, with the kind of failure and its place as far as they are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

REASONS: Mapping[str, str] = MappingProxyType(
    {
        "control_flow": "control flow or an assert on a value",
        "value_size": "a size or shape that comes from a value",
        "iteration": "iteration over a tensor",
        "untraceable_call": "a call that cannot be traced",
        "dtype": "a conflict of dtypes",
        "shape": "shapes that do not fit",
        "state": "state that the forward pass changes",
        "input": "a missing or unsuitable input",
        "other": "another failure",
    }
)
"""Classes of failures, each with its meaning in words. ``docs/tracing.md`` has a section on each."""


@dataclass(frozen=True)
class Place:
    """Where a trace broke: a line of the model's source and the module that ran it.

    ``modules`` are the paths of the modules that were open, outermost first; the model itself is ``""``.
    """

    file: str | None
    line: int | None
    source: str | None
    modules: tuple[str, ...]
    function: str | None = None

    @property
    def module(self) -> str:
        """The path of the innermost module, ``""`` for the model itself."""
        return self.modules[-1] if self.modules else ""


class TraceError(RuntimeError):
    """A model could not be traced, cut or replayed.

    Attributes:
        reason: class of the failure, a key of ``inferspan.graph.REASONS``.
        where: the place in the model's source, None if it is not known.
    """

    def __init__(self, message: str, reason: str = "other", where: Place | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.where = where
