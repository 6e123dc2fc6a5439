"""What recording every module adds to a decode step, taken apart: each step of a request draws at random how much of the work is done.

In: a model. Out: medians of the parts with their standard errors, each over modules with nothing of ours on them; the wrappers of a step
stay on. It stands on internals of ``capture/``, which it switches off and on while it runs.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.models import prepare
from benchmarks.rows import lifted

__all__ = ["TOKENS", "Added", "parts", "take_apart"]

TOKENS = 48
"""Steps of a request."""
Part = Callable[["_Pass"], None]


@dataclass(frozen=True)
class Added:
    """How much longer a step takes, in seconds and as a ratio, than with the first part alone."""

    part: str
    seconds: float
    ratio: float
    error: float
    steps: int


class _Pass:
    """The pass that comes next: the call that it belongs to, and what its engine has on the modules."""

    def __init__(self) -> None:
        from inferspan.capture.compile.state import SLOT

        self._slot = SLOT
        self.call: Any = None
        self._clock: Any = None
        self._engine: Any = None

    def take(self, call: Any) -> None:
        """Look at a step of ``call`` as it is without us; from step to step that is the same."""
        if call is not self.call:
            self.call, self._clock, self._engine = call, call.clock, call.engine

    def leave(self) -> None:
        """Put everything back as it was."""
        if self.call is not None:
            self.set(observed=True, recorded=True, timed=True)
        self.call = self._clock = self._engine = None

    def set(self, *, observed: bool, recorded: bool, timed: bool) -> None:
        """Choose what is done in the next step."""
        # Nothing of it is kept: an observer counts who refers to it. Once the request has ended, the list is empty.
        for one in self._engine._of_modules._observed:
            if observed:
                vars(one.module)[self._slot] = one
            else:
                vars(one.module).pop(self._slot, None)
        self.call.engine = self._engine if recorded else None
        self.call.clock = self._clock if timed else None


def parts(*, cuda: bool) -> dict[str, Part]:
    """What may be done in a step, each with all that stands before it."""
    found: dict[str, Part] = {
        "nothing on the modules": lambda step: step.set(observed=False, recorded=False, timed=False),
        "calls go through our callable": lambda step: step.set(observed=True, recorded=False, timed=False),
        "and are recorded": lambda step: step.set(observed=True, recorded=True, timed=False),
    }
    if cuda:
        found["and get events on the device"] = lambda step: step.set(observed=True, recorded=True, timed=True)
    return found


@contextmanager
def _without_export() -> Iterator[None]:
    """Records and events are dropped where they would be handed over or read."""
    from unittest import mock

    from inferspan.capture.device.clock import CallClock
    from inferspan.spans import recorder as spans

    def drop(clock: Any, *, leave: int = 0) -> None:
        while clock._waiting:
            clock._forget_oldest()

    with mock.patch.object(spans.LiveRequestSpan, "detail", return_value=None), mock.patch.object(CallClock, "read", drop):
        yield


def take_apart(model: Any, *, requests: int, tokens: int = TOKENS, say: Callable[[str], None] = lambda _: None) -> list[Added]:
    """Run ``requests`` of ``tokens`` steps each and compare the parts.

    Args:
        model: for ``generate()``, with the prompt on its device.
        requests: how many; the first step of each counts for nothing.
        tokens: steps of a request.
        say: receives the progress.
    """
    import torch
    from opentelemetry.sdk.trace import TracerProvider
    from transformers import StoppingCriteria

    import inferspan
    from inferspan.capture.call import current

    device = next(model.parameters()).device
    work = prepare("", model, tokens=tokens)
    done = parts(cuda=device.type == "cuda")
    names, draw, step = [*done], random.Random(0), _Pass()
    taken: dict[str, list[float]] = {name: [] for name in names}
    goes_on = torch.zeros(1, dtype=torch.bool, device=device)

    class Between(StoppingCriteria):
        """Called once a step: ends the time of one, and draws what the next one does."""

        def __init__(self) -> None:
            self.begun = 0.0
            self.name: str | None = None

        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            if self.name is not None:
                taken[self.name].append(time.perf_counter() - self.begun)
            call = current.call
            if call is None or call.calls_left <= 0:
                raise RuntimeError("the coming step is not recorded, so there is nothing to be taken apart")
            step.take(call)
            self.name = draw.choice(names)
            done[self.name](step)
            self.begun = time.perf_counter()
            return goes_on

    work.request()
    # A provider that records and has nobody to send to.
    provider = TracerProvider(shutdown_on_exit=False)
    with _without_export(), inferspan.instrument(model, tracer_provider=provider, **lifted(modules="all", logits=False)):
        work.request()
        for number in range(requests):
            try:
                work.request(stopping_criteria=[Between()])
            finally:
                step.leave()
            say(f"request {number + 1} of {requests}")
    least = statistics.median(taken[names[0]])
    found = [(name, taken[name], statistics.median(taken[name])) for name in names]
    return [Added(name, median - least, median / least, _error(values), len(values)) for name, values, median in found]


def _error(values: list[float]) -> float:
    """Standard error of the median of what is not far out."""
    ordered = sorted(values)
    kept = ordered[len(ordered) // 20 : len(ordered) - len(ordered) // 20]
    return float(1.25 * statistics.pstdev(kept) / len(values) ** 0.5)
