"""What is measured: loads, which are requests to a model, the settings that they run under, and the parts that they belong to.

A part takes a few minutes and runs in a process of its own, because a compilation changes what comes after it. Models have random weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from benchmarks import machine, models
from benchmarks.models import Workload
from benchmarks.rows import chosen, lifted, sampled_steps

__all__ = ["PARTS", "SETTINGS", "Load", "Part", "Setting", "compile_something", "host_providers", "let_waits_sleep", "loads_of"]

PASSES_MS = (0.3, 3.0, 15.0)
TOKENS = (1, 8, 64, 512)
VOCABULARIES = (256, 49_152, 151_936)


@dataclass(frozen=True)
class Setting:
    """What is switched on; ``attach`` returns the undo."""

    key: str
    attach: Callable[[Workload], Callable[[], Any]]
    calls: Callable[[Workload], int]
    """Module calls that are recorded in one request."""
    fitted: bool = False
    """Whether its costs are a sum of times for a request, for steps and for module calls: not where logits are looked at."""


def _recorded(**settings: Any) -> Callable[[Workload], Callable[[], Any]]:
    def attach(work: Workload) -> Callable[[], Any]:
        import inferspan

        return inferspan.instrument(work.model, **{**work.providers, **settings}).uninstrument

    return attach


def _no_calls(work: Workload) -> int:
    return 0


def _layers(work: Workload) -> int:
    return work.layers * (1 if work.compiled else sampled_steps(max(1, work.tokens)))


def _all_modules(work: Workload) -> int:
    return work.modules * (1 if work.compiled else max(1, work.tokens))


SETTINGS = {
    setting.key: setting
    for setting in (
        Setting("A/A", lambda work: lambda: None, _no_calls),
        Setting("default", _recorded(), _layers),
        Setting("no logits", _recorded(logits=False), _layers, fitted=True),
        Setting("no logits, no modules", _recorded(logits=False, modules="none"), _no_calls, fitted=True),
        Setting("no logits, every module", _recorded(**lifted(modules="all", logits=False, device_time=False)), _all_modules, fitted=True),
        Setting("every module, device times", _recorded(**lifted(modules="all", device_time=True)), _all_modules),
        Setting("layers, device times", _recorded(**lifted(modules="layers", device_time=True)), _layers),
        Setting("not sampled", chosen("unsampled")[0].attach, _no_calls),
    )
}


@dataclass(frozen=True)
class Load:
    """Requests of one size to one model."""

    work: Workload
    size: str
    settings: Sequence[str]
    twin: Callable[[], Workload]
    """Makes the same requests to a model of their own."""

    @property
    def steps(self) -> int:
        """Steps of a request; 0 for a plain forward pass."""
        return self.work.tokens


@dataclass(frozen=True)
class Part:
    """Loads that are measured together."""

    name: str
    about: str
    loads: Callable[[Part, Sequence[int]], Iterator[Load]]
    model: str = "tiny"
    mode: str = "eager"
    settings: Sequence[str] = ("A/A", "default", "no logits")
    gpu: bool = False
    host: bool = False
    """Whether spans go through providers as a program has them, instead of inferspan's own."""
    after_compilation: bool = False
    sleeping: bool = False
    """Whether waits for the device sleep, so that time on the model's thread is work."""


def _generating(part: Part, tokens: Sequence[int]) -> Iterator[Load]:
    model, _ = models.load(part.model)
    # One for all sizes, and only where twins are asked for.
    another = cache(lambda: models.load(part.model)[0])

    def prepare(count: int, load: Callable[[], Any]) -> Workload:
        return models.prepare(part.model, load(), mode=part.mode, tokens=count)

    for count in tokens:
        yield Load(prepare(count, lambda: model), f"{count} tokens", part.settings, partial(prepare, count, another))


def _chain(depth: int = 20, width: int = 64) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth))).eval()


def _passes(part: Part, tokens: Sequence[int]) -> Iterator[Load]:
    import time

    import torch

    device = torch.device("cuda" if part.gpu else "cpu")

    def prepare_model() -> Any:
        model = _chain().to(device)
        return torch.compile(model) if part.mode == "compiled" else model

    def prepare(rows: int, model: Any) -> Workload:
        request = _a_pass(model, torch.randn(rows, 64, device=device))
        return Workload(name="20 linear layers", mode=part.mode, model=model, tokens=0, request=request)

    def twin(rows: int) -> Workload:
        return prepare(rows, prepare_model())

    for wanted in PASSES_MS:
        model = prepare_model()
        rows = 8
        while True:
            work = prepare(rows, model)
            request = work.request
            with suppress(StopIteration):
                request()
            took = []
            for _ in range(10):
                begun = time.perf_counter()
                request()
                took.append(time.perf_counter() - begun)
            if sorted(took)[5] * 1000 >= wanted or rows > 10_000_000:
                break
            rows = int(rows * max(1.2, min(8.0, wanted / 1000 / sorted(took)[5])))
        yield Load(work, f"pass of {wanted} ms", part.settings, partial(twin, rows))


