"""``inferspan baseline``: from session files to a baseline, later sessions against it, and the setting that does so live."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import inferspan
from inferspan import semconv
from inferspan.cli.main import main
from tests.cases import models
from tests.cases.telemetry import Telemetry

REQUESTS = 32


def requests(model: Any, *, tokens: int, number: int = REQUESTS) -> None:
    """Generations of about so many tokens."""
    for place in range(number):
        length = tokens + place % 3
        model.generate(models.prompt(1), max_new_tokens=length, min_new_tokens=length, do_sample=False)


def session(path: Path, *, tokens: int, number: int = REQUESTS) -> Path:
    """A session file of generations."""
    model = models.llama()
    handle = inferspan.instrument(
        model, model_name="tiny", session_file=str(path), steps="none", modules="none", nvml=False, host=False, allocator=False
    )
    requests(model, tokens=tokens, number=number)
    inferspan.flush()
    handle.uninstrument()
    return path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A baseline of short outputs."""
    folder = tmp_path_factory.mktemp("baseline")
    session(folder / "before.jsonl", tokens=4)
    assert main(["baseline", str(folder / "before.jsonl"), "-o", str(folder / "baseline.json")]) == 0
    return folder / "baseline.json"


def test_the_same_outputs_do_not_drift(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0."""
    assert main(["baseline", str(saved.with_name("before.jsonl")), "--against", str(saved)]) == 0
    said = capsys.readouterr().out
    assert "tiny: 32 requests, baseline: 32 requests" in said
    assert "  no figure has drifted\n" in said
    assert "DRIFT" not in said


def test_too_few_requests_are_noted_when_they_are_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing can be compared with them, which is better known now than later."""
    path = session(tmp_path / "few.jsonl", tokens=4, number=2)
    assert main(["baseline", str(path), "-o", str(tmp_path / "baseline.json")]) == 0
    assert "note: tiny: 2 requests, 30 are needed to compare with it" in capsys.readouterr().out


def test_too_few_requests_cannot_be_judged(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, as of ``diff``: a gate does not pass where nothing was compared."""
    path = session(tmp_path / "few.jsonl", tokens=4, number=2)
    assert main(["baseline", str(path), "--against", str(saved), "--json", str(tmp_path / "found.json")]) == 2
    assert "cannot be compared, too few requests: 30 are needed on each side" in capsys.readouterr().out
    assert json.loads((tmp_path / "found.json").read_text())["verdict"] == "undecided"


def test_a_model_that_is_not_in_the_baseline_cannot_be_judged(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 likewise."""
    other = tmp_path / "other.json"
    other.write_text(saved.read_text().replace('"tiny"', '"another"'))
    assert main(["baseline", str(saved.with_name("before.jsonl")), "--against", str(other)]) == 2
    assert "tiny: not in the baseline" in capsys.readouterr().out


def test_the_help_has_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of ``diff``."""
    with pytest.raises(SystemExit):
        main(["baseline", "--help"])
    assert "exit codes: 0 no drift" in capsys.readouterr().out


def test_longer_outputs_drift(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, the figure first, and JSON."""
    after = session(tmp_path / "after.jsonl", tokens=12)
    assert main(["baseline", str(after), "--against", str(saved), "--json", str(tmp_path / "found.json")]) == 1
    assert "DRIFT output_tokens" in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["drifted"] is True
    assert found["verdict"] == "drift"
    assert "output_tokens" in {one["figure"] for one in found["models"][0]["figures"] if one["drifted"]}


def test_the_setting_tells_of_a_drift_once(saved: Path, telemetry: Telemetry) -> None:
    """In the thirtieth request; the metric has the shift of each figure, and the detail of that request is kept."""
    model = models.llama()
    thresholds = "repetition_4gram=1,repetition_recent=1,logit_spread=0"
    telemetry.instrument(model, model_name="tiny", baseline=str(saved), keep="unhealthy", steps="none", thresholds=thresholds)
    requests(model, tokens=12)
    spans = sorted(telemetry.requests(), key=lambda span: span.start_time or 0)
    facts: list[dict[str, Any]] = [dict(span.attributes or {}) for span in spans]
    assert [number for number, one in enumerate(facts, 1) if "drift" in one.get(semconv.HEALTH_KINDS, ())] == [30]
    assert [number for number, one in enumerate(facts, 1) if one[semconv.DETAIL_KEPT]] == [30]
    assert telemetry.metric_sum(semconv.M_HEALTH_DRIFT, **{semconv.HEALTH_FIGURE: "output_tokens"}) > 3


def test_an_argument_that_is_no_baseline_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is attached; a variable is a warning."""
    model = torch.nn.Linear(2, 2)
    with pytest.raises(inferspan.SettingsError, match="inferspan baseline"):
        inferspan.instrument(model, baseline=str(tmp_path / "none.json"))
    monkeypatch.setenv("INFERSPAN_BASELINE", str(tmp_path / "none.json"))
    inferspan.instrument(model, nvml=False, host=False).uninstrument()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{before}"], "-o FILE saves them"),
        (["{before}", "--json", "x.json"], "-o FILE saves them"),
        (["{before}", "--against", "{before}"], "is no baseline"),
        (["{folder}/none.jsonl", "-o", "x.json"], "none.jsonl"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(saved: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2."""
    before, folder = saved.with_name("before.jsonl"), saved.parent
    assert main(["baseline", *(one.format(before=before, folder=folder) for one in arguments)]) == 2
    assert said in capsys.readouterr().err
