"""What is done at a module whenever it runs."""

from __future__ import annotations

from .functions import ModuleFunction

__all__ = ["Plan"]


class Plan:
    """What is done at a module.

    Attributes:
        watched, watches_inputs: whether bad values are counted in its output, and in its inputs.
        inputs: whether recorded calls have statistics of their inputs.
        memory: whether memory is read.
        attends: whether its attention is looked at.
        positions: whether it is the language head whose largest logits are kept.
        functions: of the program, by when they run.
    """

    __slots__ = ("attends", "functions", "inputs", "memory", "positions", "watched", "watches_inputs")

    def __init__(self, *, watched: bool = False, watches_inputs: bool = False) -> None:
        self.watched, self.watches_inputs = watched, watches_inputs
        self.attends = self.inputs = self.memory = self.positions = False
        self.functions: dict[str, list[ModuleFunction]] = {"before": [], "after": []}

    @property
    def before(self) -> bool:
        """Whether something is looked at or run before the module runs."""
        return bool(self.watches_inputs or self.inputs or self.attends or self.functions["before"])

    @property
    def after(self) -> bool:
        """The same once it has returned."""
        return bool(self.watched or self.attends or self.positions or self.functions["after"])

    @property
    def only_watched(self) -> bool:
        """Whether bad values in its output are all that is looked at; its memory apart, which has hooks of its own."""
        return self.watched and not (self.before or self.attends or self.positions or self.functions["after"])

    @property
    def does_more(self) -> bool:
        """Whether more is looked at than attention, which says itself where it cannot be."""
        others = self.watched or self.watches_inputs or self.inputs or self.positions
        return bool(others or any(self.functions.values()) or not self.attends)
