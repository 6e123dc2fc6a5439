"""What a scenario works with: providers of its own, ways to call a model, and in the end everything that came out."""

from __future__ import annotations

import hashlib
import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from opentelemetry import trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from torch import Tensor, nn

import inferspan
from benchmarks.scenarios import otlp_json, sdk
from benchmarks.scenarios.trees import Log, Metric, Point, Span, log_list, metric_table, span_forest

__all__ = ["Run", "exactly", "greedy"]

_counted: dict[tuple[str, str], float] = {}
"""Values of cumulative counters of the process, which outlive a scenario, when they were last read."""
_OF_THE_PROCESS = "inferspan.telemetry.errors"


def exactly(tokens: int, **more: Any) -> dict[str, Any]:
    """Options of a greedy request for this number of tokens, no matter what the model says."""
    return {"do_sample": False, "max_new_tokens": tokens, "min_new_tokens": tokens, **more}


def greedy(tokens: int, **more: Any) -> dict[str, Any]:
    """Options of a greedy request for at most this number of tokens."""
    return {"do_sample": False, "max_new_tokens": tokens, **more}


class _Levels(logging.Handler):
    """Levels of warnings and errors; their wording may change."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(f"{record.name.split('.')[0]} {record.levelname}")


def _numbers(value: Any) -> Any:
    """Results as numbers: ids whole, floats with the digits that do not depend on the kernel."""
    if isinstance(value, Tensor):
        if value.is_meta:
            return list(value.shape)
        return value.tolist() if not value.is_floating_point() else [list(value.shape), round(float(value.detach().double().nansum()), 3)]
    if isinstance(value, Mapping):
        return {str(key): _numbers(part) for key, part in value.items() if isinstance(part, Tensor | list | tuple | int | float | str)}
    if isinstance(value, list | tuple):
        return [_numbers(part) for part in value]
    return value if isinstance(value, str | int | float | bool | None) else type(value).__name__


class Run:
    """One scenario at work.

    Args:
        folder: where it may write files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ordered = True
        """False where threads race: roots and log records then come in the order of what they hold."""
        self.outcomes: list[Any] = []
        """What the program got: results and exceptions."""
        self.spans, self.metrics, self.logs = InMemorySpanExporter(), InMemoryMetricReader(), InMemoryLogRecordExporter()
        self.use()
        self.meter_provider: Any = MeterProvider([self.metrics], shutdown_on_exit=False)
        logger_provider = LoggerProvider(shutdown_on_exit=False)
        logger_provider.add_log_record_processor(SimpleLogRecordProcessor(self.logs))
        self.logger_provider: Any = logger_provider
        self.exits = ExitStack()
        """Undone when the scenario has ended, after everything was collected."""
        self.handles: list[Any] = []
        self._models: list[nn.Module] = []
        self._messages: list[dict[str, Any]] = []
        self._levels = _Levels()

    # -------------------------------------------------------------------------------------------------------- arranging
    def use(self, *processors: SpanProcessor, sampler: Sampler = ALWAYS_ON, limits: SpanLimits | None = None) -> None:
        """Take another tracer provider; without processors it has a simple one.

        Args:
            *processors: of the provider, which must lead to ``self.spans``.
            sampler: of the provider.
            limits: of its spans.
        """
        resource = Resource.create({"service.name": "scenario"})
        provider = TracerProvider(sampler=sampler, span_limits=limits, resource=resource, shutdown_on_exit=False)
        for processor in processors or (SimpleSpanProcessor(self.spans),):
            provider.add_span_processor(processor)
        self.tracer_provider: Any = provider

    def watch(self, model: Any, tokenizer: Any = None, **settings: Any) -> Any:
        """Instrument a model with the providers of this run and without samplers; returns the model."""
        providers = {"tracer_provider": self.tracer_provider, "meter_provider": self.meter_provider, "logger_provider": self.logger_provider}
        return self.watch_globally(model, tokenizer, **providers, **settings)

    def watch_globally(self, model: Any, tokenizer: Any = None, **settings: Any) -> Any:
        """Instrument a model without providers, as a program does that leaves them to the library."""
        self.handles.append(inferspan.instrument(model, tokenizer, **{"nvml": False, "host": False, "allocator": False, **settings}))
        if isinstance(model, nn.Module):
            self._models.append(model)
        return model

    def forget(self, model: Any) -> None:
        """Hold a model and its handles no longer."""
        self._models = [one for one in self._models if one is not model]
        self.handles.clear()

    @contextmanager
    def variables(self, **variables: str) -> Iterator[None]:
        """Set variables of the environment inside the block."""
        os.environ.update(variables)
        try:
            yield
        finally:
            for name in variables:
                os.environ.pop(name, None)

    # ---------------------------------------------------------------------------------------------------------- calling
    def attempt(self, action: Callable[[], Any], raises: type[BaseException] | None = None) -> Any:
        """Run something and keep its result, or the exception that is expected of it.

        Raises:
            AssertionError: the exception did not come.
        """
        if raises is None:
            result = action()
            self.outcomes.append(_numbers(result))
            return result
        try:
            action()
        except raises as error:
            self.outcomes.append(f"{type(error).__name__}: {error}")
            return None
        raise AssertionError(f"{raises.__name__} was expected")

    def generate(self, model: Any, *arguments: Any, raises: type[BaseException] | None = None, **options: Any) -> Any:
        """``model.generate()`` without gradients."""
        with torch.no_grad():
            return self.attempt(lambda: model.generate(*arguments, **options), raises)

    def forward(self, model: Any, *arguments: Any, raises: type[BaseException] | None = None, **options: Any) -> Any:
        """``model()`` without gradients."""
        with torch.no_grad():
            return self.attempt(lambda: model(*arguments, **options), raises)

    def received(self, messages: Sequence[dict[str, Any]]) -> None:
        """Take OTLP JSON as something that came out."""
        self._messages += messages

    # ------------------------------------------------------------------------------------------------------- collecting
    def play(self, scenario: Callable[[Run], None]) -> dict[str, Any]:
        """Run a scenario; returns all it has left, in the plain form."""
        loggers = [logging.getLogger(name) for name in ("inferspan", "opentelemetry")]
        for logger in loggers:
            logger.addHandler(self._levels)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # sums in another order are other sums
        torch.manual_seed(0)
        random.seed(0)
        try:
            scenario(self)
            return self._collect()
        finally:
            for handle in self.handles:
                handle.uninstrument()
            self.exits.close()
            torch.set_num_threads(threads)
            for logger in loggers:
                logger.removeHandler(self._levels)

    def _collect(self) -> dict[str, Any]:
        inferspan.flush()  # first: ids of a foreign implementation may come from the program's random numbers, on another thread
        random_state = hashlib.sha256(bytes(torch.get_rng_state().tolist()) + repr(random.getstate()).encode()).hexdigest()[:12]
        metrics = list(sdk.metrics_of(self.metrics.get_metrics_data()))
        _since_last_time(metrics)
        for handle in self.handles:
            handle.uninstrument()
        inferspan.flush()
        spans: list[Span] = [sdk.span_of(span) for span in self.spans.get_finished_spans()]
        logs: list[Log] = [sdk.log_of(record) for record in self.logs.get_finished_logs()]
        for message in self._messages:
            spans += otlp_json.spans_of(message)
            metrics += otlp_json.metrics_of(message)
            logs += otlp_json.logs_of(message)
        forest, place_of = span_forest(spans, ordered=self.ordered)
        return {
            "outcomes": self.outcomes,
            "random": random_state,
            "span left current": trace.get_current_span() is not trace.INVALID_SPAN,
            "hooks left": sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for model in self._models for one in model.modules()),
            "log": dict(sorted(Counter(self._levels.seen).items())),
            "spans": forest,
            "metrics": metric_table(metrics),
            "logs": log_list(logs, place_of, ordered=self.ordered),
        }


def _since_last_time(metrics: Sequence[Metric]) -> None:
    """Take off counters of the process what earlier scenarios have counted."""
    for metric in metrics:
        if metric.name != _OF_THE_PROCESS:
            continue
        found: list[Point] = []
        for point in metric.points:
            key = (metric.name, repr(sorted(point.attributes.items())))
            before, _counted[key] = _counted.get(key, 0), point.value or 0
            point.value = _counted[key] - before
            if point.value:
                found.append(point)
        metric.points = found
