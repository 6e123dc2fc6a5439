"""Statistics of logits on their way through a request: late copies, fused kernels, parts of a vocabulary."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from inferspan import semconv
from inferspan.capture.generate import step_logits, step_rows
from inferspan.capture.logits.ring import LogitRing
from tests.capture.logits.fused_fakes import FakeKernel, FakeLink
from tests.cases import models
from tests.cases.telemetry import Telemetry


def _generate(model: Any, tokens: int, **options: Any) -> Any:
    with torch.no_grad():
        return model.generate(models.prompt(2, 6), do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens, **options)


def _steps(telemetry: Telemetry) -> list[dict[str, Any]]:
    return [dict(span.attributes or {}) for span in sorted(telemetry.steps(), key=lambda span: span.start_time or 0)]


def _entropies(telemetry: Telemetry) -> list[Any]:
    return [step.get(semconv.LOGITS_ENTROPY) for step in _steps(telemetry)]


def _counting(handed: list[tuple[bool, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Note each hand-over: whether it may wait, and how many steps are kept after it."""
    original = step_rows.StepRows.hand_over

    def hand_over(rows: Any, count: int, *, wait: bool, last: bool = False) -> None:
        original(rows, count, wait=wait, last=last)
        handed.append((wait, len(rows.kept)))

    monkeypatch.setattr(step_rows.StepRows, "hand_over", hand_over)


@pytest.mark.parametrize("late", [False, True], ids=["copies arrive", "copies are late"])
def test_a_long_request_hands_over_what_has_landed(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Steps leave with their statistics when these have landed, at most eight times as many are kept, and the spans are the same."""

    class Link(FakeLink):
        def send(self, rows: torch.Tensor) -> Any:
            sent = super().send(rows)
            if sent is not None:
                sent.there = not late
            return sent

    link, handed = Link(), list[tuple[bool, int]]()
    model = models.llama()
    telemetry.instrument(model, modules="none")
    want = _generate(model, 100)
    entropies = _entropies(telemetry)
    assert len(entropies) == 100
    assert None not in entropies
    monkeypatch.setattr(step_rows, "LIVE", 8)
    monkeypatch.setattr(step_rows, "MOST_LIVE", 64)
    monkeypatch.setattr("inferspan.capture.logits.rows.CHUNK_STEPS", 4)
    monkeypatch.setattr(step_logits, "LogitRing", functools.partial(LogitRing, link=link))
    _counting(handed, monkeypatch)
    assert torch.equal(_generate(model, 100), want)
    assert _entropies(telemetry)[100:] == entropies
    if late:
        assert [wait for wait, _ in handed].count(True) == 2
        assert max(kept for _, kept in handed) <= 64
        # 16 full chunks and one begun when nothing more is kept, 9 at the end.
        assert link.waits == 26
    else:
        assert [wait for wait, _ in handed] == [False] * (len(handed) - 1) + [True]
        assert max(kept for _, kept in handed) <= 4
        assert (link.waits, link.fetches) == (0, 0)
    telemetry.check()


def test_a_request_with_a_fused_kernel_has_the_same_spans(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch pair a step with the ids of the loop, whose rows lie apart, gives the attributes that torch operations give."""
    kernel = FakeKernel()
    fused = kernel.kernels()
    model = models.llama()
    telemetry.instrument(model, modules="none", top_k=3, capture_content="SPAN_ONLY")
    _generate(model, 6)
    want = _steps(telemetry)
    monkeypatch.setattr(step_logits, "LogitRing", functools.partial(LogitRing, fused=fused))
    _generate(model, 6)
    fused.join(10)
    launched = kernel.launches
    _generate(model, 6)
    got = _steps(telemetry)
    assert got[6:12] == want
    assert got[12:] == want
    assert kernel.launches - launched == 6
    assert len(kernel.compiled) == 1
    telemetry.check()


class _Sharded(nn.Module):
    """A head that returns what ``wrap`` makes of its logits."""

    def __init__(self, head: nn.Module, wrap: Any) -> None:
        super().__init__()
        self.head, self.wrap = head, wrap

    def forward(self, hidden: torch.Tensor) -> Any:
        return self.wrap(self.head(hidden))


def test_logits_of_a_part_of_the_vocabulary_are_said_to_be_so(telemetry: Telemetry) -> None:
    """A tensor-parallel model whose head gives its own part has no statistics of logits, and says why; whole ones are measured."""
    model = models.llama()
    telemetry.instrument(model, modules="none")
    model._tp_size = 2
    _generate(model, 3)
    with torch.no_grad():
        model(models.prompt(1, 4))
    model.lm_head = _Sharded(model.lm_head, lambda logits: logits[..., : models.VOCABULARY // 2].contiguous())
    _generate(model, 3)
    with torch.no_grad():
        model(models.prompt(1, 4))
    model._tp_size = None
    _generate(model, 3)
    assert [entropy is not None for entropy in _entropies(telemetry)] == [True] * 3 + [False] * 3 + [True] * 3
    assert [(span.attributes or {}).get(semconv.UNOBSERVED) for span in telemetry.requests()] == [None, "logits: sharded", None]
    forwards = [dict(span.attributes or {}) for span in telemetry.forwards()]
    # Once something has been compiled in the process, an older torch runs plain passes with hooks: that is another thing to say.
    said = [str(one.get(semconv.UNOBSERVED, "")).removeprefix("context: hooks").removeprefix("; ") for one in forwards]
    assert said == ["", "logits: sharded"]
    assert [semconv.LOGITS_ENTROPY in one for one in forwards] == [True, False]
    telemetry.check()
