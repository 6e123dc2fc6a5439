"""``enabled=False``: everything of ours is inert, and the program runs as without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import inferspan
from inferspan.program.recorders import OFF
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached


@pytest.fixture(params=["argument", "file", "environment"])
def disabled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Each way of switching inferspan off; gives the arguments to pass."""
    if request.param == "argument":
        return {"enabled": False}
    if request.param == "environment":
        monkeypatch.setenv("INFERSPAN_ENABLED", "false")
    else:
        path = tmp_path / "inferspan.yaml"
        path.write_text("enabled: false\n")
        monkeypatch.setenv("INFERSPAN_CONFIG", str(path))
    return {}


def test_instrument(disabled: dict[str, Any]) -> None:
    """The model is untouched, its outputs are the same, and the handle does nothing."""
    telemetry = Telemetry()
    network: Any = models.llama()
    before = attached(network)
    want = network.generate(models.prompt(1, 4), max_new_tokens=3)
    handle = telemetry.instrument(network, **disabled)
    assert attached(network) == before
    assert network.generate(models.prompt(1, 4), max_new_tokens=3).equal(want)
    assert telemetry.spans() == []
    assert telemetry.metrics() == {}
    assert handle.settings.enabled is False
    assert repr(handle) == "<inferspan.Handle: not enabled>"
    assert handle.summary().requests == 0
    handle.refresh()
    with handle, handle.profile(steps=1):
        pass
    handle.uninstrument()
    assert inferspan.uninstrument(network) is False
    telemetry.close()


def test_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions, stages, events, decorators and generations by hand record nothing, whatever destination is named."""
    monkeypatch.setenv("INFERSPAN_ENABLED", "0")
    telemetry = Telemetry()
    module = torch.nn.Linear(2, 2)

    @inferspan.session("job", of_result=lambda result: {"x": 1 / 0}, tracer_provider=telemetry.tracer_provider)
    @inferspan.stage("part", lambda result: {"x": 1 / 0})
    def work() -> int:
        inferspan.event("here", value=1)
        return 3

    assert work() == 3
    with inferspan.session("job", tags={"a": 1}, tracer_provider=telemetry.tracer_provider) as session:
        with inferspan.stage("part") as stage:
            assert stage is OFF
        assert session.id == ""
        assert session.duration is None
    session.end()
    with inferspan.generation(module, tracer_provider=telemetry.tracer_provider) as generation:
        with generation.prefill():
            module(torch.zeros(1, 2))
        generation.finish("stop")
    with inferspan.instrument_loading(tracer_provider=telemetry.tracer_provider):
        pass
    assert inferspan.flush()
    assert telemetry.spans() == []
    assert telemetry.metrics() == {}
    telemetry.close()


def test_an_argument_is_stronger(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument switches on what a variable switches off, for that model and what surrounds it."""
    monkeypatch.setenv("INFERSPAN_ENABLED", "false")
    telemetry = Telemetry()
    module = torch.nn.Linear(2, 2)
    with telemetry.instrument(module, enabled=True), inferspan.session("job"):
        module(torch.zeros(1, 2))
    assert sorted(span.name for span in telemetry.spans()) == ["forward Linear", "session job"]
    telemetry.close()


def test_another_handle_stays() -> None:
    """Switched off for one caller, the handle of another one goes on."""
    telemetry = Telemetry()
    module = torch.nn.Linear(2, 2)
    telemetry.instrument(module)
    telemetry.instrument(module, enabled=False).uninstrument()
    module(torch.zeros(1, 2))
    assert [span.name for span in telemetry.spans()] == ["forward Linear"]
    telemetry.close()


PROGRAM = """
import os, sys, threading
import inferspan
with inferspan.session("job"), inferspan.stage("part"):
    inferspan.event("here")
inferspan.configure()
import torch
module = torch.nn.Linear(2, 2)
inferspan.instrument(module)
module(torch.zeros(1, 2))
inferspan.flush()
from opentelemetry import trace
print(type(trace.get_tracer_provider()).__name__, threading.active_count(), os.path.exists("session.jsonl"))
"""


@pytest.mark.parametrize("launcher", [(), ("-m", "inferspan", "run")], ids=["program", "inferspan run"])
def test_a_whole_program(launcher: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No provider is set, no thread runs and no file is written, also where a destination is named."""
    monkeypatch.setenv("INFERSPAN_ENABLED", "false")
    monkeypatch.setenv("INFERSPAN_SESSION_FILE", "session.jsonl")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, *launcher, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ProxyTracerProvider 1 False"
    assert "inferspan" not in done.stderr
