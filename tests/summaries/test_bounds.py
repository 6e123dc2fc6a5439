"""Summaries in bounded memory, on many threads, after a fork, and when something in them fails."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch

import inferspan
from inferspan.analysis.operations import OTHERS
from inferspan.summaries import parts as parts_module
from inferspan.summaries import recording as recording_module
from tests.cases import models
from tests.cases.telemetry import Telemetry


@pytest.fixture
def model(record: Any) -> Any:
    """An instrumented module and its handle, recorded into a file."""
    module = torch.nn.Linear(2, 2)
    return module, record(module, modules="none")


def test_names_without_end(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations and types of events over the bounds are counted together, and every one counts."""
    monkeypatch.setattr(recording_module, "MOST_TYPES", 5)
    _, handle = model
    for number in range(recording_module.MOST_OPERATIONS + 10):
        with inferspan.stage(f"stage {number}"):
            if number < 20:
                inferspan.event(f"event {number}")
    found = handle.summary()
    assert len(found.operations) <= recording_module.MOST_OPERATIONS + 1
    assert found.operation("stage", OTHERS).count == 10
    assert found.event_types["(others)"] == 20 - (5 - 2)


def test_threads(model: Any) -> None:
    """Stages and requests of many threads are all counted."""
    module, handle = model

    def work() -> None:
        for _ in range(20):
            with inferspan.stage("a"), torch.no_grad():
                module(torch.zeros(1, 2))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = handle.summary()
    assert (found.forwards, found.operation("stage", "a").count, found.event_types["forward_pass"]) == (160, 160, 160)


def test_a_broken_summary_changes_nothing(monkeypatch: pytest.MonkeyPatch, contained: list[Any]) -> None:
    """Where counting fails, the model gives what it gives, and every span is there."""

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("broken")

    for name in ("part", "calls", "ended"):
        monkeypatch.setattr(parts_module.RequestParts, name, broken)
    telemetry, network = Telemetry(), models.llama()
    handle = telemetry.instrument(network)
    with torch.no_grad():
        network.generate(models.prompt(1, 4), max_new_tokens=3, min_new_tokens=3)
    assert len(telemetry.steps()) == 3 and telemetry.modules()
    assert (handle.summary().requests, handle.summary().event_types) == (1, {})
    assert {error.place for error in contained} == {"summary"}
    contained.clear()
    telemetry.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child(model: Any) -> None:
    """A child goes on counting, also in a session that was open, whoever held a lock at the moment of the fork."""
    module, handle = model
    with inferspan.session("outer") as session:
        recording = session.recording_of_session
        with recording._lock, recording.operations._lock:
            child = os.fork()
            if not child:
                worker = threading.Thread(target=module, args=(torch.zeros(1, 2),))
                worker.start()
                worker.join(20)
                os._exit(session.summary().forwards + handle.summary().forwards)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
