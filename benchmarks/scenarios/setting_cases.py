"""Settings: what is recorded, which requests keep their detail, how it is named, and where it goes inside the process."""

# ruff: noqa: D103 - the name of a scenario says what it is; a docstring is there where it does not
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import inferspan
from benchmarks.scenarios import models
from benchmarks.scenarios.models import prompt, tokenizer
from benchmarks.scenarios.registry import Table
from benchmarks.scenarios.run import Run, exactly

scenario = Table("settings")


def _request(run: Run, *, rows: int = 1, tokens: int = 4, **settings: Any) -> None:
    run.generate(run.watch(models.llama(), **settings), prompt(rows), **exactly(tokens))


# --------------------------------------------------------------------------------------------------------- what is recorded
@scenario
def modules_none(run: Run) -> None:
    _request(run, modules="none")


@scenario
def modules_all(run: Run) -> None:
    _request(run, modules="all")


@scenario
def modules_by_pattern(run: Run) -> None:
    _request(run, modules=["model.layers.*.mlp", "lm_head"])


@scenario
def modules_that_match_nothing(run: Run) -> None:
    run.attempt(lambda: run.watch(models.llama(), modules=["no.such.*"]), raises=inferspan.SettingsError)


@scenario
def steps_sampled(run: Run) -> None:
    _request(run, steps="sampled", tokens=9)


@scenario
def steps_none(run: Run) -> None:
    _request(run, steps="none", tokens=5)


@scenario
def every_step(run: Run) -> None:
    _request(run, every_step=True, tokens=6)


@scenario
def every_step_and_module(run: Run) -> None:
    _request(run, every_step=True, modules="all", tokens=4)


@scenario
def budget_exceeded(run: Run) -> None:
    _request(run, max_spans_per_trace=20, tokens=12)


@scenario
def budget_exceeded_by_every_step(run: Run) -> None:
    _request(run, every_step=True, modules="all", span_hard_cap=60, max_spans_per_trace=60, tokens=6)


@scenario
def budget_of_one(run: Run) -> None:
    _request(run, max_spans_per_trace=1, tokens=3)


@scenario
def module_names_by_path(run: Run) -> None:
    _request(run, module_span_name="path", tokens=2)


@scenario
def module_names_by_type(run: Run) -> None:
    _request(run, module_span_name="type", modules="all", tokens=2)


@scenario
def logits_off(run: Run) -> None:
    _request(run, logits=False)


@scenario
def token_arrays_off(run: Run) -> None:
    _request(run, token_arrays=False, rows=2)


@scenario
def device_time_on_the_cpu(run: Run) -> None:
    _request(run, device_time=True, every_step=True, tokens=3)


@scenario
def device_time_off(run: Run) -> None:
    _request(run, device_time=False, tokens=3)


@scenario
def output_statistics(run: Run) -> None:
    _request(run, output_stats=True, rows=2, tokens=3)


@scenario
def entropy_metric(run: Run) -> None:
    _request(run, entropy_metric=True, rows=2)


@scenario
def module_metric(run: Run) -> None:
    _request(run, module_metric=True)


@scenario
def preset_light(run: Run) -> None:
    _request(run, preset="light", tokens=6)


@scenario
def preset_debug(run: Run) -> None:
    _request(run, preset="debug", tokens=3)


@scenario
def settings_from_the_environment(run: Run) -> None:
    with run.variables(INFERSPAN_MODULES="none", INFERSPAN_STEPS="sampled", INFERSPAN_TOP_K="many"):
        _request(run, tokens=5)


@scenario
def profiled_operations(run: Run) -> None:
    model = run.watch(models.llama())
    run.generate(model, prompt(), **exactly(2))
    with run.handles[-1].profile(steps=1, cpu_ops=True):
        run.generate(model, prompt(), **exactly(2))


# -------------------------------------------------------------------------------------------------- which requests keep detail
@scenario
def keep_slow_kept(run: Run) -> None:
    _request(run, keep="slow", slow_after=0.0)


@scenario
def keep_slow_first_token(run: Run) -> None:
    _request(run, keep="slow", slow_first_token=0.0)


@scenario
def keep_slow_left_out(run: Run) -> None:
    _request(run, keep="slow", slow_after=3600.0, slow_first_token=3600.0)


@scenario
def keep_errors_left_out(run: Run) -> None:
    _request(run, keep="errors,nonfinite", every_step=True, module_metric=True, entropy_metric=True)


@scenario
def keep_marked(run: Run) -> None:
    model = run.watch(models.llama(), keep="marked")
    run.generate(model, prompt(), **exactly(2))
    mark: Any = {"inferspan.keep": True}
    with inferspan.context(**mark):
        run.generate(model, prompt(), **exactly(2))


@scenario
def mark(run: Run) -> None:
    _request(run, mark=True, tokens=2)


# ------------------------------------------------------------------------------------------------------------ how it is named
@scenario
def semconv_latest(run: Run) -> None:
    _request(run, semconv="latest")


@scenario
def semconv_legacy(run: Run) -> None:
    _request(run, semconv="legacy")


@scenario
def span_kind_client(run: Run) -> None:
    _request(run, span_kind="client", tokens=2)


@scenario
def span_kind_server(run: Run) -> None:
    _request(run, span_kind="server", tokens=2)


@scenario
def names_given(run: Run) -> None:
    _request(run, operation="chat", model_name="org/small", provider_name="us", tokens=2)


@scenario
def vllm_latencies(run: Run) -> None:
    _request(run, compat_vllm_latency=True)


