"""The step log: the short path of a step like the last one notes what the other path notes."""

from __future__ import annotations

import sys
from itertools import count
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

from inferspan import semconv
from inferspan.capture import recording
from inferspan.capture.generate.step_log import StepLog
from inferspan.capture.target import target_of
from tests.cases import models
from tests.cases.telemetry import Telemetry

VOCABULARY = 8
WIDTHS = (6, *[1] * 5, 3, *[1] * 13)
"""Positions of each pass: a prompt, ordinary steps, and one that is unlike the last."""


def _logits(step: int, width: int) -> Tensor | None:
    """Logits of a step; in one of another type, in one none."""
    if step == 12:
        return None
    values = torch.randn(2, width, VOCABULARY, generator=torch.Generator().manual_seed(step))
    return values.double() if step == 10 else values


class Noted:
    """What the step log notes of these steps.

    Args:
        uniform: whether the loop says that its steps may be alike; the short path serves no others.
        settings: of the instrumentation.
    """

    def __init__(self, *, uniform: bool, **settings: Any) -> None:
        telemetry = Telemetry()
        telemetry.instrument(model := models.llama(), modules="none", **settings)
        owner = target_of(model)
        assert owner is not None
        self._readings = count(1_000, 10)
        self.looked_at = 0
        """Steps that the long path has served."""
        request = recording.start("generate", owner, now=lambda: next(self._readings), offset=lambda: -1_000)
        assert isinstance(request, recording.Request)
        request.begin_phase(semconv.SPAN_PREFILL, then=semconv.SPAN_DECODE)
        self._run(request.steps, uniform)
        self.rows = [*request.steps.rows.kept]
        self.token_times = [*request.steps.token_times]
        self.seconds = {phase: [*seconds] for phase, seconds in request.steps.seconds.items()}
        request.finish(recording.Outcome())
        self.attributes = [dict(span.attributes or {}) for span in telemetry.steps()]
        telemetry.close()

    def _run(self, steps: StepLog, uniform: bool) -> None:
        def note(frame: FrameType, event: str, _: object) -> None:
            self.looked_at += event == "call" and frame.f_code is StepLog.close.__code__

        before, length = sys.getprofile(), 0
        for step, width in enumerate(WIDTHS):
            logits, inputs = _logits(step, width), torch.zeros(2, width, dtype=torch.int64)
            steps.prepare()
            steps.begin()
            sys.setprofile(note)
            try:
                steps.end(logits, inputs)
            finally:
                sys.setprofile(before)
            length += 1 if step else width
            steps.uniform = uniform
            steps.choose(next(self._readings), torch.zeros(2, length + 1, dtype=torch.int64), length + 1)


@pytest.mark.parametrize(
    ("settings", "looked_at"),
    [({}, 10), ({"logits": False}, 6), ({"capture_content": "SPAN_ONLY"}, 10), ({"max_spans_per_trace": 12}, 10)],
    ids=["statistics", "none", "likeliest tokens", "small budget"],
)
def test_both_paths_note_the_same(settings: dict[str, Any], looked_at: int) -> None:
    """Over the same steps, at the same times, both paths give the same rows, durations, token times and spans."""
    short, long = Noted(uniform=True, **settings), Noted(uniform=False, **settings)
    assert short.looked_at == looked_at
    assert long.looked_at == len(WIDTHS)
    assert short.rows == long.rows
    assert short.seconds == long.seconds
    assert short.token_times == long.token_times
    assert short.attributes == long.attributes
