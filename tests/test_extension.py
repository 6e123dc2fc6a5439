"""The optional C extension: used where it loads, fits and is wanted, and a reason in words where not."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from inferspan import extension
from inferspan.cli import main

FITS = f"ABI = {extension.ABI}\n" + "".join(f"{name} = None\n" for name in extension.CONTENTS)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """An importable folder whose modules stand for the extension; their names are of this test alone."""
    folder = tmp_path / f"package_{abs(hash(request.node.nodeid))}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def test_it_is_used_where_it_fits(package: Path) -> None:
    """A module with the ABI of the Python code is handed out."""
    (package / "fits.py").write_text(FITS)
    found = extension.load({}, name=f"{package.name}.fits")
    assert (found, str(found)) == (extension.Extension(sys.modules[f"{package.name}.fits"]), "C extension")


@pytest.mark.parametrize("text", ["0", "false", " No ", "off"])
def test_it_can_be_switched_off(package: Path, text: str) -> None:
    """With the variable off it is not even imported."""
    (package / "fits.py").write_text(FITS)
    found = extension.load({"INFERSPAN_EXTENSION": text}, name=f"{package.name}.fits")
    assert (found.module, str(found)) == (None, f"Python (INFERSPAN_EXTENSION={text.strip()})")
    assert f"{package.name}.fits" not in sys.modules


@pytest.mark.parametrize(("text", "warned"), [("", False), ("1", False), ("on", False), ("maybe", True)])
def test_other_values_leave_it_on(package: Path, text: str, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    """True is the default, an empty variable is none, and a wrong one is a warning."""
    (package / "fits.py").write_text(FITS)
    assert extension.load({"INFERSPAN_EXTENSION": text}, name=f"{package.name}.fits").module is not None
    expected = ["INFERSPAN_EXTENSION=maybe is ignored: inferspan setting 'extension' cannot be 'maybe': use true or false"]
    assert caplog.messages == (expected if warned else [])


def test_one_that_was_not_built_is_no_warning(package: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is optional: where it is not, one line says so to those who look for it."""
    with caplog.at_level(logging.INFO, logger="inferspan"):
        for _ in range(2):
            found = extension.load({}, name=f"{package.name}.missing")
    assert found == extension.Extension(None, "the C extension was not built")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "module calls are recorded by: Python (the C extension was not built)")
    ]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("garbage" + EXTENSION_SUFFIXES[0], "no machine code", r"does not load \(ImportError: .+\): install inferspan again"),
        ("error.py", "raise RuntimeError('two\\nlines')", r"does not load \(RuntimeError: two lines\): install inferspan again"),
        ("needs.py", "import inferspan_missing", r"does not load \(ModuleNotFoundError: No module named 'inferspan_missing'\): install"),
        ("old.py", "ABI = -1", rf"is of another version of inferspan, ABI -1 where {extension.ABI} is needed: install inferspan again"),
        ("incomplete.py", FITS.replace("NativeEvents", "Events"), "is incomplete, without NativeEvents: install inferspan again"),
        ("older.py", "", rf"is of another version of inferspan, ABI None where {extension.ABI} is needed: install inferspan again"),
    ],
)
def test_one_that_cannot_be_used_is_a_warning(package: Path, name: str, content: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is wrong with the file, Python code records, and one line in the log says why and what to do, once."""
    (package / name).write_text(content)
    for _ in range(2):
        found = extension.load({}, name=f"{package.name}.{name.partition('.')[0]}")
    assert (found.module, found.broken) == (None, True)
    (line,) = caplog.messages
    assert line == f"{found.reason}. Until then module calls are recorded by Python code, which only takes longer"
    assert re.match(f"the C extension {reason}", line), line


def test_the_command_says_which_one_records(capsys: pytest.CaptureFixture[str]) -> None:
    """``inferspan version`` has a line on it."""
    assert main(["version"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("recorder")]
    assert line.split(maxsplit=1)[1] == str(extension.find())


def test_the_command_says_why_not_and_loads_no_torch() -> None:
    """The reason stands behind it; nobody waits for torch to read it."""
    code = "import sys; from inferspan.cli import main; main(['version']); print('torch' in sys.modules)"
    environ = {**os.environ, "INFERSPAN_EXTENSION": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert [line.split(maxsplit=1) for line in done.stdout.splitlines()[-2:]] == [["recorder", "Python (INFERSPAN_EXTENSION=0)"], ["False"]]


def test_it_is_there_where_it_was_demanded() -> None:
    """Tests that ran without it would say nothing of it: where the build demands it, as in CI, that is a failure."""
    if os.environ.get("INFERSPAN_BUILD_EXTENSION") != "require":
        pytest.skip("INFERSPAN_BUILD_EXTENSION=require is not set")
    found = extension.find({})
    assert found.module is not None, f"INFERSPAN_BUILD_EXTENSION=require, but {found.reason}: run `pip install --editable .`"
