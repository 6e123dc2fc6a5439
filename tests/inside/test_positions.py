"""``top_k_positions="all"``: the largest raw logits of every row and position, where content may be captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from torch import nn

import inferspan
from inferspan import semconv
from inferspan.capture.inside import positions
from tests.cases import models
from tests.cases.telemetry import Telemetry

CONTENT: dict[str, Any] = {"capture_content": "EVENT_ONLY", "top_k_positions": "all"}


class _Logs:
    """A logger provider, and the records that came to it."""

    def __init__(self) -> None:
        self._exporter, self.provider = InMemoryLogRecordExporter(), LoggerProvider(shutdown_on_exit=False)
        self.provider.add_log_record_processor(SimpleLogRecordProcessor(self._exporter))

    def found(self) -> list[dict[str, Any]]:
        """Attributes of the records about positions."""
        inferspan.flush()
        records: list[Any] = [one.log_record for one in self._exporter.get_finished_logs()]
        return [dict(record.attributes) for record in records if record.event_name == semconv.POSITIONS_EVENT]


@pytest.fixture
def logs() -> _Logs:
    """Where log records of a test go."""
    return _Logs()


def test_every_position_has_its_largest_logits(telemetry: Telemetry, logs: _Logs) -> None:
    """Raw logits and ids are those that the model returns, for each row and position, in the handle and as a log record."""
    model, prompt = models.llama(), torch.randint(1, 60, (2, 5), generator=torch.Generator().manual_seed(1))
    handle = telemetry.instrument(model, logger_provider=logs.provider, top_k=3, **CONTENT)
    with torch.no_grad():
        logits = model(prompt).logits
    (found,) = handle.top_logits()
    assert (found.step, found.shape, found.left_out) == (None, tuple(logits.shape), 0)
    assert [(one.row, one.position) for one in found.positions] == [(row, place) for row in range(2) for place in range(5)]
    for one in found.positions:
        values, ids = logits[one.row, one.position].topk(3)
        assert one.ids == tuple(ids.tolist())
        assert one.logits == pytest.approx(values.tolist())
        assert one.texts is None
    (said,) = logs.found()
    assert said[semconv.POSITION_SHAPE] == "x".join(map(str, logits.shape))
    assert list(said[semconv.POSITION_ROWS]) == [0] * 5 + [1] * 5
    assert list(said[semconv.POSITION_IDS]) == [token for one in found.positions for token in one.ids]
    assert said[semconv.POSITIONS_OMITTED] == 0
    telemetry.check()


def test_steps_of_a_generation(telemetry: Telemetry, logs: _Logs) -> None:
    """A record for each step, with its number; tokens are those of a plain model."""
    model = models.llama()
    with torch.no_grad():
        plain = model.generate(models.prompt(), do_sample=False, max_new_tokens=4, min_new_tokens=4)
    handle = telemetry.instrument(model, logger_provider=logs.provider, **CONTENT)
    with torch.no_grad():
        assert torch.equal(model.generate(models.prompt(), do_sample=False, max_new_tokens=4, min_new_tokens=4), plain)
    found = handle.top_logits()
    assert [one.step for one in found] == [0, 1, 2, 3]
    # Raw ones: the end token, which the loop does not choose yet, is among them.
    assert [token for token, one in zip(plain[0, -4:].tolist(), found, strict=True) if token not in one.positions[-1].ids] == []
    assert [said[semconv.STEP_INDEX] for said in logs.found()] == [0, 1, 2, 3]
    telemetry.check()


@pytest.mark.parametrize("settings", [{"top_k_positions": "all"}, {"capture_content": "EVENT_ONLY"}, {**CONTENT, "top_k": 0}], ids=str)
def test_it_needs_content_capture_and_the_setting(telemetry: Telemetry, logs: _Logs, settings: dict[str, Any]) -> None:
    """Otherwise nothing is kept or sent."""
    model = models.llama()
    handle = telemetry.instrument(model, logger_provider=logs.provider, **settings)
    with torch.no_grad():
        model(models.prompt())
    assert handle.top_logits() == []
    assert logs.found() == []


def test_what_is_over_the_bounds_is_counted(telemetry: Telemetry) -> None:
    """Of each row the last positions are kept, and of a request no more than its own bound."""
    log = positions.PositionLog(2)
    logits = torch.randn(2, 700, 8)
    for step in range(5):
        log.add(step, step, logits)
    found = log.read(10, str)
    assert [(len(one.positions), one.left_out) for one in found] == [(1024, 376)] * 4 + [(0, 1400)]
    assert [found[0].positions[place].position for place in (0, 511, 512)] == [188, 699, 188]
    assert found[0].positions[0].texts == tuple(map(str, found[0].positions[0].ids))
    assert found[0].time_ns == 10


def test_values_that_are_not_finite_come_last(telemetry: Telemetry) -> None:
    """They can be sent, and hide nothing."""
    log = positions.PositionLog(3)
    log.add(None, 0, torch.tensor([[float("nan"), 1.0, float("-inf")]]))
    ((position,),) = (one.positions for one in log.read(0, None))
    assert position.ids[0] == 1
    assert all(abs(value) <= torch.finfo(torch.float32).max for value in position.logits)


def test_a_model_without_a_head_says_so(telemetry: Telemetry) -> None:
    """In what is not observed; it runs as before. Switching it off is possible at run time."""
    model = nn.Sequential(nn.Linear(2, 2))
    handle = telemetry.instrument(model, **CONTENT)
    model(torch.ones(1, 2))
    assert "top_k_positions: no language head" in str(telemetry.only(telemetry.forwards())[semconv.UNOBSERVED])
    handle.set(top_k_positions="last")
    model(torch.ones(1, 2))
    assert semconv.UNOBSERVED not in dict(telemetry.forwards()[-1].attributes or {})
    assert handle.top_logits() == []
