"""``python -m benchmarks.steps``: what recording adds to a step, taken apart by changing from step to step what is done.

Every step of a request draws at random how much of the work its module calls do; neighbouring steps meet the same machine, so tenths
of a percent show where whole requests drift by ten. In: a model's name. Out: a table of medians with their standard errors, each over
calling ``forward`` through our callable alone. It stands on internals of ``capture/``, which it replaces while it runs.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks import machine
from benchmarks.models import MODELS, load, prepare
from benchmarks.rows import lifted
from benchmarks.table import markdown

__all__ = ["COLUMNS", "Added", "main", "parts", "take_apart"]

COLUMNS = (
    ("part", "what a step does"),
    ("added", "more, ms a step"),
    ("error", "standard error"),
    ("each", "us for each module call"),
    ("steps", "steps"),
)
TOKENS = 48
Part = tuple[Any, str, Any]
"""A class, the name of an attribute, and what it is to be."""


@dataclass(frozen=True)
class Added:
    """How much longer a step takes, in seconds, than with the first part alone."""

    part: str
    seconds: float
    error: float
    steps: int


def parts(*, cuda: bool) -> dict[str, tuple[Part, ...]]:
    """What may be done in a step, each with all that stands before it."""
    from inferspan.capture.compilation import leave_frame
    from inferspan.capture.cuda_events import DriverEvents
    from inferspan.capture.device_clock import CallClock
    from inferspan.capture.observed_forward import ObservedForward

    def through(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._hot.forward(*args, **kwargs)

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def slot(pool: Any, stream: int) -> int:
        return int(pool.free.pop() if pool.free else pool._grow())

    def call_of_c(pool: Any, stream: int) -> int:
        taken = slot(pool, stream)
        absolute(pool.events[taken], pool._handles.get(stream) or pool._handle(stream))
        return taken

    leave_frame(through)
    whole = ObservedForward.__call__
    observed = ((ObservedForward, "__call__", through), (ObservedForward, "__call__", whole))
    if not cuda:
        return {"calls forward through our callable": observed[:1], "records the call": observed[1:]}
    absolute = ctypes.PyDLL(None).labs
    no_clock: tuple[Part, ...] = ((CallClock, "enter", nothing), (CallClock, "leave", nothing))
    clock: tuple[Part, ...] = ((CallClock, "enter", CallClock.enter), (CallClock, "leave", CallClock.leave))
    return {
        "calls forward through our callable": (observed[0], *no_clock),
        "records the call": (observed[1], *no_clock),
        "and decides which boundaries get an event": (observed[1], *clock, (DriverEvents, "_record_on", slot)),
        "and calls a function of C for each of them": (observed[1], *clock, (DriverEvents, "_record_on", call_of_c)),
        "and that is cuEventRecord": (observed[1], *clock, (DriverEvents, "_record_on", DriverEvents._record_on)),
    }


@contextmanager
def _without_export() -> Iterator[None]:
    """Records and events are dropped where they would be handed over or read."""
    from inferspan import spans
    from inferspan.capture.device_clock import CallClock

    def drop(clock: Any, *, leave: int = 0) -> None:
        while clock._waiting:
            clock._forget_oldest()

    kept = (spans.SpanScope, "detail", spans.SpanScope.detail), (CallClock, "read", CallClock.read)
    _put(((spans.SpanScope, "detail", lambda scope, records: None), (CallClock, "read", drop)))
    try:
        yield
    finally:
        _put(kept)


def _put(chosen: tuple[Part, ...]) -> None:
    for owner, name, value in chosen:
        setattr(owner, name, value)


def take_apart(model: Any, *, requests: int, tokens: int = TOKENS, say: Callable[[str], None] = lambda _: None) -> list[Added]:
    """Run ``requests`` of ``tokens`` steps each and compare the parts.

    Args:
        model: for ``generate()``, with the prompt on its device.
        requests: how many; the first step of each counts for nothing.
        tokens: steps of a request.
        say: is told how far it has come.
    """
    import torch
    from opentelemetry.sdk.trace import TracerProvider
    from transformers import StoppingCriteria

    import inferspan
    from inferspan.capture.call import current

    device = next(model.parameters()).device
    done = parts(cuda=device.type == "cuda")
    names, draw = [*done], random.Random(0)
    taken: dict[str, list[float]] = {name: [] for name in names}
    prompt = torch.randint(3, min(1000, model.config.vocab_size), (1, 16), generator=torch.Generator().manual_seed(0)).to(device)
    goes_on = torch.zeros(1, dtype=torch.bool, device=device)

    class Between(StoppingCriteria):
        """Called once a step: ends the time of one, and draws what the next one does."""

        def __init__(self) -> None:
            self.begun = 0.0
            self.name: str | None = None

        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            if self.name is not None:
                taken[self.name].append(time.perf_counter() - self.begun)
            self.name = draw.choice(names)
            _put(done[self.name])
            call = current.call
            if call is None or call.room <= 0:
                raise RuntimeError("the coming step is not recorded, so there is nothing to be taken apart")
            call.discard()
            self.begun = time.perf_counter()
            return goes_on

    def request(between: list[Any]) -> None:
        options: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
        with torch.no_grad():
            model.generate(prompt, attention_mask=torch.ones_like(prompt), stopping_criteria=between, **options)

    request([])
    # A provider that records and has nobody to send to.
    provider = TracerProvider(shutdown_on_exit=False)
    with _without_export(), inferspan.instrument(model, tracer_provider=provider, **lifted(modules="all", logits=False)):
        try:
            request([])
            for number in range(requests):
                request([Between()])
                say(f"request {number + 1} of {requests}")
        finally:
            _put(done[names[-1]])
    least = statistics.median(taken[names[0]])
    return [Added(name, statistics.median(taken[name]) - least, _error(taken[name]), len(taken[name])) for name in names]


def _error(values: list[float]) -> float:
    """Standard error of the median of what is not far out."""
    ordered = sorted(values)
    kept = ordered[len(ordered) // 20 : len(ordered) - len(ordered) // 20]
    return float(1.25 * statistics.pstdev(kept) / len(values) ** 0.5)


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steps", description="What recording every module adds to a step, taken apart."
    )
    parser.add_argument("--model", choices=MODELS, default="smollm2", help="default: %(default)s")
    parser.add_argument("--requests", type=int, default=20, help=f"requests of {TOKENS} steps each (default: %(default)s)")
    options = parser.parse_args(arguments)
    model, _ = load(options.model)
    calls = prepare(options.model, model).modules
    found = take_apart(model, requests=options.requests, say=lambda text: print(f"[steps] {text}", file=sys.stderr))
    print("\n".join(f"- {name}: {value}" for name, value in machine.describe().items()), end="\n\n")
    lines = [
        {
            "part": one.part,
            "added": f"{one.seconds * 1e3:+.2f}",
            "error": f"{one.error * 1e3:.2f}",
            "each": f"{one.seconds / calls * 1e6:.1f}",
            "steps": one.steps,
        }
        for one in found
    ]
    print(markdown(COLUMNS, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
