"""What is built with and without a C compiler: tags, contents, and what is said. Each build is a process of its own, as with pip."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
pytest.importorskip("setuptools")

import hatch_build

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "inferspan/capture/modules"
"""Where a wheel has the extension; its C files are in ``csrc``, beside it."""
PURE = "inferspan-0.1.0-py3-none-any.whl"
BROKEN = {"CC": "/bin/false"}
FIX = "To get it: install a C compiler and the headers of this Python (Debian: gcc python3-dev), then install again."
WITHOUT = (
    "inferspan: installed without its optional C extension (/bin/false ended with exit status 1): recording costs about four times more"
    f" a module call, nothing else changes. {FIX} INFERSPAN_BUILD_EXTENSION=no hides this line.\n"
)
_free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
needs_compiler = pytest.mark.skipif(
    shutil.which((sysconfig.get_config_var("CC") or "cl").split()[0]) is None
    or not Path(sysconfig.get_path("include"), "Python.h").is_file()
    or hatch_build.obstacle(platform.python_implementation(), free_threaded=_free_threaded) is not None,
    reason="no C compiler, or no headers of Python",
)
needs_false = pytest.mark.skipif(not Path(BROKEN["CC"]).exists(), reason="no /bin/false to stand for a broken compiler")


def build(source: Path, target: Path, what: str = "wheel", **environ: str) -> subprocess.CompletedProcess[str]:
    """Call the build backend, as pip does, in the folder of a source."""
    target.mkdir(exist_ok=True)
    return run(source, ["-c", f"import sys, hatchling.build; hatchling.build.build_{what}(sys.argv[1])", str(target)], environ)


def build_in_place(source: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """What an editable install does with the extension, and nothing else."""
    return run(source, ["-m", "hatchling", "build", "--target", "wheel:editable", "--hooks-only"], environ)


def run(folder: Path, arguments: list[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run Python with the variables of a build."""
    inherited = {name: value for name, value in os.environ.items() if name != "INFERSPAN_BUILD_EXTENSION"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env={**inherited, **environ}, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked: whatever is built of it shows that it has all that it takes."""
    folder = tmp_path_factory.mktemp("sdist")
    done = build(ROOT, folder, "sdist")
    assert done.returncode == 0, done.stderr
    (archive,) = folder.iterdir()
    with tarfile.open(archive) as file:
        file.extraction_filter = lambda member, _: member  # older Pythons know no filter, newer ones warn where none is set
        file.extractall(folder)
    return folder / archive.name.removesuffix(".tar.gz")


def compiled(source: Path) -> list[str]:
    """Names of the compiled files beside the Python files."""
    return sorted(path.name for path in (source / "src" / FOLDER).iterdir() if path.suffix != ".py" and path.is_file())


def wheel_tags(wheel: Path) -> list[str]:
    """The lines on tags in a wheel's own description."""
    with zipfile.ZipFile(wheel) as file:
        text = file.read("inferspan-0.1.0.dist-info/WHEEL").decode()
    return [line for line in text.splitlines() if line.startswith(("Root-Is-Purelib", "Tag"))]


def recorder_of(wheel: Path, folder: Path) -> str:
    """What the package of a wheel says of its recorder."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder)
    code = f"import inferspan, sys; assert inferspan.__file__.startswith({str(folder)!r}); from inferspan import extension; print(extension.find({{}}))"
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True).stdout.strip()


def c_files(root: Path) -> set[str]:
    """Names of the C files and their header."""
    return {path.name for path in (root / "src" / FOLDER / "csrc").iterdir()}


def test_source_distribution_has_what_the_extension_is_made_of(source: Path) -> None:
    """The C files and the hook are in it."""
    assert c_files(source) == c_files(ROOT) >= {"module.c", "recorder.h"}
    assert (source / "hatch_build.py").is_file()


def test_source_distribution_has_nothing_that_was_compiled_here(source: Path) -> None:
    """An extension that was built in place stays out."""
    assert compiled(source) == []


@needs_compiler
@needs_false
def test_wheel_with_and_without_a_compiler(source: Path, tmp_path: Path) -> None:
    """With a compiler there is one file more, which fits the package, and a tag for this platform and every Python from 3.10 on."""
    strict = {} if os.name == "nt" else {"CFLAGS": "-Wall -Werror"}
    done = build(source, tmp_path / "with", INFERSPAN_BUILD_EXTENSION="require", **strict)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    (full,) = (tmp_path / "with").iterdir()
    assert full.name.startswith("inferspan-0.1.0-cp310-abi3-")
    assert wheel_tags(full) == ["Root-Is-Purelib: false", f"Tag: {full.stem.removeprefix('inferspan-0.1.0-')}"]

    done = build(source, tmp_path / "without", **BROKEN)
    assert (done.returncode, done.stderr) == (0, WITHOUT)
    pure = tmp_path / "without" / PURE
    assert wheel_tags(pure) == ["Root-Is-Purelib: true", "Tag: py3-none-any"]

    names = [set(zipfile.ZipFile(wheel).namelist()) for wheel in (full, pure)]
    (file,) = names[0] - names[1]
    assert (file.rpartition("/")[0], names[1] - names[0]) == (FOLDER, set())
    assert file.endswith("_recorder.pyd" if os.name == "nt" else "_recorder.abi3.so")
    assert not any(name.endswith((".c", ".h", ".so", ".pyd")) for name in names[1])
    assert recorder_of(full, tmp_path / "full") == "C extension"
    assert recorder_of(pure, tmp_path / "pure") == "Python (the C extension was not built)"


@needs_compiler
@needs_false
def test_editable_install_has_it_beside_the_source(source: Path) -> None:
    """It is built in place; when it cannot be built again, what is left of the time before is not used."""
    assert build_in_place(source, INFERSPAN_BUILD_EXTENSION="require").returncode == 0
    assert compiled(source) == ["_recorder.pyd" if os.name == "nt" else "_recorder.abi3.so"]
    assert WITHOUT in build_in_place(source, **BROKEN).stderr
    assert compiled(source) == []


@needs_false
def test_where_it_is_demanded_the_build_fails(source: Path, tmp_path: Path) -> None:
    """One line says what is missing, and there is no wheel."""
    done = build(source, tmp_path, INFERSPAN_BUILD_EXTENSION="require", **BROKEN)
    reason = "the C extension cannot be built (/bin/false ended with exit status 1)"
    assert (done.returncode, done.stderr) == (1, f"inferspan: INFERSPAN_BUILD_EXTENSION=require, but {reason}. {FIX}\n")
    assert list(tmp_path.iterdir()) == []


def test_without_it_on_purpose(source: Path, tmp_path: Path) -> None:
    """Who wants none gets the pure wheel, and hears nothing of it."""
    done = build(source, tmp_path, INFERSPAN_BUILD_EXTENSION="no")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == [PURE]


def test_wrong_variable_is_one_line(source: Path, tmp_path: Path) -> None:
    """The error names the variable, its value and what is allowed."""
    done = build(source, tmp_path, INFERSPAN_BUILD_EXTENSION="yes")
    assert (done.returncode, done.stderr) == (1, "inferspan: INFERSPAN_BUILD_EXTENSION cannot be 'yes': use auto, require or no\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("implementation", "free_threaded", "expected"),
    [
        ("CPython", False, None),
        ("CPython", True, "free-threaded Python has no stable ABI that it could use"),
        ("PyPy", False, "it is for CPython, and this is PyPy"),
    ],
)
def test_pythons_it_is_not_for(implementation: str, free_threaded: bool, expected: str | None) -> None:
    """Where the stable ABI is missing nothing is compiled."""
    assert hatch_build.obstacle(implementation, free_threaded=free_threaded) == expected
