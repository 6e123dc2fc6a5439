"""Messages of OTLP -> requests of a fitting size, sent again where a receiver asks for it, and what became of each item.

In come messages of any size; small neighbours are joined and large ones divided. A request that is refused is divided until only the
items at fault are refused. What the receiver says it has not accepted (partial success) is counted. :class:`InVain` ends the replay:
nothing that follows would be accepted either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inferspan.export.client.sending import ACCEPTED, AGAIN, IN_VAIN, Answer, Client
from inferspan.replay.messages import count, halves

__all__ = ["REQUEST_BYTES", "InVain", "Sender", "Totals"]

REQUEST_BYTES = 3 * 1024 * 1024
"""Receivers refuse more than 4 MiB over gRPC."""
_MOST_ITEMS = 4000
_LONGEST_PAUSE = 8.0
_MOST_REFUSED = 20
"""Single items refused in a row after which the receiver is taken to refuse everything."""


class InVain(Exception):
    """The receiver takes nothing; the text is the reason."""


@dataclass
class Totals:
    """Items by signal: spans, data points of metrics, log records."""

    accepted: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    retries: int = 0

    def add(self, signal: str, accepted: int, rejected: int) -> None:
        """Count the items of an answer."""
        for counts, number in ((self.accepted, accepted), (self.rejected, rejected)):
            if number:
                counts[signal] = counts.get(signal, 0) + number


class Sender:
    """Sends what it is given, in the order of each signal.

    Args:
        clients: by signal.
        patience: seconds for which a request is tried again, once anything has been accepted; before that, a receiver that cannot be
            reached is not waited for.
        tell: is called with each reason of a receiver for refusing something, once.
        sleep: waits for seconds.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        clients: Mapping[str, Client],
        *,
        patience: float,
        tell: Callable[[str], None],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = clients
        self._patience, self._tell = patience, tell
        self._sleep, self._clock = sleep, clock
        self._waiting: dict[str, tuple[Any, int, int]] = {}
        self._told: set[str] = set()
        self._refused_in_a_row = 0
        self.without_receiver: set[str] = set()
        """Signals that the receiver has no place for."""
        self.totals = Totals()

    def add(self, signal: str, message: Any) -> None:
        """Send a message, now or with those that follow.

        Raises:
            InVain: see the class.
        """
        size, items = message.ByteSize(), count(signal, message)
        if signal in self._waiting:
            before, bytes_before, items_before = self._waiting[signal]
            if bytes_before + size <= REQUEST_BYTES and items_before + items <= _MOST_ITEMS:
                before.MergeFrom(message)
                self._waiting[signal] = (before, bytes_before + size, items_before + items)
                return
            self._send_waiting(signal)
        self._waiting[signal] = (message, size, items)

    def finish(self) -> None:
        """Send the rest.

        Raises:
            InVain: see the class.
        """
        for signal in list(self._waiting):
            self._send_waiting(signal)

    def _send_waiting(self, signal: str) -> None:
        message = self._waiting.pop(signal)[0]
        self._send(signal, message)

    def _send(self, signal: str, message: Any) -> None:
        if message.ByteSize() > REQUEST_BYTES and (parts := halves(message)) is not None:
            for part in parts:
                self._send(signal, part)
            return
        items = count(signal, message)
        if not items:
            return
        if signal in self.without_receiver:
            self.totals.add(signal, 0, items)
            return
        answer = self._ask(signal, message.SerializeToString())
        if answer.state == ACCEPTED:
            self._accepted(signal, items, answer)
        elif answer.state == IN_VAIN and "no receiver" in answer.reason:
            # One for traces alone is no reason not to send those.
            self.without_receiver.add(signal)
            self.totals.add(signal, 0, items)
            self._complain(f"{signal} refused: {answer.reason}")
        elif answer.state in (AGAIN, IN_VAIN):
            raise InVain(answer.reason)
        else:
            self._refused(signal, message, answer)

    def _accepted(self, signal: str, items: int, answer: Answer) -> None:
        rejected = min(answer.rejected, items)
        self._refused_in_a_row = 0
        self.totals.add(signal, items - rejected, rejected)
        if rejected:
            self._complain(f"{signal} refused: {answer.reason or 'no reason is given'}")
        elif answer.reason:
            self._complain(f"about {signal} it says: {answer.reason}")

    def _refused(self, signal: str, message: Any, answer: Answer) -> None:
        """Divide a request that is refused, until the items at fault are alone."""
        parts = halves(message)
        if parts is not None:
            for part in parts:
                self._send(signal, part)
            return
        self.totals.add(signal, 0, count(signal, message))
        self._complain(f"{signal} refused: {answer.reason}")
        self._refused_in_a_row += 1
        if self._refused_in_a_row >= _MOST_REFUSED:
            raise InVain(f"it refuses everything: {answer.reason}")

    def _ask(self, signal: str, data: bytes) -> Answer:
        """The answer to a request, after trying again where that may help."""
        pause, begun = 0.5, self._clock()
        while True:
            self.totals.requests += 1
            answer = self._clients[signal].send(data)
            patient = self._clock() - begun < self._patience and (self.totals.accepted or answer.reached)
            if answer.state != AGAIN or not patient:
                return answer
            self.totals.retries += 1
            self._complain(f"waiting: {answer.reason}")
            self._sleep(answer.wait if answer.wait is not None else pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _complain(self, text: str) -> None:
        if text not in self._told and len(self._told) < 100:
            self._told.add(text)
            self._tell(text)