def _a_pass(model: Any, rows: Any) -> Callable[[], Any]:
    import torch

    def request() -> Any:
        with torch.inference_mode():
            result = model(rows)
        if rows.is_cuda:
            torch.cuda.synchronize()
        return result

    return request


def _vocabularies(part: Part, tokens: Sequence[int]) -> Iterator[Load]:
    """One small layer and a large head: what a step costs beside that is the statistics of its logits."""

    def prepare(size: int) -> Workload:
        model = models.llama(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, vocab_size=size
        )
        return models.prepare(f"vocabulary {size}", model, tokens=64)

    for size in VOCABULARIES:
        yield Load(prepare(size), "64 tokens", part.settings, partial(prepare, size))


_WITH_MODULES = ("A/A", "default", "no logits", "no logits, no modules", "no logits, every module")
_ON_GPU = (*_WITH_MODULES, "every module, device times", "layers, device times")
_PLAIN_PASS = ("A/A", "default", "not sampled")
PARTS = {
    part.name: part
    for part in (
        Part("cpu-forward", "plain forward passes of 0.3, 3 and 15 ms", _passes, settings=_PLAIN_PASS),
        Part("cpu-forward-host", "the same through the program's providers", _passes, settings=_PLAIN_PASS, host=True),
        Part("cpu-forward-compiled", "the same, compiled", _passes, mode="compiled", settings=_PLAIN_PASS),
        Part("cpu-generate", "generate() of a small Llama", _generating, settings=(*_WITH_MODULES, "not sampled")),
        Part("cpu-generate-host", "the same through the program's providers", _generating, settings=_WITH_MODULES, host=True),
        Part("cpu-generate-after", "the same after a compilation", _generating, settings=_WITH_MODULES, after_compilation=True),
        Part("cpu-logits", "statistics of logits beside torch.logsumexp, three vocabularies", _vocabularies),
        Part("gpu-forward", "plain forward passes on a GPU", _passes, gpu=True, settings=_PLAIN_PASS),
        Part("gpu-1b-compiled", "compiled decode of a 1B shape", _generating, "llama-1b", "compiled", gpu=True),
        Part("gpu-1b-compiled-host", "the same through the program's providers", _generating, "llama-1b", "compiled", gpu=True, host=True),
        Part("gpu-1b-compiled-thread", "the same, waits for the device sleep", _generating, "llama-1b", "compiled", gpu=True, sleeping=True),
        Part("gpu-1b-eager", "eager decode of a 1B shape", _generating, "llama-1b", settings=_ON_GPU, gpu=True),
        Part("gpu-1b-eager-thread", "the same, waits for the device sleep", _generating, "llama-1b", settings=_ON_GPU, gpu=True, sleeping=True),
        Part("gpu-8b-compiled", "compiled decode of an 8B shape", _generating, "llama-8b", "compiled", gpu=True),
        Part("gpu-8b-compiled-host", "the same through the program's providers", _generating, "llama-8b", "compiled", gpu=True, host=True),
        Part("gpu-8b-eager", "eager decode of an 8B shape", _generating, "llama-8b", settings=_ON_GPU, gpu=True),
        Part("gpu-8b-eager-host", "the same through the program's providers", _generating, "llama-8b", settings=_ON_GPU, gpu=True, host=True),
        Part("gpu-8b-eager-after", "the same after a compilation", _generating, "llama-8b", settings=_ON_GPU, gpu=True, after_compilation=True),
        Part("gpu-logits", "statistics of logits beside torch.logsumexp, three vocabularies", _vocabularies, gpu=True),
    )
}


def loads_of(part: Part, tokens: Sequence[int]) -> Iterator[Load]:
    """The loads of a part, each made when it is asked for.

    Raises:
        RuntimeError: there is no GPU for a part that needs one.
    """
    if part.gpu and not machine.has_gpu():
        raise RuntimeError("needs an NVIDIA GPU")
    yield from part.loads(part, tokens)


def host_providers() -> tuple[dict[str, Any], Callable[[], Any]]:
    """Providers as the documentation of OpenTelemetry sets them up, as arguments of ``instrument()``, and what flushes them."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    return {"tracer_provider": tracers, "meter_provider": meters}, tracers.force_flush


def compile_something() -> None:
    """Let Dynamo compile in this process, which changes how torch calls the hooks of all modules."""
    import torch

    torch.compile(_chain(2), backend="eager")(torch.ones(1, 64))


def let_waits_sleep() -> None:
    """Have threads that wait for the first CUDA device sleep instead of spinning; only before anything has used it.

    Raises:
        OSError: there is no driver, or it refuses.
    """
    import ctypes

    driver = ctypes.CDLL("libcuda.so.1")
    blocking = 4
    for name, arguments in (("cuInit", (0,)), ("cuDevicePrimaryCtxSetFlags_v2", (0, blocking))):
        if (code := getattr(driver, name)(*arguments)) != 0:
            raise OSError(f"{name} of the CUDA driver answers {code}")