@scenario
def caller_context(run: Run) -> None:
    model = run.watch(models.llama())
    more: Any = {"app.tenant": "blue", "app.tries": [1, 2]}
    with inferspan.context(conversation_id="c-1", user_id="u-1", **more):
        run.generate(model, prompt(), **exactly(2))
        with inferspan.context(user_id="u-2", **{"app.tenant": None}):
            run.generate(model, prompt(), **exactly(2))


# -------------------------------------------------------------------------------------------------- around and beside the request
@contextmanager
def _attached(context: Any) -> Iterator[None]:
    token = otel_context.attach(context)
    try:
        yield
    finally:
        otel_context.detach(token)


@scenario
def inside_a_span_of_the_program(run: Run) -> None:
    model, tracer = run.watch(models.llama()), run.tracer_provider.get_tracer("program")
    with tracer.start_as_current_span("outer", attributes={"who": "program"}):
        run.generate(model, prompt(), **exactly(2))
        run.generate(model, prompt(), **exactly(2))


@scenario
def inside_a_gen_ai_span(run: Run) -> None:
    """Another library has announced its call in the context, and is filled with what it lacks."""

    class Theirs:
        usage_output_tokens: int | None = None

    theirs = Theirs()
    model, tracer = run.watch(models.llama(), span_kind="client"), run.tracer_provider.get_tracer("other.library")
    with tracer.start_as_current_span("chat model"), _attached(otel_context.set_value("opentelemetry.genai.client.inference.context", theirs)):
        run.generate(model, prompt(), **exactly(3))
    run.outcomes.append(theirs.usage_output_tokens)


@scenario
def suppressed(run: Run) -> None:
    model = run.watch(models.llama())
    with _attached(otel_context.set_value("suppress_instrumentation", True)):
        run.generate(model, prompt(), **exactly(3))
    run.generate(model, prompt(), **exactly(2))


@scenario
def unsampled(run: Run) -> None:
    run.use(sampler=ALWAYS_OFF)
    _request(run, entropy_metric=True)


@scenario
def unsampled_parent(run: Run) -> None:
    run.use(sampler=ParentBased(ALWAYS_OFF))
    model = run.watch(models.llama())
    for flags in (TraceFlags.DEFAULT, TraceFlags.SAMPLED):
        parent = NonRecordingSpan(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(flags)))
        with _attached(trace.set_span_in_context(parent)):
            run.generate(model, prompt(), **exactly(2))


class Watcher(SpanProcessor):
    """Notes the spans whose start it sees."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def on_start(self, span: Span, parent_context: otel_context.Context | None = None) -> None:
        self.started.append(span.name)


@scenario
def processor_that_sees_starts(run: Run) -> None:
    watcher = Watcher()
    run.use(watcher, SimpleSpanProcessor(run.spans))
    _request(run)
    inferspan.flush()
    run.outcomes.append(sorted(watcher.started))


class Broken(SpanProcessor):
    """Fails at the end of every span."""

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("no room")


@scenario
def processor_that_fails(run: Run) -> None:
    run.use(SimpleSpanProcessor(run.spans), Broken())
    run.attempt(lambda: _request(run, tokens=2))


@scenario
def batch_processor_of_the_host(run: Run) -> None:
    batch = BatchSpanProcessor(run.spans, schedule_delay_millis=3_600_000)
    run.use(batch)
    _request(run, rows=2)
    inferspan.flush()
    batch.force_flush()
    run.exits.callback(run.tracer_provider.shutdown)


@scenario
def span_limits_of_the_host(run: Run) -> None:
    run.use(limits=SpanLimits(max_attributes=12, max_attribute_length=5))
    _request(run, tokens=2)


class ForeignTracerProvider(trace.TracerProvider):
    """Another implementation of the API, which happens to delegate to the SDK."""

    def __init__(self, inner: TracerProvider) -> None:
        self.inner = inner

    def get_tracer(self, *arguments: Any, **options: Any) -> trace.Tracer:
        return ForeignTracer(self.inner.get_tracer(*arguments, **options))


class ForeignTracer(trace.Tracer):
    """Starts spans of the SDK, and is none of its tracers."""

    def __init__(self, inner: trace.Tracer) -> None:
        self.inner = inner

    def start_span(self, *arguments: Any, **options: Any) -> trace.Span:
        return self.inner.start_span(*arguments, **options)

    def start_as_current_span(self, *arguments: Any, **options: Any) -> Any:
        return self.inner.start_as_current_span(*arguments, **options)


@scenario
def foreign_tracer_provider(run: Run) -> None:
    run.tracer_provider = ForeignTracerProvider(run.tracer_provider)
    _request(run, rows=2)


@scenario
def instrumented_twice(run: Run) -> None:
    model = run.watch(run.watch(models.llama()))
    run.generate(model, prompt(), **exactly(2))
    run.handles[0].uninstrument()
    run.generate(model, prompt(), **exactly(2))
    run.attempt(lambda: run.watch(model, logits=False), raises=inferspan.SettingsError)
    run.outcomes.append(inferspan.uninstrument(model))
    run.generate(model, prompt(), **exactly(2))


@scenario
def summary(run: Run) -> None:
    model = run.watch(models.llama(), tokenizer(), keep="errors")
    run.generate(model, prompt(2), **exactly(3))
    run.forward(model, prompt())
    totals = run.handles[-1].summary()
    run.outcomes.append([totals.requests, totals.errors, totals.detail_kept, totals.detail_left_out])


@scenario
def two_models_of_one_class(run: Run) -> None:
    first, second = run.watch(models.llama(), modules="none"), run.watch(models.llama(num_hidden_layers=1), logits=False)
    for model in (first, second, first):
        run.generate(model, prompt(), **exactly(2))
    run.outcomes.append(torch.is_grad_enabled())
