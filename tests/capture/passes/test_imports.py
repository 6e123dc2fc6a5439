"""Functions after an import: when they run, and that the import is what it would have been."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from inferspan import guard
from inferspan.capture.passes.imports import ImportWatch


@pytest.fixture
def watches() -> Iterator[list[ImportWatch]]:
    """Two that watch at the same time, as zero code and ``instrument_loading()`` do."""
    made = [ImportWatch(), ImportWatch()]
    for watch in made:
        watch.install()
    yield made
    for watch in made:
        watch.remove()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path; the modules that were imported from it are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


def test_runs_after_the_import(watches: list[ImportWatch], folder: Path) -> None:
    """Each runs once, with the complete module, and not for other modules."""
    (folder / "watched_one.py").write_text("value = 1\n")
    (folder / "watched_two.py").write_text("import watched_one\n")
    seen: list[int] = []
    for watch in watches:
        watch.after("watched_one", lambda module: seen.append(module.value))
    importlib.import_module("watched_two")
    importlib.import_module("watched_one")
    assert seen == [1, 1]


def test_module_that_is_there(watches: list[ImportWatch]) -> None:
    """A module that has been imported already is passed at once."""
    seen: list[ModuleType] = []
    watches[0].after("json", seen.append)
    assert seen == [sys.modules["json"]]


def test_module_is_what_it_would_have_been(watches: list[ImportWatch], folder: Path) -> None:
    """Loader, spec and source of the module are not ours, and it can be reloaded."""
    (folder / "watched_three.py").write_text("def f():\n    return 3\n")
    seen: list[ModuleType] = []
    for watch in watches:
        watch.after("watched_three", seen.append)
    module = importlib.import_module("watched_three")
    assert type(module.__loader__).__module__.split(".")[0] != "inferspan"
    assert vars(module.__loader__).get("exec_module") is None
    assert inspect.getsource(module.f) == "def f():\n    return 3\n"
    importlib.reload(module)
    assert seen == [module] * 4


def test_import_that_fails(watches: list[ImportWatch], folder: Path) -> None:
    """It raises its own exception with its own traceback, nothing runs, and it may be tried again."""
    (folder / "watched_four.py").write_text("1 / 0\n")
    seen: list[ModuleType] = []
    for watch in watches:
        watch.after("watched_four", seen.append)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as caught:
            exec("import watched_four")
        files = [Path(frame.filename).name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert files == ["test_imports.py", "<string>", "watched_four.py"]
    assert seen == []


def test_function_that_fails(watches: list[ImportWatch], folder: Path, contained: list[guard.Swallowed]) -> None:
    """An error of ours does not reach the import."""
    (folder / "watched_five.py").touch()
    watches[0].after("watched_five", lambda module: module.nothing)
    assert importlib.import_module("watched_five")
    assert [error.place for error in contained] == ["import of a library"]
    contained.clear()


def test_removed(watches: list[ImportWatch], folder: Path) -> None:
    """After its removal nothing runs and nothing of it is among the importers."""
    (folder / "watched_six.py").touch()
    seen: list[ModuleType] = []
    watches[0].after("watched_six", seen.append)
    watches[0].remove()
    importlib.import_module("watched_six")
    assert seen == []
    assert watches[0] not in sys.meta_path
