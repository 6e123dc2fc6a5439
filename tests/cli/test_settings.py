"""``inferspan settings``: values in force and their sources; and the command without arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from inferspan.cli import main
from inferspan.settings import describe
from tests.doctor.conftest import clean


def run(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "inferspan", *map(str, arguments)]
    return subprocess.run(command, env=clean(environ), capture_output=True, text=True, timeout=120, check=False)


def sources(*arguments: object, **environ: str) -> dict[str, tuple[object, str]]:
    """Value and source of the settings that are not at their default."""
    done = run("settings", "--changed", "--json", *arguments, **environ)
    assert done.returncode == 0, done.stderr
    return {name: (row["value"], row["source"]) for name, row in json.loads(done.stdout).items()}


def test_nothing_is_changed_by_default() -> None:
    """All settings are listed, each at its default."""
    assert sources() == {}
    whole = json.loads(run("settings", "--json").stdout)
    assert list(whole) == [name for name, *_ in describe()]
    assert {row["source"] for row in whole.values()} == {"default"}


def test_every_source_has_its_name(tmp_path: Path) -> None:
    """Argument over environment over file over preset, as instrument() resolves them."""
    pytest.importorskip("yaml")
    file = tmp_path / "settings.yaml"
    file.write_text("top_k: 7\nkeep: errors\nlogits: true\n")
    found = sources("mark=true", INFERSPAN_CONFIG=str(file), INFERSPAN_KEEP="slow", INFERSPAN_PRESET="light", INFERSPAN_MARK="0")
    assert found == {
        "mark": (True, "argument"),
        "keep": ("slow", "environment INFERSPAN_KEEP"),
        "top_k": (7, f"file {file} (INFERSPAN_CONFIG)"),
        "logits": (True, f"file {file} (INFERSPAN_CONFIG)"),
        "modules": ("none", "preset light (INFERSPAN_PRESET)"),
        "steps": ("sampled", "preset light (INFERSPAN_PRESET)"),
        "token_arrays": (False, "preset light (INFERSPAN_PRESET)"),
        "analysis": (False, "preset light (INFERSPAN_PRESET)"),
    }


def test_presets_and_files_of_arguments(tmp_path: Path) -> None:
    """What --preset and --config name is told from what variables name."""
    pytest.importorskip("yaml")
    file = tmp_path / "settings.yaml"
    file.write_text("top_k: 7\n")
    assert sources("--config", file) == {"top_k": (7, f"file {file}")}
    assert sources("--preset", "light")["modules"] == ("none", "preset light")


def test_variables_of_opentelemetry_are_sources() -> None:
    """Content and names of the conventions have theirs."""
    found = sources(OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="SPAN_ONLY", OTEL_SEMCONV_STABILITY_OPT_IN="gen_ai_latest_experimental")
    assert found == {
        "capture_content": ("SPAN_ONLY", "environment OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"),
        "semconv": ("latest", "environment OTEL_SEMCONV_STABILITY_OPT_IN"),
    }


def test_text_has_value_and_source() -> None:
    """On the line below the name."""
    lines = run("settings", "--changed", INFERSPAN_STAGES="vision_encode=a.b").stdout.splitlines()
    assert lines[:2] == ["stages  (INFERSPAN_STAGES, default auto)", "    = vision_encode=a.b  [environment INFERSPAN_STAGES]"]


@pytest.mark.parametrize(
    ("argument", "said"), [("modules=everything", "cannot be 'everything'"), ("modulse=all", "did you mean 'modules'?"), ("modulse", "did you mean modules?")]
)
def test_wrong_arguments_are_one_line(argument: str, said: str) -> None:
    """As instrument() refuses them."""
    done = run("settings", argument)
    assert (done.returncode, done.stderr.count("\n"), said in done.stderr) == (2, 1, True)


def test_a_wrong_variable_is_a_warning() -> None:
    """It does not count, which is said on standard error."""
    done = run("settings", "--changed", "--json", INFERSPAN_TOP_K="many")
    assert (done.returncode, json.loads(done.stdout)) == (0, {})
    assert "INFERSPAN_TOP_K=many is ignored" in done.stderr


def test_the_command_alone_prints_help() -> None:
    """As pip, docker and others do: on standard output, exit code 0."""
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run("--help").stdout


def test_one_setting_by_its_name() -> None:
    """Value, source, meaning and what is allowed, and no other one; the name of its variable does as well."""
    out = run("settings", "steps", INFERSPAN_STEPS="none").stdout
    first, value, meaning, *_, allowed, precedence = out.splitlines()
    assert first == "steps  (INFERSPAN_STEPS, default all)"
    assert value == "    = none  [environment INFERSPAN_STEPS]"
    assert meaning.startswith("    forward passes of generate() that get spans")
    assert allowed == "    allowed: one of all, sampled, none"
    assert precedence.startswith("an argument of instrument() wins over the environment")
    assert run("settings", "INFERSPAN_STEPS", INFERSPAN_STEPS="none").stdout == out
    assert set(json.loads(run("settings", "steps", "keep", "--json").stdout)) == {"keep", "steps"}


def test_every_setting_says_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    """By the words of its error."""
    names = [name for name, *_ in describe()]
    assert main(["settings", *names]) == 0
    found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("    allowed: ")]
    assert len(found) == len(names)
    assert [line for line in found if line == "    allowed: anything"] == []


def test_a_setting_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """One line with the one that is meant."""
    assert main(["settings", "modls"]) == 2
    assert capsys.readouterr().err == "inferspan: there is no setting 'modls': did you mean modules? inferspan settings lists them\n"
