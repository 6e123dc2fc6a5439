"""The steps that requests share, as a trace of their own: one span for each, linked to the requests in it.

A batch is a stretch of the loop: from a step after the loop was idle until it is idle again, at most ``MOST_STEPS`` steps or
``LONGEST`` nanoseconds, so that its trace stays small and its metrics are fresh.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferspan import semconv
from inferspan.capture.owner import Owner
from inferspan.records import KIND_BATCH, Attributes, BatchFigures, PhaseKey, RequestEnd, RequestScope, RequestStart, Step

__all__ = ["Batch"]

MOST_STEPS = 1000
LONGEST = 10_000_000_000
MOST_LINKS = 128
"""Of one span, as the SDK limits them."""
STEPS_AT_ONCE = 32
STEP_COST_NS = 5_000
"""Our time on the loop's thread for one step, measured (docs/overhead.md); timing each would cost more."""


class Batch:
    """Steps of one loop until it is idle.

    Args:
        owner: instrumentation of the model.
        start: of the first step, in nanoseconds since the epoch.
    """

    def __init__(self, owner: Owner, start: int) -> None:
        self._owner = owner
        self._start = self._end = start
        self._scope: RequestScope | None = None
        if not owner.pausing.quiet:
            self._scope = owner.recorder.start(RequestStart(KIND_BATCH, None, owner.info, start, False, {}, attached=False), None)
        self._steps: list[Step] = []
        self._requests: list[int] = []
        self._tokens: list[int] = []
        self._seconds: dict[str, list[float]] = {semconv.SPAN_PREFILL: [], semconv.SPAN_DECODE: []}
        self._waiting = 0
        self._blocks: tuple[int, int] | None = None
        self._dropped = 0
        self._budget = owner.settings.span_budget - 1
        self._next_sampled = 0

    @property
    def is_full(self) -> bool:
        """Whether the next step belongs to a new one."""
        return len(self._requests) >= MOST_STEPS or self._end - self._start >= LONGEST

    def add(
        self, phase: str, start: int, end: int, *, requests: int, tokens: int, waiting: int, blocks: tuple[int, int] | None,
        links: Sequence[RequestScope],
    ) -> None:
        """Add a step.

        Args:
            phase: ``prefill`` if one of the requests prefills, else ``decode``.
            start: in nanoseconds since the epoch.
            end: likewise.
            requests: in the step.
            tokens: positions of all of them.
            waiting: requests that have no place in the batch.
            blocks: of the cache, in use and in all.
            links: the requests that are recorded.
        """
        number = len(self._requests)
        start, self._end = max(start, self._start), max(end, self._end)
        self._requests.append(requests)
        self._tokens.append(tokens)
        self._seconds[phase].append(max(0, end - start) / 1e9)
        self._waiting = waiting
        self._blocks = blocks or self._blocks
        scope = self._scope
        if scope is None or not scope.recording or not self._shows(number):
            return
        attributes: dict[str, int] = {semconv.STEP_ROWS: requests, semconv.BATCH_TOKENS: tokens, semconv.STEP_WAITING: waiting}
        if blocks is not None:
            attributes[semconv.KV_CACHE_BLOCKS_USED] = blocks[0]
        self._steps.append(Step(number, PhaseKey(phase), start, max(start, end), None, attributes, links=tuple(links[:MOST_LINKS])))
        if len(self._steps) >= STEPS_AT_ONCE:
            self.hand_over()

    def _shows(self, number: int) -> bool:
        """Whether a step gets a span, by the settings and the budget."""
        if self._owner.steps_wanted == "sampled":
            if number != self._next_sampled:
                return False
            self._next_sampled = max(1, 2 * number)
        if not self._budget:
            self._dropped += 1
            return False
        self._budget -= 1
        return True

    def hand_over(self) -> None:
        """Give the steps so far to the recorder."""
        if self._steps and self._scope is not None:
            steps, self._steps = self._steps, []
            self._scope.detail(steps)

    def finish(self, blocks: tuple[int, int] | None = None) -> None:
        """End it with its last step; ``blocks`` are those of the cache, where they have changed since."""
        self.hand_over()
        scope, self._scope = self._scope, None
        if scope is None:
            return
        attributes: Attributes = {semconv.BATCH_STEPS: len(self._requests)}
        used, limit = blocks or self._blocks or (None, None)
        figures = BatchFigures(self._requests, self._tokens, self._waiting, used, limit)
        scope.end(
            RequestEnd(
                self._end,
                None,
                attributes,
                step_seconds=self._seconds,
                batch=figures,
                spans_dropped=self._dropped,
                overhead_ns=STEP_COST_NS * len(self._requests),
            )
        )
