"""What a module call costs without a model around it, in microseconds: hooks, recording, and what happens to a record afterwards.

A chain of modules that return what they get is called in a loop. The model's thread is timed by its own CPU clock, work on other threads by the
process's, and the fastest of many runs counts: noise only adds. In a real model a call costs two to three times that, as nothing is in the caches.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from benchmarks.receiver import count
from benchmarks.rounds import note
from benchmarks.rows import lifted

__all__ = ["COLUMNS", "micro"]

COLUMNS = (
    ("what", "for each module call"),
    ("thread", "us on the model's thread"),
    ("other", "us of CPU on other threads"),
    ("spans", "spans"),
)
MODULES = 400
CALLS = 8


def _chain() -> Any:
    from torch import nn

    class Same(nn.Module):
        def forward(self, value: Any) -> Any:
            return value

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Same() for _ in range(MODULES))

        def forward(self, value: Any) -> Any:
            for layer in self.layers:
                value = layer(value)
            return value

    return Chain().eval()


def _removing(handles: list[Any]) -> Callable[[], None]:
    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def _idle(chain: Any) -> Callable[[], None]:
    def nothing(*_: Any) -> None:
        return None

    handles = [
        handle for layer in chain.layers for handle in (layer.register_forward_pre_hook(nothing), layer.register_forward_hook(nothing))
    ]
    return _removing(handles)


def _recording(chain: Any) -> Callable[[], None]:
    import inferspan

    return inferspan.instrument(chain, **lifted(modules="all")).uninstrument


def _looking(**settings: Any) -> Callable[[Any], Callable[[], None]]:
    """Something is looked at inside, and no module is recorded otherwise."""

    def attach(chain: Any) -> Callable[[], None]:
        import inferspan

        return inferspan.instrument(chain, **lifted(modules="none", **settings)).uninstrument

    return attach


def _with_figures(**settings: Any) -> Callable[[Any], Callable[[], None]]:
    """Modules are recorded with figures of what they return or are called with."""

    def attach(chain: Any) -> Callable[[], None]:
        import inferspan

        return inferspan.instrument(chain, **lifted(modules="all", **settings)).uninstrument

    return attach


def _function(chain: Any) -> Callable[[], None]:
    """A function of the program at each module."""
    import inferspan

    handle = inferspan.instrument(chain, **lifted(modules="none"))
    handle.on_module("layers.*", lambda *_: None)
    return handle.uninstrument


def _as_stages(chain: Any) -> Callable[[], None]:
    """Each module is a stage of the model, and no module is recorded as one."""
    import inferspan

    return inferspan.instrument(chain, **lifted(modules="none", stages={"part": ["layers.*"]})).uninstrument


def _own_provider(chain: Any) -> Callable[[], None]:
    """A provider of the program's own: records become spans of the SDK and go to its processor."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    import inferspan

    provider = TracerProvider(shutdown_on_exit=False)
    kept = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    handle = inferspan.instrument(chain, tracer_provider=provider, **lifted(modules="all"))
    return handle.uninstrument


def _unsampled(chain: Any) -> Callable[[], None]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    import inferspan

    return inferspan.instrument(chain, tracer_provider=TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)).uninstrument


def _naive(chain: Any) -> Callable[[], None]:
    """One SDK span a module, started and ended in hooks."""
    from opentelemetry import trace

    tracer = trace.get_tracer("naive")
    stack: list[Any] = []

    def enter(module: Any, args: Any) -> None:
        stack.append(tracer.start_span("module"))

    def leave(module: Any, args: Any, output: Any) -> None:
        stack.pop().end()

    handles = [handle for layer in chain.layers for handle in (layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave))]
    return _removing(handles)


WAYS: tuple[tuple[str, Callable[[Any], Callable[[], None]]], ...] = (
    ("a pair of torch's hooks that does nothing", _idle),
    ("instrumented, not sampled", _unsampled),
    ("recorded; packed and exported by our own pipeline", _recording),
    ("the same modules recorded as stages of the model", _as_stages),
    ("recorded, `output_stats=True`", _with_figures(output_stats=True)),
    ("recorded, `input_stats=True`", _with_figures(input_stats=True)),
    ("`numerics=\"all\"`, nothing recorded", _looking(numerics="all")),
    ("`numerics=\"all\"`, `numerics_inputs=True`, nothing recorded", _looking(numerics="all", numerics_inputs=True)),
    ("a function of `on_module()` that does nothing, nothing recorded", _function),
    ("recorded; made into SDK spans, kept in memory", _own_provider),
    ("naive: an SDK span, exported", _naive),
)


def micro(address: str, *, seconds: float) -> list[dict[str, Any]]:
    """Measure every way; the first line is the call itself, the others are what comes on top of it."""
    import torch

    chain = _chain()
    value = torch.zeros(1, 8)
    share = seconds / (len(WAYS) + 1)
    note("micro: plain call")
    plain, _, _ = _fastest(chain, value, lambda _: lambda: None, address, share)
    lines = [{"what": "the call itself", "thread": f"{plain:.3f}", "other": "", "spans": "", "us": plain}]
    for name, attach in WAYS:
        note(f"micro: {name}")
        thread, other, spans = _fastest(chain, value, attach, address, share)
        lines.append(
            {
                "what": name,
                "thread": f"+{thread - plain:.3f}",
                "other": f"{other:.3f}" if spans or "SDK" in name else "",
                "spans": f"{spans:,}",
                "us": thread - plain,
                "us elsewhere": other,
            }
        )
    return lines


def _fastest(chain: Any, value: Any, attach: Callable[[Any], Callable[[], None]], address: str, seconds: float) -> tuple[float, float, int]:
    """Microseconds a module call on this thread, and on the others, until everything is exported; and the spans of a run."""
    import inferspan

    best, other, spans = float("inf"), float("inf"), 0
    deadline = time.monotonic() + seconds
    runs = 0
    while runs < 3 or time.monotonic() < deadline:
        gc.collect()
        undo = attach(chain)
        chain(value)
        inferspan.flush(60)
        count(address)
        process, thread = time.process_time(), time.thread_time()
        for _ in range(CALLS):
            chain(value)
        here = time.thread_time() - thread
        inferspan.flush(60)
        elsewhere = time.process_time() - process - (time.thread_time() - thread)
        undo()
        arrived = count(address)
        calls = MODULES * CALLS
        best, other, spans = min(best, here / calls * 1e6), min(other, elsewhere / calls * 1e6), arrived.total
        runs += 1
    return best, max(0.0, other), spans
