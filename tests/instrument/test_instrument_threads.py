"""``instrument()`` while the system refuses threads, or something fails: the model answers, nothing stays on it, and sending begins later."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import inferspan
from inferspan.capture.target import target_of
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached

PROGRAM = """
import sys, threading
import torch
import inferspan

granted = int(sys.argv[1])
start = threading.Thread.start

def limited(thread):
    global granted
    granted -= 1
    if granted < 0:
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = limited
model = torch.nn.Linear(4, 4)
handle = inferspan.instrument(model, nvml=False)
model(torch.zeros(1, 4))
inferspan.flush()
threading.Thread.start = start
if len(sys.argv) > 2:
    import time
    time.sleep(float(sys.argv[2]))
model(torch.zeros(1, 4))
inferspan.flush()
handle.uninstrument()
assert not model._forward_hooks and not model._forward_pre_hooks
"""
"""Arguments: how many threads may start before the shortage, which ends after the first pass; seconds between the passes."""


@pytest.mark.parametrize("granted", [0, 11, 12, 14, 16])
def test_threads_that_come_back(tmp_path: Path, granted: int) -> None:
    """Whenever in the set-up threads run out, a pass after the shortage is sent, once, without anybody asking for it."""
    path = tmp_path / "session.jsonl"
    environ = {**os.environ, "INFERSPAN_SESSION_FILE": str(path)}
    # A set-up that failed in its middle is tried again after a second.
    arguments = [sys.executable, "-c", PROGRAM, str(granted), *(["1.1"] if granted >= 12 else [])]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environ, timeout=240)
    assert done.stderr.count("Traceback") == 0, done.stderr
    assert done.returncode == 0, done.stderr
    blocks = [block for line in path.read_text().splitlines() for block in json.loads(line).get("resourceSpans", ())]
    spans = [span for block in blocks for scope in block["scopeSpans"] for span in scope["spans"]]
    ids = [span["spanId"] for span in spans if span["name"] == "forward Linear"]
    assert 1 <= len(ids) <= 2
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError(), OSError(11, "busy")], ids=repr)
def test_no_threads_beside_providers_of_the_program(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """With the program's own providers everything is recorded: the thread that hands detail over is replaced by ``flush()``."""

    def refuse(thread: threading.Thread) -> None:
        raise error

    telemetry, model = Telemetry(), nn.Sequential(nn.Linear(4, 4))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        handle = telemetry.instrument(model, modules="all", host=True)
        model(torch.zeros(1, 4))
        telemetry.check()
        assert [span.name for span in telemetry.spans()] == ["forward Sequential", "layer 0"]
        handle.uninstrument()
    assert sum(attached(model).values()) == 0
    telemetry.close()


@pytest.mark.parametrize("error", [RuntimeError("ours"), MemoryError(), OSError("ours"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("place", ["composition._hand_over_first", "instrument._Instrumentation"])
def test_all_or_nothing(monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException) -> None:
    """What fails after the model was attached takes everything off again, and the next ``instrument()`` starts from nothing."""
    telemetry, model = Telemetry(), nn.Linear(4, 4)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        module, _, name = place.partition(".")
        patch.setattr(importlib.import_module(f"inferspan.{module}"), name, fail)
        with pytest.raises(type(error)):
            telemetry.instrument(model)
    assert sum(attached(model).values()) == 0
    assert target_of(model) is None
    assert inferspan.uninstrument(model) is False
    telemetry.instrument(model)
    model(torch.zeros(1, 4))
    telemetry.check()
    assert len(telemetry.forwards()) == 1
    telemetry.close()
