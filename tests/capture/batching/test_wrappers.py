"""What is wrapped in transformers comes off, fits its version, and survives a fork."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from transformers.generation.continuous_batching import continuous_api, offloading_manager, scheduler
from transformers.generation.continuous_batching import requests as loop_requests

from inferspan import semconv
from tests.capture.batching.loops import PROMPTS, generate_batch, manager, requests, results, said_by, tokens
from tests.cases import models
from tests.cases.telemetry import Telemetry

CLASSES: list[Any] = [
    continuous_api.ContinuousBatchingManager,
    continuous_api.ContinuousBatchProcessor,
    continuous_api.OutputRouter,
    loop_requests.RequestState,
    scheduler.Scheduler,
    offloading_manager.OffloadingManager,
]


def _contents() -> list[dict[str, Any]]:
    return [dict(vars(kind)) for kind in CLASSES]


def test_the_classes_of_transformers_are_left_as_they_were(telemetry: Telemetry) -> None:
    """While a model is instrumented, signatures are the same; after the last handle every attribute is."""
    before, signature = _contents(), inspect.signature(continuous_api.ContinuousBatchingManager.add_request)
    one, another = models.llama(), models.llama()
    first, second = telemetry.instrument(one), telemetry.instrument(another)
    assert inspect.signature(continuous_api.ContinuousBatchingManager.add_request) == signature
    first.uninstrument()
    assert _contents() != before
    second.uninstrument()
    assert _contents() == before


def test_a_model_that_is_not_instrumented_is_not_observed(telemetry: Telemetry) -> None:
    """Its loop runs through the wrappers of another model and emits nothing."""
    telemetry.instrument(models.llama())
    want = tokens(generate_batch(models.llama(seed=1)))
    assert len(want) == len(PROMPTS)
    assert telemetry.spans() == []
    assert telemetry.metrics() == {}


@contextmanager
def _without(kind: Any, name: str) -> Iterator[None]:
    """A version of transformers whose class lacks a method."""
    method = vars(kind)[name]
    delattr(kind, name)
    try:
        yield
    finally:
        setattr(kind, name, method)


def test_another_version_is_not_observed_and_says_so_once(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """Where a class is not the known one, nothing of it is wrapped, the loop works, and its first use warns."""
    model = models.llama()
    with _without(scheduler.Scheduler, "request_is_cancelled"), _without(offloading_manager.OffloadingManager, "offload_requests"):
        before = _contents()
        telemetry.instrument(model)
        assert _contents() == before
        with caplog.at_level(logging.WARNING, "inferspan"):
            for _ in range(2):
                assert len(generate_batch(model)) == len(PROMPTS)
    assert len([line for line in caplog.records if "continuous batching of transformers" in line.getMessage()]) == 1
    assert requests(telemetry) == []


def test_a_kept_manager_serves_again(telemetry: Telemetry) -> None:
    """A manager that is kept for the next session, with ids that go on, has the requests of both."""
    model = models.llama()
    telemetry.instrument(model)
    for _ in range(2):
        with manager(model) as loop:
            loop.add_request(PROMPTS[0])
            results(loop, 1)
            loop.stop(block=True, timeout=60, keep_for_next_session=True)
    model.destroy_cached_continuous_batching_manager()
    assert [said_by(request)[semconv.RESPONSE_ID] for request in requests(telemetry)] == ["req_0", "req_1"]
    telemetry.check()


def test_an_id_may_be_used_again(telemetry: Telemetry) -> None:
    """Two requests after each other with the same id are two."""
    model = models.llama()
    telemetry.instrument(model)
    with manager(model) as loop:
        for prompt in PROMPTS[:2]:
            loop.add_request(prompt, request_id="same")
            results(loop, 1)
    assert [said_by(request)[semconv.INPUT_TOKENS] for request in requests(telemetry)] == [3, 4]
    telemetry.check()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_its_own_requests(telemetry: Telemetry) -> None:
    """Requests that wait in the parent stay the parent's; a child with an exit code of 0 has forgotten them."""
    model = models.llama()
    telemetry.instrument(model)
    with manager(model, start=False) as loop:
        loop.add_request(PROMPTS[0], request_id="parent's")
        child = os.fork()
        if not child:
            try:
                os._exit(0 if telemetry.spans() == [] else 1)
            except BaseException:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        loop.start()
        results(loop, 1)
    assert len(requests(telemetry)) == 1
    telemetry.check()
