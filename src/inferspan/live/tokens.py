"""Tokens of the steps of requests, put together by the ids of their spans: several requests may stand in one trace.

In come spans of steps and phases, in any order; out come the tokens of a request, in bounded memory.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Token", "Tokens"]

Token = tuple[str, float | None]
"""Text and probability."""
_MOST = 20_000
"""Tokens, and phases, of requests that have not ended; those that came first go."""
_Id = tuple[str, str]


class Tokens:
    """What has come of requests that have not been handed out."""

    def __init__(self) -> None:
        self._steps: OrderedDict[_Id, dict[int, Token]] = OrderedDict()
        self._phases: OrderedDict[_Id, str] = OrderedDict()
        self._count = 0

    def step(self, trace: str, parent: str, index: int, token: Token) -> None:
        """A step of this index has ended.

        Args:
            trace: its trace.
            parent: id of the span around it, empty if it is not known.
            index: of the step.
            token: that it chose.
        """
        held = self._steps.setdefault((trace, parent), {})
        self._count += index not in held
        held[index] = token
        while self._count > _MOST and len(self._steps) > 1:
            self._count -= len(self._steps.popitem(last=False)[1])

    def phase(self, trace: str, own: str, parent: str) -> None:
        """A phase with the id ``own`` has ended, of the request with the id ``parent``."""
        self._phases[trace, own] = parent
        if len(self._phases) > _MOST:
            self._phases.popitem(last=False)

    def of(self, trace: str, request: str) -> tuple[Token, ...]:
        """The tokens of a request so far, in order of the steps."""
        found: dict[int, Token] = {}
        for held in self._of(trace, request):
            found |= self._steps[held]
        return tuple(found[index] for index in sorted(found))

    def forget(self, trace: str, request: str) -> None:
        """The request has been handed out."""
        for held in self._of(trace, request):
            self._count -= len(self._steps.pop(held))
            self._phases.pop(held, None)

    def waits(self, trace: str) -> bool:
        """Whether there are tokens of a phase that has not come yet."""
        return any(held[0] == trace and held[1] and held not in self._phases for held in self._steps)

    def clear(self) -> None:
        """Nothing more of these requests will come."""
        self._steps.clear()
        self._phases.clear()
        self._count = 0

    def _of(self, trace: str, request: str) -> list[_Id]:
        # A step whose parent is not told is of the only request that there can be.
        return [
            held for held in self._steps
            if held[0] == trace and (held[1] in ("", request) or self._phases.get(held) == request)
        ]  # fmt: skip
