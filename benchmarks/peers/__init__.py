"""Other ways to observe the same model, run beside us: each is attached, measured and taken off again.

A peer that is not installed has a row that names what is missing (``pip install -r benchmarks/peers/requirements.txt``). Spans go to the same provider,
exporter and receiver as ours. Where a package leaves patches behind, its adapter takes them off, so that the next row begins with the plain model.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.models import Workload

__all__ = ["PEERS", "Peer"]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A package, or a way of doing it by hand."""

    key: str
    name: str
    attach: Callable[[Workload], Callable[[], Any]]
    expected: Callable[[Workload], int | None]
    gets: str
    package: str | None = None
    piped: bool = False
    compiled: bool = False

    def missing(self, work: Workload) -> str | None:
        """Why it cannot run here, if so."""
        if self.package is not None:
            try:
                importlib.metadata.version(self.package)
            except importlib.metadata.PackageNotFoundError:
                return "not installed"
        if self.piped and work.piped is None:
            return "sees pipelines only, and this model has no tokenizer"
        return None


def _naive(work: Workload) -> Callable[[], None]:
    """The obvious instrumentation: a span of the SDK for every module call, started and ended in its hooks."""
    from opentelemetry import trace

    tracer = trace.get_tracer("naive")
    stack: list[Any] = []

    def enter(module: Any, args: Any) -> None:
        parent = trace.set_span_in_context(stack[-1]) if stack else None
        span = tracer.start_span(type(module).__name__, context=parent)
        span.set_attribute("inputs", [str(list(one.shape)) for one in args if hasattr(one, "shape")])
        stack.append(span)

    def leave(module: Any, args: Any, output: Any) -> None:
        span = stack.pop()
        first = output[0] if isinstance(output, tuple) else output
        span.set_attribute("output", str(list(getattr(first, "shape", ()))))
        span.end()

    handles = [
        handle for one in work.model.modules() for handle in (one.register_forward_pre_hook(enter), one.register_forward_hook(leave))
    ]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def _profiler(work: Workload) -> Callable[[], None]:
    """``torch.profiler`` over the whole request; what it collects stays in memory."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if work.cuda else [])]
    running: Any = profile(activities=activities)
    running.__enter__()
    return lambda: running.__exit__(None, None, None)


def _openllmetry(work: Workload) -> Callable[[], Any]:
    from opentelemetry.instrumentation.transformers import TransformersInstrumentor

    instrumentor = TransformersInstrumentor()
    instrumentor.instrument(skip_dep_check=True)
    return instrumentor.uninstrument


def _openlit(work: Workload) -> Callable[[], Any]:
    """Its own ``uninstrument()`` does nothing: the method that it wraps is put back."""
    from openlit._config import OpenlitConfig
    from openlit.instrumentation.transformers import TransformersInstrumentor
    from transformers import TextGenerationPipeline

    pipeline: Any = TextGenerationPipeline
    inherited = "__call__" not in vars(pipeline)
    before = pipeline.__call__
    OpenlitConfig.reset_to_defaults()
    instrumentor = TransformersInstrumentor()
    options = {
        "application_name": "benchmark",
        "environment": "benchmark",
        "pricing_info": {},
        "capture_message_content": False,
        "disable_metrics": True,
    }
    instrumentor.instrument(skip_dep_check=True, **options)

    def undo() -> None:
        instrumentor.uninstrument()
        if inherited:
            del pipeline.__call__
        else:
            pipeline.__call__ = before

    return undo


def _torchtel(work: Workload) -> Callable[[], Any]:
    """It puts ``forward`` on the instance and leaves it there, bound; and keeps a closed stack that hides the next run's root span."""
    from torchtel import PyTorchInstrumentor

    instrumentor = PyTorchInstrumentor()
    instrumentor.instrument(model=work.model, skip_dep_check=True)

    def undo() -> None:
        if instrumentor._train_stack is None:
            instrumentor.init_train_span()
        instrumentor.uninstrument()
        instrumentor._train_stack = None
        work.model.__dict__.pop("forward", None)

    return undo


PEERS: tuple[Peer, ...] = (
    Peer(
        key="naive",
        name="naive hooks: one SDK span a module",
        attach=_naive,
        expected=lambda work: (work.modules + 1) * work.tokens,
        gets="every module of every step, nothing of requests, tokens or logits",
    ),
    Peer(
        key="profiler",
        name="torch.profiler",
        attach=_profiler,
        expected=lambda work: 0,
        gets="every operator and kernel, in memory: no requests, no export",
        compiled=True,
    ),
    Peer(
        key="torchtel",
        name="torchtel",
        package="torchtel",
        attach=_torchtel,
        expected=lambda work: work.tokens + 1,
        gets="one span a forward pass, made for training: no requests, tokens or modules",
    ),
    Peer(
        key="openllmetry",
        name="openllmetry (opentelemetry-instrumentation-transformers)",
        package="opentelemetry-instrumentation-transformers",
        attach=_openllmetry,
        expected=lambda work: 1,
        gets="the outer call of a text generation pipeline only",
        piped=True,
        compiled=True,
    ),
    Peer(
        key="openlit",
        name="openlit",
        package="openlit",
        attach=_openlit,
        expected=lambda work: 1,
        gets="the outer call of a text generation pipeline only, with estimated tokens",
        piped=True,
        compiled=True,
    ),
)
