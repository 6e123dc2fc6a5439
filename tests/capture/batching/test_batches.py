"""Steps that requests share: spans of a batch, linked to the requests in them, and its metrics."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from inferspan import semconv
from tests.capture.batching.loops import PROMPTS, batches, bounded, linked, manager, requests, results, said_by, steps, together
from tests.cases import models
from tests.cases.telemetry import Telemetry

MIXED = [[5, 6, 7], [8, 9]]


def _figures(step: Any) -> tuple[Any, ...]:
    keys = (semconv.PHASE, semconv.STEP_ROWS, semconv.BATCH_TOKENS)
    return tuple(said_by(step)[key] for key in keys)


def test_steps_are_linked_to_the_requests_in_them(telemetry: Telemetry) -> None:
    """Each step has a link to each request that was in it, and is a child of the batch in a trace of its own."""
    model = models.llama()
    telemetry.instrument(model)
    with telemetry.tracer_provider.get_tracer("app").start_as_current_span("job"):
        together(model, MIXED)
    telemetry.check()
    (batch,) = batches(telemetry)
    assert batch.parent is None
    assert batch.context.trace_id not in {request.context.trace_id for request in requests(telemetry)}
    found = steps(telemetry)
    assert len(found) == 5
    for step in found:
        assert step.parent is not None
        assert step.parent.span_id == batch.context.span_id
        assert sorted(linked(telemetry, step)) == ["req_0", "req_1"]
        assert step.links[0].context.trace_id == requests(telemetry)[0].context.trace_id


def test_figures_of_the_steps(telemetry: Telemetry) -> None:
    """Requests, positions and phase of each step are those that its requests make necessary."""
    model = models.llama()
    telemetry.instrument(model)
    together(model, MIXED, loop=bounded(num_blocks=20))
    assert [_figures(step) for step in steps(telemetry)] == [("prefill", 2, 5), *[("decode", 2, 2)] * 4]
    assert [said_by(step)[semconv.STEP_WAITING] for step in steps(telemetry)] == [0] * 5
    assert [said_by(step)[semconv.KV_CACHE_BLOCKS_USED] for step in steps(telemetry)] == [2] * 5
    assert said_by(batches(telemetry)[0])[semconv.BATCH_STEPS] == 5


def test_a_request_that_joins_a_running_batch(telemetry: Telemetry) -> None:
    """With one place in the batch the second request waits, which the steps of the first one say."""
    model = models.llama()
    telemetry.instrument(model)
    with manager(model, loop=bounded(max_requests_per_batch=1), start=False) as loop:
        loop.add_request(PROMPTS[0], request_id="first")
        loop.add_request(PROMPTS[1], request_id="second")
        loop.start()
        results(loop, 2)
    found = steps(telemetry)
    assert [linked(telemetry, step) for step in found] == [["first"]] * 5 + [["second"]] * 5
    assert [said_by(step)[semconv.STEP_WAITING] for step in found] == [1] * 5 + [0] * 5
    queued = [said_by(request)[semconv.TIME_IN_QUEUE] for request in requests(telemetry)]
    assert queued[1] > queued[0]


def test_metrics_of_a_batch(telemetry: Telemetry) -> None:
    """One value for each step, once, whatever the number of requests; the state of the loop when it is idle."""
    model = models.llama()
    telemetry.instrument(model)
    together(model, MIXED)
    telemetry.spans()
    metrics = telemetry.metrics()
    assert [value for _, value in metrics[semconv.M_BATCH_REQUESTS]] == [5]
    assert telemetry.metric_sum(semconv.M_BATCH_REQUESTS) == 10
    assert telemetry.metric_sum(semconv.M_BATCH_TOKENS) == 13
    assert telemetry.metric_sum(semconv.M_BATCH_WAITING) == 0
    assert telemetry.metric_sum(semconv.M_KV_BLOCKS_LIMIT) == 16
    assert telemetry.metric_sum(semconv.M_KV_BLOCKS_USED) == 0
    assert [(labels, value) for labels, value in metrics[semconv.M_STEP_DURATION]] == [
        ("[('inferspan.phase', 'decode')]", 4),
        ("[('inferspan.phase', 'prefill')]", 1),
    ]


def test_an_idle_loop_ends_its_batch(telemetry: Telemetry) -> None:
    """Two requests with a pause between them are in two batches, each with the steps of one."""
    model = models.llama()
    telemetry.instrument(model)
    with manager(model) as loop:
        for request_id in ("first", "second"):
            loop.add_request(PROMPTS[0], request_id=request_id)
            results(loop, 1)
            while len(batches(telemetry)) < (1 if request_id == "first" else 2):
                pass
    assert [said_by(batch)[semconv.BATCH_STEPS] for batch in batches(telemetry)] == [5, 5]
    telemetry.check()


def test_a_long_run_is_cut_into_batches(telemetry: Telemetry) -> None:
    """A batch has at most 1,000 steps, so that its trace stays small."""
    model = models.llama(max_position_embeddings=2000)
    telemetry.instrument(model)
    together(model, [[5]], max_new_tokens=1100, loop=bounded(num_blocks=80))
    found = [said_by(batch)[semconv.BATCH_STEPS] for batch in batches(telemetry)]
    assert sum(found) == 1100
    assert 100 <= max(found) <= 1000
    telemetry.check()


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [({"steps": "sampled"}, [0, 1, 2, 4]), ({"steps": "none"}, []), ({"keep": "errors"}, []), ({"max_spans_per_trace": 4}, [0, 1, 2])],
    ids=["sampled", "none", "kept requests", "budget"],
)
def test_which_steps_get_spans(telemetry: Telemetry, settings: dict[str, Any], numbers: list[int]) -> None:
    """The settings choose; metrics cover all steps."""
    model = models.llama()
    telemetry.instrument(model, **settings)
    together(model)
    telemetry.check()
    assert [said_by(step)[semconv.STEP_INDEX] for step in steps(telemetry)] == numbers
    assert telemetry.metric_sum(semconv.M_BATCH_REQUESTS) == 15
    assert len(requests(telemetry)) == 3


def test_metrics_without_sampled_traces() -> None:
    """Requests that are not sampled have no spans and all metrics."""
    telemetry = Telemetry(ALWAYS_OFF)
    model = models.llama()
    telemetry.instrument(model)
    found = together(model)
    assert telemetry.spans() == []
    assert telemetry.metric_sum(semconv.M_USAGE_OUTPUT) == sum(len(one.generated_tokens) for one in found)
    assert telemetry.metric_sum(semconv.M_BATCH_REQUESTS) == 15
    telemetry.close()


def test_links_are_bounded(telemetry: Telemetry) -> None:
    """A step of 140 requests is linked to 128 of them."""
    model = models.llama()
    telemetry.instrument(model)
    together(model, [[3 + number % 60] for number in range(140)], loop=bounded(num_blocks=200, max_batch_tokens=256), max_new_tokens=2)
    (first, *_) = steps(telemetry)
    assert said_by(first)[semconv.STEP_ROWS] == 140
    assert len(first.links) == 128
    telemetry.check()
