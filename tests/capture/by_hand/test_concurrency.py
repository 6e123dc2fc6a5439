"""Generations that take turns: tasks of one event loop, threads, and generators that are read in any order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from typing import Any

import pytest
import torch
from opentelemetry import context as otel_context
from opentelemetry import trace

import inferspan
from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

from .loops import given, greedy, providers

IDS = models.prompt(1, 4)


def _model() -> Any:
    return models.llama(eos_token_id=None)


def _options(telemetry: Telemetry, model: Any, attach: bool) -> dict[str, Any]:
    if not attach:
        return providers(telemetry)
    telemetry.instrument(model)
    return {}


def _children(telemetry: Telemetry) -> list[list[str]]:
    """Names of all spans of each trace, sorted."""
    traces: dict[int, list[str]] = {}
    for span in telemetry.spans():
        traces.setdefault(span.context.trace_id if span.context else 0, []).append(span.name)
    return sorted(sorted(names) for names in traces.values())


@torch.no_grad()
def _turns(model: Any, options: dict[str, Any], steps: int = 3) -> Generator[int, None, None]:
    with inferspan.generation(model, input_tokens=IDS, max_new_tokens=steps, **options) as g:
        ids = IDS
        for step in range(steps):
            with g.step() if step else g.prefill():
                logits = model(ids).logits
            token = logits[:, -1].argmax(-1)
            g.token(logits, token)
            ids = torch.cat([ids, token[:, None]], 1)
            yield int(token)
        g.finish("length")


def _alone(attach: bool) -> list[str]:
    """The spans of one generation with nothing beside it."""
    telemetry, model = Telemetry(), _model()
    list(_turns(model, _options(telemetry, model, attach)))
    telemetry.close()
    (names,) = _children(telemetry)
    return names


@pytest.mark.parametrize("attach", [True, False], ids=["instrumented", "not instrumented"])
def test_tasks_that_take_turns(telemetry: Telemetry, attach: bool) -> None:
    """Tasks of one event loop have a trace each, also if they wait inside of a step; passes on other threads are theirs."""
    model = _model()
    options = _options(telemetry, model, attach)

    async def loop(thread: bool) -> None:
        ids = IDS
        with inferspan.generation(model, input_tokens=IDS, max_new_tokens=3, **options) as g:
            for step in range(3):
                with g.step() if step else g.prefill():
                    await asyncio.sleep(0)
                    logits = (await asyncio.to_thread(model, ids) if thread else model(ids)).logits
                    await asyncio.sleep(0)
                token = logits[:, -1].argmax(-1)
                g.token(logits.detach(), token)
                await asyncio.sleep(0)
                ids = torch.cat([ids, token[:, None]], 1)
            g.finish("length")

    async def main() -> None:
        await asyncio.gather(*(loop(thread) for thread in (False, True, False)))

    asyncio.run(main())
    alone = _alone(attach)
    # Only the first request is recorded with all its modules at once; the steps and their number are the same.
    assert telemetry.usage() == [(4, 3)] * 3
    assert len(telemetry.roots()) == 3
    assert telemetry.forwards() == []
    assert [sorted(set(names)) for names in _children(telemetry)] == [sorted(set(alone))] * 3
    assert _children(telemetry) == [alone] * 3
    telemetry.check()


@pytest.mark.parametrize("attach", [True, False], ids=["instrumented", "not instrumented"])
def test_generators_that_take_turns(telemetry: Telemetry, attach: bool) -> None:
    """Generators that are read in turn have a trace each, and nothing stays current once both have ended."""
    model = _model()
    options = _options(telemetry, model, attach)
    first = _turns(model, options, 3)
    next(first)
    second = _turns(model, options, 5)
    for _ in range(4):
        next(second)
        next(first, None)
    assert list(second) != []
    assert telemetry.usage() == [(4, 3), (4, 5)]
    assert len(telemetry.roots()) == 2
    assert telemetry.forwards() == []
    telemetry.check()


def test_a_generator_that_is_left(telemetry: Telemetry) -> None:
    """Who stops reading ends the generation with the exception by which Python does it, as a streamed request that is cut short."""
    model = _model()
    tokens = _turns(model, _options(telemetry, model, True), 5)
    next(tokens)
    next(tokens)
    tokens.close()
    request = telemetry.only()
    assert request[semconv.FINISH_REASONS] == ("error",)
    assert request[semconv.OUTPUT_TOKENS] == 2
    assert request[semconv.ERROR_TYPE] == "GeneratorExit"
    telemetry.check()


def test_threads(telemetry: Telemetry) -> None:
    """Each thread has its own generation on one model."""
    model = _model()
    telemetry.instrument(model, modules="none")
    start = threading.Barrier(4)

    def run() -> None:
        start.wait()
        greedy(model, given(models.prompt(2, 6)), 4)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert telemetry.usage() == [(12, 8)] * 4
    assert len(telemetry.roots()) == 4
    telemetry.check()


def test_ended_on_another_thread(telemetry: Telemetry) -> None:
    """A generation may be begun, stepped and ended on three threads; nothing stays current on any."""
    model = _model()
    telemetry.instrument(model, modules="none")
    generation = inferspan.generation(model, input_tokens=IDS)
    seen: list[Any] = []

    def on_a_thread(run: Any) -> None:
        def noted() -> None:
            run()
            seen.append(trace.get_current_span(otel_context.get_current()))

        thread = threading.Thread(target=noted)
        thread.start()
        thread.join()

    def step() -> None:
        with torch.no_grad(), generation.prefill():
            model(IDS)
        generation.token(None, 5)

    generation.__enter__()
    on_a_thread(step)
    on_a_thread(lambda: generation.__exit__(None, None, None))
    assert [span is trace.INVALID_SPAN for span in seen] == [True, True]
    assert telemetry.usage() == [(4, 1)]
    assert telemetry.forwards() == []
    trace.set_span_in_context(trace.INVALID_SPAN)
    otel_context.attach(otel_context.Context())  # the thread that began it has never left it
    telemetry.check()


def test_a_generation_that_another_thread_has_ended_in_a_step(telemetry: Telemetry) -> None:
    """On the thread that began the step, later passes, also those of the same model, are requests of their own, in traces of their own."""
    model, other = _model(), torch.nn.Linear(4, 2)
    telemetry.instrument(model)
    telemetry.instrument(other)
    generation = inferspan.generation(model, input_tokens=4)
    generation.__enter__()
    generation.prefill().__enter__()
    thread = threading.Thread(target=generation.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    model(IDS)
    other(torch.ones(1, 4))
    model(IDS)
    assert len(telemetry.roots()) == 4
    assert len({span.context.trace_id for span in telemetry.roots() if span.context is not None}) == 4
    telemetry.check()


def test_inside_a_span_and_a_session(telemetry: Telemetry) -> None:
    """A generation is a child of the caller's span, and spans of the program inside are its children."""
    tracer = telemetry.tracer_provider.get_tracer("user")
    with tracer.start_as_current_span("request"), inferspan.generation("small", **providers(telemetry)) as g:
        with g.prefill(), tracer.start_as_current_span("kernel"):
            pass
        with inferspan.stage("sampling"):
            g.token(None, 5)
    names = {span.context.span_id: span.name for span in telemetry.spans() if span.context}
    parents = {span.name: names.get(span.parent.span_id if span.parent else 0) for span in telemetry.spans()}
    request = "text_completion small"
    assert parents[request] == "request"
    assert parents["kernel"] == request
    assert parents["sampling"] == request
    telemetry.check()
