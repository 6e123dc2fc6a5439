"""The bundled files are found where the package is installed, and the wheel holds them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from inferspan import bundles

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ["dev.yaml", "jaeger.yaml", "prometheus.yml"])
def test_configuration_is_found(name: str) -> None:
    """Each file has the text of the one in the repository."""
    assert bundles.collector_config(name).read_text() == (ROOT / "collector-config" / name).read_text()


def test_unknown_name_lists_what_there_is() -> None:
    """The error names what was asked for and every file that could have been."""
    with pytest.raises(FileNotFoundError) as error:
        bundles.collector_config("prod.yaml")
    folder = ROOT / "collector-config"
    there = ", ".join(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()))
    assert str(error.value) == f"inferspan has no collector configuration 'prod.yaml'; it has {there}"


def test_wheel_holds_package_type_marker_and_configurations(tmp_path: Path) -> None:
    """What pip installs has every module of src, py.typed, the configurations and the report's assets."""
    builder = pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT))
    (wheel,) = builder.build(directory=str(tmp_path), versions=["standard"])
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "inferspan").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    configurations = {f"inferspan/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "collector-config").rglob("*") if path.is_file()}
    assert {"inferspan/py.typed", "inferspan/collector-config/dev.yaml"} <= package | configurations <= inside
