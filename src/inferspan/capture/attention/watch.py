"""Attention of one model over all of its requests, and the attributes of a request."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from inferspan import semconv
from inferspan.records import AttributeValue

from .log import AttentionLog
from .results import Attention, AttentionCall
from .totals import LayerTotals

__all__ = ["AttentionWatch", "attributes_of"]

MOST_CALLS = 1024
MOST_LAYERS = 4_000
MOST_ON_SPAN = 256
"""Layers that the arrays of a request have."""
MOST_MISSING = 64


class AttentionWatch:
    """What all requests of one model have shown so far; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._layers: dict[str, LayerTotals] = {}
        self._missing: dict[str, str] = {}
        self._left_out: Counter[str] = Counter()
        self._calls: deque[AttentionCall] = deque(maxlen=MOST_CALLS)

    def add(self, log: AttentionLog, missing: dict[str, str], memory: int) -> None:
        """Take in a request that has ended.

        Args:
            log: of the request, read.
            missing: layers that gave no weights in it, with the reason.
            memory: bytes of weights that are kept of the latest calls.
        """
        with self._lock:
            self._left_out.update(log.left_out)
            for module, totals in log.totals.items():
                if module in self._layers or len(self._layers) < MOST_LAYERS:
                    self._layers.setdefault(module, LayerTotals()).merge(totals)
            for call in log.calls:
                if call.module in self._layers:
                    self._layers[call.module].last = call
                self._calls.append(call)
            self._missing.update(missing)
            for module in [module for module in self._missing if any(_covers(module, one) for one in self._layers)]:
                del self._missing[module]
            room = memory
            for place in range(len(self._calls) - 1, -1, -1):
                weights = self._calls[place].weights
                if weights is not None:
                    room -= weights.numel() * weights.element_size()
                    if room < 0:
                        self._calls[place] = self._calls[place].with_figures(weights=None)

    def result(self, wanted: Any) -> Attention:
        """What is known by now of the modules for whose path ``wanted`` is true."""
        with self._lock:
            return Attention(
                tuple(layer.result(module) for module, layer in self._layers.items() if wanted(module)),
                {module: reason for module, reason in self._missing.items() if wanted(module)},
                {reason: count for reason, count in self._left_out.items() if count},
                tuple(call for call in self._calls if wanted(call.module)),
            )

    def forked(self) -> None:
        """Called in a forked child, where no thread is left to release the lock."""
        self._lock = threading.Lock()


def _covers(module: str, gave: str) -> bool:
    return gave == module or gave.startswith(f"{module}.") or module.startswith(f"{gave}.")


def attributes_of(log: AttentionLog, missing: dict[str, str], prompt: Sequence[str]) -> dict[str, AttributeValue]:
    """Attributes of the request: its layers with their mean entropy and sink share, what gave no weights, and what was left out.

    Args:
        log: of the request, read.
        missing: layers that gave no weights.
        prompt: texts of the tokens of the first sequence's prompt.
    """
    found: dict[str, AttributeValue] = {}
    results = [totals.result(module) for module, totals in [*log.totals.items()][:MOST_ON_SPAN]]
    if results:
        found[semconv.ATTENTION_LAYERS] = [one.module for one in results]
        found[semconv.ATTENTION_LAYER_ENTROPIES] = [one.entropy_mean for one in results]
        found[semconv.ATTENTION_LAYER_SINKS] = [one.sink_share for one in results]
    if missing:
        found[semconv.ATTENTION_MISSING] = [f"{module}: {reason}" for module, reason in [*missing.items()][:MOST_MISSING]]
    if log.left_out:
        found[semconv.ATTENTION_LEFT_OUT] = sum(log.left_out.values())
    if prompt:
        found[semconv.ATTENTION_PROMPT] = list(prompt)
    return found
