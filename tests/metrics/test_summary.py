"""Totals of a model's requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inferspan.metrics.summary import Summary, Totals
from inferspan.records import Failure, ModelInfo, RequestEnd, RequestStart

MODEL = ModelInfo("org/model", "huggingface", "Model")


def _start(kind: str = "generate", *, nested: bool = False) -> RequestStart:
    return RequestStart(kind, "text_completion" if kind == "generate" else None, MODEL, 0, nested, {})


def _end(failure: Failure | None = None, **values: Any) -> RequestEnd:
    return RequestEnd(1, failure, {}, **values)


def test_nothing_yet() -> None:
    """Without requests there are zero counts and no measurements."""
    assert Summary().totals() == Totals(0, 0, 0, 0, 0, 0.0, None, None, None, None, None, 0)
    assert str(Summary().totals()) == "0 generate() calls"


def test_totals() -> None:
    """Requests, failures and forwards are counted, nested ones are not, and speed is over those that gave tokens."""
    summary = Summary()
    for ttft in (0.1, 0.2, 0.3, 0.4):
        summary.add(_start(), _end(input_tokens=5, output_tokens=10, time_to_first_token=ttft, time_per_output_token=0.01), 1.0)
    summary.add(_start(), _end(Failure("ValueError", "", ""), input_tokens=5, spans_dropped=3), 6.0)
    summary.add(_start(nested=True), _end(input_tokens=5, output_tokens=10), 1.0)
    summary.add(_start("forward"), _end(), 1.0)
    summary.add(_start("forward", nested=True), _end(), 1.0)
    assert replace(summary.totals(), ttft_p95=round(summary.totals().ttft_p95 or 0, 9)) == Totals(
        requests=5, errors=1, forwards=1, input_tokens=25, output_tokens=40, seconds=10.0, ttft_p50=0.25, ttft_p95=0.385,
        tpot_p50=0.01, tpot_p95=0.01, tokens_per_second=10.0, spans_dropped=3,
    )  # fmt: skip
    assert str(summary.totals()) == (
        "5 generate() calls (1 failed) · 1 plain forward · 25 tokens in, 40 out · 10.0 tokens/s"
        " · TTFT p50 250.0 ms · TTFT p95 385.0 ms · time per token p50 10.0 ms"
    )
