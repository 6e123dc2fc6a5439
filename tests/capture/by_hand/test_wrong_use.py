"""Wrong arguments raise; wrong use inside the block of a generation costs telemetry only."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from opentelemetry import context as otel_context

import inferspan
from inferspan.program.recorders import OffGeneration
from tests.cases.telemetry import Telemetry

from .loops import engine, some_logits


@pytest.mark.parametrize(
    ("model", "options", "error", "text"),
    [
        (3, {}, TypeError, r"takes a torch\.nn\.Module.*or the name"), ("", {}, ValueError, "not empty"),
        ("m", {"input_tokens": "four"}, TypeError, "input_tokens"), ("m", {"input_tokens": -1}, ValueError, "input_tokens"),
        ("m", {"input_tokens": [1.5]}, TypeError, "input_tokens"), ("m", {"input_tokens": torch.rand(1, 2)}, TypeError, "float32"),
        ("m", {"max_new_tokens": 0}, ValueError, "max_new_tokens"), ("m", {"max_new_tokens": "5"}, TypeError, "max_new_tokens"),
        ("m", {"max_new_tokens": True}, TypeError, "max_new_tokens"), ("m", {"topk": 3}, ValueError, "did you mean 'top_k'"),
    ],
)  # fmt: skip
def test_a_wrong_argument_raises(model: Any, options: Any, error: type[Exception], text: str) -> None:
    """A wrong argument of generation() raises and says what to use."""
    with pytest.raises(error, match=text):
        inferspan.generation(model, **options)


def _token_before_a_pass(g: Any) -> None:
    g.token(some_logits(), 5)


def _step_in_a_step(g: Any) -> None:
    with g.prefill(), g.step():
        pass


def _prefill_after_a_token(g: Any) -> None:
    with g.prefill():
        pass
    g.token(some_logits(), 5)
    with g.prefill():
        pass


def _finish_twice(g: Any) -> None:
    g.finish("stop")
    g.finish("length")


def _step_after_the_end(g: Any) -> None:
    g.finish("stop")
    with g.step():
        pass
    g.token(some_logits(), 5)


def _entered_twice(g: Any) -> None:
    with g:
        pass


def _no_token(g: Any) -> None:
    with g.prefill():
        pass
    g.token(some_logits(), "five")


def _other_rows(g: Any) -> None:
    with g.prefill():
        pass
    g.token(some_logits(), 5)
    with g.step():
        pass
    g.token(some_logits(2), [5, 6])


def _no_logits(g: Any) -> None:
    with g.prefill():
        pass
    g.token([0.5, 0.5], 5)


def _no_reason(g: Any) -> None:
    with g.prefill():
        pass
    g.token(some_logits(), 5)
    g.finish(3)


MISUSES = (
    _token_before_a_pass, _step_in_a_step, _prefill_after_a_token, _finish_twice, _step_after_the_end, _entered_twice, _no_token, _other_rows,
    _no_logits, _no_reason,
)  # fmt: skip


@pytest.mark.parametrize("misuse", MISUSES, ids=lambda one: one.__name__.strip("_"))
def test_wrong_use_costs_telemetry_only(telemetry: Telemetry, caplog: pytest.LogCaptureFixture, misuse: Any) -> None:
    """Wrong use in the block is one clear line in the log, however often; the program runs on, and the request ends."""
    with caplog.at_level(logging.WARNING, "inferspan"):
        for _ in range(2):
            with engine(telemetry, input_tokens=4) as g:
                misuse(g)
    lines = [record.getMessage() for record in caplog.records if record.name == "inferspan"]
    assert len(lines) == 1
    assert lines[0].startswith("inferspan.generation(): ")
    assert len(telemetry.roots()) == 2
    telemetry.check(complaints=True)


def test_switched_off(telemetry: Telemetry) -> None:
    """Where the caller has switched telemetry off, every call does nothing."""
    token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
    try:
        with engine(telemetry, input_tokens=4) as g:
            with g.prefill():
                pass
            g.token(some_logits(), 5)
            g.finish("stop")
    finally:
        otel_context.detach(token)
    assert telemetry.spans() == []
    assert telemetry.metrics() == {}


def test_the_stand_in_has_the_same_calls() -> None:
    """Where generations cannot be recorded, an object that does nothing has all calls of one."""
    with OffGeneration() as g:
        with g.prefill(inputs=None):
            g.token(None, 5)
        with g.step():
            g.token(None, 5)
        g.finish("stop")
