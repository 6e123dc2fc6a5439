"""How many spans a request may have, and in which order detail is thinned when it would have more.

The order is fixed: module spans of a step are kept while nine tenths of the budget hold them whole; step spans are all kept up to
nine tenths, then every 2nd, 4th, 8th ... with the gap doubling after each 160th part of the budget. Kernels and operations of
a profiler window get what is left of nine tenths, shared over its passes. Spans that the settings asked for and the budget left out are
counted. Modules leave room for the stages of their pass, which are kept until the whole budget is spent. The request span and its two
phases are always there; a plain forward pass has no phases and no steps.
"""

from __future__ import annotations

__all__ = ["Budget"]

PHASES = 2
"""Prefill and decode."""


class Budget:
    """Spans of one request: those spent, and those left out.

    Args:
        total: spans that the request may have.
        steps: whether it has phases and steps.

    Attributes:
        reserved: spans that modules of the coming pass leave to its stages.
    """

    __slots__ = ("_chunk", "_chunk_left", "_fixed", "_gap", "_skip", "_step", "dropped", "reserved", "soft", "spent", "total")

    def __init__(self, total: int, *, steps: bool = True) -> None:
        self.total = total
        self._step = int(steps)
        self._fixed = self.spent = 1 + PHASES * steps
        self.dropped = self.reserved = 0
        # Below it every step gets a span.
        self.soft = min(total, max(self._fixed + 1, total * 9 // 10)) if steps else total
        self._chunk = max(1, total // 160)
        self._chunk_left = self._chunk
        self._gap = 2
        self._skip = 0

    def modules_allowed(self, expected: int, *, whole: bool = True) -> int:
        """How many module spans the coming forward pass may have, its own span kept free.

        With ``whole``, 0 where ``expected`` of them do not fit, unless it is the first pass, which shows as much as there is room for.
        """
        room = self.soft - self.spent - self._step - self.reserved
        if whole and expected > room and self.spent > self._fixed + 1:
            return 0
        return max(0, room)

    def stages_allowed(self, modules: int) -> int:
        """How many calls of stages the coming forward pass may have.

        Args:
            modules: module spans that the pass may have beside them.
        """
        return max(0, self.total - self.spent - self._step - modules)

    def profiled_allowed(self, passes: int, modules: int) -> int:
        """How many kernels and operations the profiled pass that has just ended may show.

        Args:
            passes: profiled passes that are still to come, which are to have as much.
            modules: module spans that each of them will want.
        """
        room = self.soft - self.spent - passes * (modules + self._step)
        return max(0, room // (passes + 1))

    def leave_out(self, spans: int) -> None:
        """Note spans that were asked for and not recorded."""
        self.dropped += spans

    def spend(self, spans: int) -> None:
        """Note spans that were recorded."""
        self.spent += spans

    @property
    def keeps_next_step(self) -> bool:
        """Whether the next step will get a span, as far as is known before it."""
        return self.spent < self.soft or (self._skip + 1 >= self._gap and self.spent < self.total)

    def take_step(self, *, wanted: bool = False) -> bool:
        """Whether the step that ends now gets a span; one that is ``wanted`` does until the whole budget is spent."""
        if self.spent < (self.total if wanted else self.soft):
            self.spent += 1
            return True
        self._skip += 1
        if self._skip < self._gap or self.spent >= self.total:
            self.dropped += 1
            return False
        self._skip = 0
        self.spent += 1
        self._chunk_left -= 1
        if not self._chunk_left:
            self._chunk_left = self._chunk
            self._gap *= 2
        return True
