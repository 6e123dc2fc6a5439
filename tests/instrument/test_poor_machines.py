"""``instrument()`` where the machine lacks something: a working directory, files that may be opened, names in UTF-8."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import inferspan
from inferspan import SettingsError, composition, guard, semconv
from tests.cases.models import llama, prompt
from tests.cases.telemetry import Telemetry

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory has been removed, as that of an old release is."""
    folder = tmp_path / "release"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("INFERSPAN_SESSION_FILE", "session.jsonl", "the working directory no longer exists; use an absolute path"),
        ("INFERSPAN_REPORT_DIR", "reports", "the working directory no longer exists; use an absolute path"),
        ("INFERSPAN_REPORT", "html", "no report can be written to ."),
    ],
)
def test_a_variable_without_a_working_directory(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, value: str, words: str
) -> None:
    """It is ignored with one warning that names it; requests are recorded."""
    monkeypatch.setenv(variable, value)
    model = nn.Linear(2, 2)
    with caplog.at_level(logging.WARNING, "inferspan"):
        telemetry.instrument(model)
        model(torch.ones(1, 2))
    assert len(telemetry.forwards()) == 1
    (line,) = [record.getMessage() for record in caplog.records if variable in record.getMessage()]
    assert words in line


@pytest.mark.usefixtures("nowhere")
def test_an_argument_without_a_working_directory(telemetry: Telemetry) -> None:
    """An argument is refused."""
    with pytest.raises(SettingsError, match="use an absolute path"):
        telemetry.instrument(nn.Linear(2, 2), session_file="session.jsonl")


@pytest.mark.usefixtures("nowhere")
def test_an_absolute_path_without_a_working_directory(telemetry: Telemetry, tmp_path: Path) -> None:
    """It needs none."""
    file = tmp_path / "session.jsonl"
    model = nn.Linear(2, 2)
    handle = inferspan.instrument(model, session_file=file)
    model(torch.ones(1, 2))
    assert handle.flush()
    handle.uninstrument()
    assert b"forward Linear" in file.read_bytes()


def test_no_more_files(contained: list[guard.Swallowed], monkeypatch: pytest.MonkeyPatch) -> None:
    """The model stays as it was, the error is counted, and a later call works."""

    def fail(*_: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    model = nn.Linear(2, 2)
    with monkeypatch.context() as patch:
        patch.setattr(composition, "target_for", fail)
        handle = inferspan.instrument(model)
    assert "detached" in repr(handle)
    assert [error.place for error in contained] == ["instrument"]
    contained.clear()
    with inferspan.instrument(model) as second:
        assert "Linear" in repr(second)


@pytest.mark.parametrize("way", ["argument", "configuration", "variable"])
def test_a_name_that_is_no_utf8(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Of a folder, say: it would keep the exporter from sending any span of the batch."""
    model = llama()
    settings: dict[str, Any] = {}
    if way == "configuration":
        model.config._name_or_path = "/models/caf\udce9"
    elif way == "variable":
        monkeypatch.setenv("INFERSPAN_MODEL_NAME", "caf\udce9")
    else:
        settings["model_name"] = "caf\udce9"
    telemetry.instrument(model, **settings)
    model.generate(prompt(1, 5), max_new_tokens=2, do_sample=False)
    telemetry.check()
    names = [telemetry.only()[key] for key in (semconv.MODEL_NAME, semconv.REQUEST_MODEL, semconv.RESPONSE_MODEL)]
    assert names == ["caf?" if way != "configuration" else names[0]] * 3
    assert "caf?" in names[0]
