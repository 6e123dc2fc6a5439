"""Sizes that keep the project readable, and no import cycle: a folder, file or class that outgrows them wants to be divided."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

import inferspan

SOURCE = Path(inferspan.__file__).parent
ROOT = Path(__file__).resolve().parents[1]
TABLES = ("semconv.py",)
"""Files that are one table: a reader looks things up in them."""
NOT_KEPT = ("grafana/preview/node_modules", "grafana/preview/build", "grafana/preview/pictures", "collector-config/data")
"""Folders that git ignores: what programs install and write."""


def too_long(folder: Path, patterns: tuple[str, ...], most: int) -> list[str]:
    """Files below ``folder`` with more than ``most`` lines."""
    found = sorted(path for pattern in patterns for path in folder.rglob(pattern) if path.name not in TABLES)
    assert found, f"no {patterns} in {folder}"
    lengths = {path: path.read_text(encoding="utf-8").count("\n") for path in found}
    return [f"{path.relative_to(folder)}: {length}" for path, length in lengths.items() if length > most]


def classes(path: Path) -> Iterator[tuple[str, int]]:
    """Each class of a file with its lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.end_lineno is not None:
            yield node.name, node.end_lineno - node.lineno


def crowded(folder: Path, pattern: str, most: int) -> dict[str, int]:
    """Folders from ``folder`` on that hold more than ``most`` files directly, with their number."""
    left_out = {"__pycache__", *(ROOT / name for name in NOT_KEPT)}
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir() and left_out.isdisjoint((path.name, path, *path.parents)))]
    counts = {path: sum(one.is_file() for one in path.glob(pattern)) for path in folders}
    assert sum(counts.values()) > 0, f"no {pattern} in {folder}"
    return {path.relative_to(folder.parent).as_posix(): count for path, count in counts.items() if count > most}


def test_folders_hold_at_most_20_files() -> None:
    """No folder of the package holds more than 20 Python files directly."""
    assert crowded(SOURCE, "*.py", 20) == {}


@pytest.mark.parametrize("name", ["tests", "docs", "examples", "benchmarks", "grafana", "collector-config"])
def test_folders_beside_the_package_hold_at_most_20_files(name: str) -> None:
    """No folder of tests, pages, examples, measurements, dashboards and configurations holds more than 20 files directly."""
    assert crowded(ROOT / name, "*", 20) == {}


def test_source_files_have_at_most_400_lines() -> None:
    """No Python file of the package is longer than 400 lines, tables apart."""
    assert too_long(SOURCE, ("*.py",), 400) == []


def test_c_files_have_at_most_800_lines() -> None:
    """No file of the C extension is longer than 800 lines."""
    assert too_long(SOURCE / "capture" / "modules", ("*.c", "*.h"), 800) == []


def test_test_files_have_at_most_500_lines() -> None:
    """No file of the tests is longer than 500 lines."""
    assert too_long(ROOT / "tests", ("*.py",), 500) == []


def test_classes_have_at_most_350_lines() -> None:
    """No class of the package is longer than 350 lines."""
    assert [f"{name}: {size}" for path in sorted(SOURCE.rglob("*.py")) for name, size in classes(path) if size > 350] == []


def imports() -> dict[str, set[str]]:
    """What each module of the package imports of it, imports for type checking included."""
    graph = grimp.build_graph("inferspan", cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def test_no_import_cycle() -> None:
    """No module imports itself by way of others, not for type checking either."""
    # A package that re-exports a name of its own module imports it; whoever imports another module of it does not need that name.
    packages = {".".join(("inferspan", *path.parent.relative_to(SOURCE).parts)) for path in SOURCE.rglob("__init__.py")}
    TopologicalSorter({module: of - packages for module, of in imports().items() if module not in packages}).prepare()


def test_a_cycle_would_be_found() -> None:
    """The check above fails on a cycle of two modules."""
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()
