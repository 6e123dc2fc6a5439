"""What a scenario is: a named function that gets a ``Run``, does something with a model, and leaves its telemetry there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.scenarios.run import Run

__all__ = ["Play", "Scenario", "Table"]

Play = Callable[["Run"], None]


@dataclass(frozen=True)
class Scenario:
    """One situation.

    Args:
        name: of the function, unique in all tables.
        play: runs it.
        process: scenarios of one word share a process, in the order of the table.
        environ: variables of that process.
    """

    name: str
    play: Play
    process: str
    environ: Mapping[str, str] = field(default_factory=dict)


class Table:
    """Scenarios of one file, in order.

    Args:
        process: where its scenarios run if they do not ask for a process of their own.
    """

    def __init__(self, process: str) -> None:
        self.process = process
        self.scenarios: list[Scenario] = []

    def __call__(self, play: Play) -> Play:
        """Add a function under its own name; to be used as a decorator."""
        self.scenarios.append(Scenario(play.__name__, play, self.process))
        return play

    def alone(self, **environ: str) -> Callable[[Play], Play]:
        """Add a function that changes what is global, and so needs a process to itself, with these variables."""

        def add(play: Play) -> Play:
            self.scenarios.append(Scenario(play.__name__, play, play.__name__, environ))
            return play

        return add
