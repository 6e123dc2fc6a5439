"""How requests of continuous batching end that do not run to their end: cancelled, failed, refused, or not observed any more."""

from __future__ import annotations

import gc
import logging
import queue
import time
from typing import Any

import pytest
import torch
from opentelemetry import context as otel_context

import inferspan
from inferspan import semconv
from tests.capture.batching.loops import PROMPTS, batches, bounded, manager, of_request, requests, results, said_by, steps
from tests.cases import models
from tests.cases.telemetry import Telemetry

LONG = 10_000
"""Tokens that no test waits for."""


def _until(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it has not happened in a minute"
        time.sleep(0.01)


def _running(loop: Any, request_id: str) -> bool:
    processor = loop.batch_processor
    state = processor.scheduler.active_requests.get(request_id) if processor is not None else None
    return state is not None and len(state.generated_tokens) > 2


@pytest.fixture
def patient() -> Any:
    """A model with room for many tokens."""
    return models.llama(max_position_embeddings=LONG)


def test_a_cancelled_request(telemetry: Telemetry, patient: Any) -> None:
    """It ends as an error of its own type, with the tokens that it had; the others run on."""
    telemetry.instrument(patient)
    with manager(patient, loop=bounded(num_blocks=700)) as loop:
        loop.add_request(PROMPTS[0], request_id="unwanted", max_new_tokens=LONG)
        _until(lambda: _running(loop, "unwanted"))
        loop.cancel_request("unwanted")
        loop.add_request(PROMPTS[1], request_id="wanted")
        results(loop, 1)
        _until(lambda: len(requests(telemetry)) == 2)
    telemetry.check()
    said = of_request(telemetry, "unwanted")
    assert said[semconv.ERROR_TYPE] == "cancelled"
    assert said[semconv.FINISH_REASONS] == ("error",)
    assert said[semconv.OUTPUT_TOKENS] > 2
    assert semconv.ERROR_TYPE not in of_request(telemetry, "wanted")


def test_a_request_that_is_cancelled_in_the_queue(telemetry: Telemetry, patient: Any) -> None:
    """It has no phases, no time to a first token, and the queue is all that it has seen."""
    telemetry.instrument(patient)
    with manager(patient, loop=bounded(num_blocks=700, max_requests_per_batch=1)) as loop:
        loop.add_request(PROMPTS[0], request_id="running", max_new_tokens=LONG)
        _until(lambda: _running(loop, "running"))
        loop.add_request(PROMPTS[1], request_id="queued")
        loop.cancel_request("queued")
        _until(lambda: requests(telemetry))
        loop.cancel_request("running")
        _until(lambda: len(requests(telemetry)) == 2)
    telemetry.check()
    said = of_request(telemetry, "queued")
    assert said[semconv.ERROR_TYPE] == "cancelled"
    assert semconv.TTFT not in said
    assert semconv.TIME_IN_QUEUE not in said


def test_a_loop_that_fails(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """Every request in it ends with the exception of the loop, whether it ran or waited."""
    model = models.llama()
    telemetry.instrument(model)

    def broken(*_: Any) -> None:
        raise LookupError("theirs")

    with manager(model, start=False) as loop:
        for number, prompt in enumerate(PROMPTS):
            loop.add_request(prompt, request_id=str(number))
        hook = model.model.layers[0].register_forward_pre_hook(broken)
        loop.start()
        found = results(loop, 3)
        hook.remove()
        _until(lambda: not loop.is_running())
    assert all("theirs" in result.error for result in found.values())
    assert len(requests(telemetry)) == 3
    for request in requests(telemetry):
        said = said_by(request)
        assert said[semconv.ERROR_TYPE] == "LookupError"
        assert said[semconv.FINISH_REASONS] == ("error",)
    assert telemetry.metric_sum(semconv.M_ACTIVE) == 0
    telemetry.check()


def test_requests_of_one_id_that_are_open_at_once(telemetry: Telemetry) -> None:
    """The loop knows one of them: when it fails, both end, as nothing will be heard of the other."""
    model = models.llama()
    telemetry.instrument(model)

    def broken(*_: Any) -> None:
        raise LookupError("theirs")

    with manager(model, start=False) as loop:
        for prompt in PROMPTS[:2]:
            loop.add_request(prompt, request_id="same")
        with model.register_forward_pre_hook(broken):
            loop.start()
            results(loop, 1)
            _until(lambda: not loop.is_running())
        assert [said_by(request)[semconv.ERROR_TYPE] for request in requests(telemetry)] == ["LookupError", "LookupError"]
        assert telemetry.metric_sum(semconv.M_ACTIVE) == 0
    telemetry.check()


def test_a_request_that_its_loop_refuses(telemetry: Telemetry) -> None:
    """A manager that is stopping drops requests: they end as errors, and nothing is returned for them, as without telemetry."""
    model = models.llama()
    telemetry.instrument(model)
    with manager(model) as loop:
        loop.add_request(PROMPTS[0])
        results(loop, 1)
        loop.stop(block=True, timeout=60)
        assert loop.add_request(PROMPTS[1]) is None
    refused = requests(telemetry)[1]
    assert not refused.status.is_ok
    assert said_by(refused)[semconv.ERROR_TYPE] == "_OTHER"
    telemetry.check()


def test_a_full_queue(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``add_request()`` raises passes through, and ends the request."""
    model = models.llama()
    telemetry.instrument(model)
    with manager(model, loop=bounded(max_queue_size=1), start=False) as loop:
        put = loop.input_queue.put
        monkeypatch.setattr(loop.input_queue, "put", lambda state, block, timeout: put(state, block, 0.01))
        loop.add_request(PROMPTS[0], request_id="first")
        with pytest.raises(queue.Full):
            loop.add_request(PROMPTS[1], request_id="second")
        loop.start()
        results(loop, 1)
    telemetry.check()
    assert of_request(telemetry, "second")[semconv.ERROR_TYPE] == "queue.Full"
    assert semconv.ERROR_TYPE not in of_request(telemetry, "first")


def test_uninstrument_during_a_request(telemetry: Telemetry, patient: Any) -> None:
    """The request's span ends there and says so, the request itself runs on, and nothing is left on transformers."""
    handle = telemetry.instrument(patient)
    with manager(patient, loop=bounded(num_blocks=700)) as loop:
        loop.add_request(PROMPTS[0], request_id="long", max_new_tokens=200)
        _until(lambda: _running(loop, "long"))
        handle.uninstrument()
        telemetry.check()
        said = of_request(telemetry, "long")
        assert "steps: uninstrumented during the call" in said[semconv.UNOBSERVED]
        assert semconv.ERROR_TYPE not in said
        found = results(loop, 1)
    assert len(found["long"].generated_tokens) == 200
    assert len(requests(telemetry)) == 1
    telemetry.check()


def test_a_loop_that_ran_before(telemetry: Telemetry, patient: Any) -> None:
    """A model that is instrumented while its loop runs has the requests from then on; those before are theirs."""
    with manager(patient, loop=bounded(num_blocks=700)) as loop:
        loop.add_request(PROMPTS[0], request_id="before", max_new_tokens=LONG)
        _until(lambda: _running(loop, "before"))
        telemetry.instrument(patient)
        loop.add_request(PROMPTS[1], request_id="after")
        results(loop, 1)
        loop.cancel_request("before")
    telemetry.check()
    assert [said_by(request)[semconv.RESPONSE_ID] for request in requests(telemetry)] == ["after"]
    assert {said_by(step)[semconv.STEP_ROWS] for step in steps(telemetry)} <= {1, 2}


def test_a_manager_that_nobody_runs(telemetry: Telemetry) -> None:
    """Requests of a manager that is collected without having run end as not observed."""
    model = models.llama()
    telemetry.instrument(model)
    with manager(model, start=False) as loop:
        loop.add_request(PROMPTS[0], request_id="lost")
    del loop
    gc.collect()
    telemetry.check()
    assert "uninstrumented" in of_request(telemetry, "lost")[semconv.UNOBSERVED]


def test_the_number_of_open_requests_is_bounded(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """A program that queues requests without end has 16,384 of them recorded, and is told once."""
    model = models.llama()
    telemetry.instrument(model)
    with caplog.at_level(logging.WARNING, "inferspan"), manager(model, start=False) as loop:
        for _ in range(16_384 + 3):
            loop.add_request([5])
    assert loop.input_queue.qsize() == 16_384 + 3
    del loop
    gc.collect()
    assert len(requests(telemetry)) == 16_384
    assert [line.getMessage() for line in caplog.records if "16384" in line.getMessage()] != []
    telemetry.check(complaints=True)


def test_suppressed_requests_are_not_recorded(telemetry: Telemetry) -> None:
    """Where the caller has switched telemetry off, a request has no span and its result is the same."""
    model = models.llama()
    telemetry.instrument(model)
    with manager(model) as loop:
        token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
        loop.add_request(PROMPTS[0], request_id="quiet")
        otel_context.detach(token)
        assert len(results(loop, 1)["quiet"].generated_tokens) == 5
    assert requests(telemetry) == []
    assert len(batches(telemetry)) == 1
    telemetry.check()


def test_nothing_of_a_finished_request_is_kept(telemetry: Telemetry) -> None:
    """After 200 requests no request, result or state of one is alive."""
    model = models.llama()
    telemetry.instrument(model)
    with manager(model) as loop:
        for number in range(200):
            loop.add_request([5, 6, 3 + number % 50])
        results(loop, 200)
        inferspan.flush()
        gc.collect()
        alive = [type(one).__name__ for one in gc.get_objects() if type(one).__name__ in ("BatchedRequest", "GenerationOutput")]
        assert alive == []
    assert len(requests(telemetry)) == 200


def test_the_random_stream_is_not_touched(telemetry: Telemetry) -> None:
    """Sampled tokens are those without telemetry."""
    found = []
    for instrumented in (False, True):
        model = models.llama()
        if instrumented:
            telemetry.instrument(model)
        torch.manual_seed(3)
        with manager(model, loop=bounded(seed=7), do_sample=True) as loop:
            loop.add_request(PROMPTS[0], request_id="one")
            found.append(results(loop, 1)["one"].generated_tokens)
    assert found[0] == found[1]
