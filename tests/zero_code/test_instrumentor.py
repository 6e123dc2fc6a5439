"""The entry point of ``opentelemetry-instrument``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inferspan import semconv
from inferspan.settings import SettingsError
from tests.cases.telemetry import Telemetry
from tests.zero_code.conftest import QUIET
from tests.zero_code.programs import GENERATE, PATH, metadata
from tests.zero_code.test_models import bert, names

pytest.importorskip("opentelemetry.instrumentation")


@pytest.fixture
def instrumentor() -> Iterator[Any]:
    """The instrumentor, which takes everything off after the test."""
    from inferspan.zero_code import Instrumentor

    made = Instrumentor()
    yield made
    if made.is_instrumented_by_opentelemetry:
        made.uninstrument()


def _opentelemetry_instrument(tmp_path: Path, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "app.py").write_text(program)
    path = os.pathsep.join((str(metadata(tmp_path / "metadata")), PATH))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}
    code = "import sys; from opentelemetry.instrumentation.auto_instrumentation import run; sys.exit(run())"
    command = [sys.executable, "-c", code, sys.executable, "app.py"]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_instrument_and_uninstrument(telemetry: Telemetry, instrumentor: Any) -> None:
    """The providers and settings that it is given count, and after ``uninstrument()`` nothing is recorded."""
    from transformers import PreTrainedModel

    before = PreTrainedModel.__dict__["__init__"]
    instrumentor.instrument(
        tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider, model_name="mine", skip_dep_check=True, **QUIET
    )
    model = bert()
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))
        instrumentor.uninstrument()
        model(torch.tensor([[1, 2, 3]]))
    assert names(telemetry) == ["forward mine"]
    assert PreTrainedModel.__dict__["__init__"] is before


def test_wrong_option(instrumentor: Any) -> None:
    """An option that is none is an error that names it, and nothing is patched."""
    from transformers import PreTrainedModel

    before = PreTrainedModel.__dict__["__init__"]
    with pytest.raises(SettingsError, match="modles"):
        instrumentor.instrument(modles="all")
    assert PreTrainedModel.__dict__["__init__"] is before


def test_declarative_configuration(instrumentor: Any) -> None:
    """Options of a configuration file are settings; those that it does not give come from the other sources."""
    instrumentation = pytest.importorskip("opentelemetry.configuration._conversion")
    given = instrumentation._dict_to_dataclass({"modules": "none", "sampler_interval": 7}, instrumentor.configuration)
    assert {name: value for name, value in vars(given).items() if value is not None} == {"modules": "none", "sampler_interval": 7}


def test_command_with_a_file(tmp_path: Path) -> None:
    """``opentelemetry-instrument`` alone, with a session file: the request is in it, and the program's output its own."""
    result = _opentelemetry_instrument(
        tmp_path, GENERATE + "print(answer())\n", INFERSPAN_SESSION_FILE=str(tmp_path / "s.jsonl"), OTEL_TRACES_EXPORTER="none",
        OTEL_METRICS_EXPORTER="none", OTEL_LOGS_EXPORTER="none",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)[0]) == 7
    assert '"text_completion"' in (tmp_path / "s.jsonl").read_text()


def test_command_with_the_hosts_sdk(tmp_path: Path) -> None:
    """With the distribution of OpenTelemetry its own SDK has the spans of the request and its phases, in one trace."""
    pytest.importorskip("opentelemetry.distro")
    result = _opentelemetry_instrument(
        tmp_path, GENERATE + "answer()\n", OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="none", OTEL_LOGS_EXPORTER="none"
    )
    assert result.returncode == 0, result.stderr
    decoder, at, spans = json.JSONDecoder(), 0, []
    text = result.stdout.strip()
    while at < len(text):
        span, at = decoder.raw_decode(text, at)
        spans.append(span)
        at += len(text[at:]) - len(text[at:].lstrip())
    assert {"text_completion", "prefill", "decode"} <= {span["name"] for span in spans}
    assert len({span["context"]["trace_id"] for span in spans}) == 1
    assert [span["attributes"][semconv.OUTPUT_TOKENS] for span in spans if not span["parent_id"]] == [4]


def test_command_and_a_program_that_fails_at_import(tmp_path: Path) -> None:
    """The program's own traceback and exit status."""
    result = _opentelemetry_instrument(
        tmp_path, "import nothing_of_this_name\n", OTEL_TRACES_EXPORTER="none", OTEL_METRICS_EXPORTER="none", OTEL_LOGS_EXPORTER="none"
    )
    assert result.returncode == 1
    assert result.stderr.rstrip().endswith("ModuleNotFoundError: No module named 'nothing_of_this_name'")
    assert "inferspan" not in result.stderr
