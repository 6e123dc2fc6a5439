"""Reads the log of a batching loop into requests and batches, off the loop's thread.

Entries are read in order by one thread at a time. Errors of ours are contained entry by entry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from inferspan import clock, semconv
from inferspan.capture.owner import Owner
from inferspan.guard import contain
from inferspan.records import Failure, RequestScope

from .batch import Batch
from .log import Arrived, BatchLog, Cancelled, Closed, Delivered, Failed, Idle, Preempted, Ran, Refused
from .request import BatchedRequest

__all__ = ["MOST_OPEN", "BatchReader"]

MOST_OPEN = 16_384
"""Requests of one manager that are recorded at a time; a program that queues more without end must not take our memory as well."""


class BatchReader:
    """The open requests of one manager, and its batch.

    Args:
        owner: instrumentation of the model.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.log = BatchLog(self._soon, content=owner.settings.content_on_spans)
        self._open: set[BatchedRequest] = set()
        self._requests: dict[str, list[BatchedRequest]] = {}
        self._batch: Batch | None = None
        self._coming = False
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._release = owner.recorder.add_source(self.read)
        self._handlers: dict[type, Callable[[Any], None]] = {
            Arrived: self._arrived,
            Refused: self._refused,
            Ran: self._ran,
            Delivered: lambda entry: self._delivered(entry.outputs, entry.at),
            Failed: self._failed,
            Cancelled: self._cancelled,
            Preempted: self._preempted,
            Idle: lambda entry: self._end_batch(blocks=entry.blocks),
            Closed: self._closed,
        }

    @property
    def count(self) -> int:
        """Requests that have begun and not ended."""
        return len(self._open)

    def begun(self, request: BatchedRequest) -> None:
        """Register a request that begins."""
        with self._counting:
            self._open.add(request)

    def _soon(self) -> bool:
        if self._coming:
            return True
        self._coming = True
        if not self.owner.recorder.soon(self.read):
            self._coming = False
        return self._coming

    def forked(self) -> None:
        """Called in a forked child: the loop, and the threads that held the locks, do not exist in it."""
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._coming = False
        self.log.entries.clear()
        self.log.is_open = False
        self._requests.clear()
        self._open.clear()
        self._batch = None
        self._release()

    def read(self) -> None:
        """Read everything that is in the log."""
        self._coming = False
        with self._lock:
            entries = self.log.entries
            while entries:
                entry = entries.popleft()
                with contain("continuous batching"):
                    self._handlers[type(entry)](entry)
            if self._batch is not None:
                with contain("continuous batching"):
                    self._batch.hand_over()

    # ----------------------------------------------------------------------------------------------------------- requests
    def _arrived(self, entry: Arrived) -> None:
        request: BatchedRequest = entry.request
        for name in request.names:
            self._requests.setdefault(name, []).append(request)
        if not self.log.is_open:
            self._end(request, self.log.now(), None, unseen=True)

    def _refused(self, entry: Refused) -> None:
        self._end(entry.request, entry.at, entry.failure)

    def _delivered(self, outputs: Any, at: int) -> None:
        for output in outputs:
            for request in self._named(output.request_id, every=output.error is not None):
                if request.deliver(output, at):
                    self._forget(request)

    def _named(self, name: str, *, every: bool = True) -> list[BatchedRequest]:
        """Requests with this id: the oldest, or every one, where a program has given several that are open one id."""
        found = self._requests.get(name, [])
        return [*found] if every else found[:1]

    def _failed(self, entry: Failed) -> None:
        for request in self._named(entry.request_id):
            request.fail(entry.failure)

    def _cancelled(self, entry: Cancelled) -> None:
        for name in entry.request_ids:
            for request in self._named(name):
                self._end(request, entry.at, Failure(semconv.CANCELLED, "cancelled by its caller", ""))

    def _preempted(self, entry: Preempted) -> None:
        for name in entry.request_ids:
            found = self._requests.get(name)
            if found:
                found[0].preempt()

    def _end(self, request: BatchedRequest, at: int, failure: Failure | None, *, unseen: bool = False) -> None:
        try:
            request.end(at, failure, unseen=unseen)
        finally:
            self._forget(request)

    def _forget(self, request: BatchedRequest) -> None:
        with self._counting:
            self._open.discard(request)
        for name in request.names:
            found = self._requests.get(name)
            if found and request in found:
                found.remove(request)
                if not found:
                    del self._requests[name]

    # -------------------------------------------------------------------------------------------------------------- steps
    def _ran(self, step: Ran) -> None:
        rows, phase, tokens = len(step.states), semconv.SPAN_DECODE, 0
        links: dict[int, RequestScope] = {}
        requests = self._requests
        for state in step.states:
            tokens += state.query_length
            found = requests.get(state.state.request_id)
            if found is None:
                if state.query_length > 1:
                    phase = semconv.SPAN_PREFILL
                continue
            request = found[0]
            if request.prefills(state):
                phase = semconv.SPAN_PREFILL
            request.ran(state, step.start, step.end, rows)
            if request.recording:
                links[id(request)] = request.scope
        self.log.taken += rows
        self._add_step(step, phase, rows, tokens, [*links.values()])
        self._delivered(step.outputs, step.end)

    def _add_step(self, step: Ran, phase: str, rows: int, tokens: int, links: list[RequestScope]) -> None:
        added = clock.offset()
        start, end = step.start + added, step.end + added
        if self._batch is not None and self._batch.is_full:
            self._end_batch()
        if self._batch is None:
            self._batch = Batch(self.owner, start)
        self._batch.add(phase, start, end, requests=rows, tokens=tokens, waiting=step.waiting, blocks=step.blocks, links=links)

    def _end_batch(self, *, blocks: tuple[int, int] | None = None) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.finish(blocks)

    def _closed(self, entry: Closed) -> None:
        with self._counting:
            left = [*self._open]
        for request in left:
            with contain("end of a batched request"):
                self._end(request, entry.at, None, unseen=True)
        self._end_batch()
        self._release()
