"""The bundled files are found where the package is installed, and the wheel holds them."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from inferspan import bundles
from inferspan.cli import main

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


def test_wheel_holds_package_type_marker_and_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip installs has every module of src, py.typed, the configurations and the report's assets."""
    monkeypatch.setenv("INFERSPAN_BUILD_EXTENSION", "no")
    builder = pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT))
    (wheel,) = builder.build(directory=str(tmp_path), versions=["standard"])
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "inferspan").rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".c", ".h", ".so", ".pyd")
    }
    configurations = {f"inferspan/{name}" for name in bundles.bundled_files()}
    assert {"inferspan/py.typed", "inferspan/collector-config/dev.yaml"} <= package | configurations <= inside


def test_everything_is_bundled() -> None:
    """Every committed file of the configurations, and of what Grafana loads, is in the bundle; the dashboards' generator is not."""
    folders = ("collector-config", "grafana/dashboards", "grafana/provisioning", "grafana/rules.yml")
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout")
    committed = {name for name in listed.stdout.split() if not name.endswith(".gitkeep") and (ROOT / name).exists()}
    names = set(bundles.bundled_files())
    assert committed <= names
    assert [name for name in names if not name.startswith(folders)] == []


def test_grafana_files_are_found() -> None:
    """Files and folders for Grafana have paths, and an unknown one lists what there is."""
    assert bundles.grafana("rules.yml").read_text() == (ROOT / "grafana" / "rules.yml").read_text()
    assert bundles.grafana("dashboards").is_dir()
    with pytest.raises(FileNotFoundError, match=r"^inferspan has no Grafana file 'rules.json'; it has .*rules\.yml"):
        bundles.grafana("rules.json")


def test_bundle_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All files with their content; what was written and the next command are printed; a second time writes nothing."""
    folder = tmp_path / "new" / "stack"
    assert main(["bundle", str(folder)]) == 0
    out = capsys.readouterr().out.splitlines()
    files = bundles.bundled_files()
    assert {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == {
        name: path.read_bytes() for name, path in files.items()
    }
    assert out == [
        *(str(folder / name) for name in files),
        f"{len(files)} files written.",
        f"Run the stack with them: inferspan stack up --bundle {folder}",
    ]
    assert main(["bundle", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"0 files written, {len(files)} were there already."


def test_bundle_keeps_changed_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files that differ are named, and nothing is written, until --force is given."""
    main(["bundle", str(tmp_path)])
    changed, removed = tmp_path / "collector-config" / "dev.yaml", tmp_path / "collector-config" / "jaeger.yaml"
    changed.write_text("mine")
    removed.unlink()
    capsys.readouterr()
    assert main(["bundle", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"inferspan: these files are there and differ, nothing was written:\n  {changed}\n"
        "Overwrite them with --force, or name another folder.\n"
    )
    assert (changed.read_text(), removed.exists()) == ("mine", False)
    assert main(["bundle", str(tmp_path), "--force"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [str(changed), str(removed)]
    assert changed.read_text() == bundles.collector_config("dev.yaml").read_text()
    changed.unlink()
    assert main(["bundle", str(tmp_path)]) == 0
    others = len(bundles.bundled_files()) - 1
    assert capsys.readouterr().out.splitlines()[1] == f"1 file written, {others} were there already."


def test_bundle_where_it_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file where the folder, or one in it, should be is one line that names it, and nothing is written."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "grafana").touch()
    for folder, file in (("file", "file"), ("link", "link"), ("half", "half/grafana")):
        assert main(["bundle", str(tmp_path / folder)]) == 2
        message = f"cannot write to {tmp_path / file}: a file is where a folder is wanted; name another folder"
        assert capsys.readouterr().err == f"inferspan: {message}\n"
    assert [path.name for path in (tmp_path / "half").iterdir()] == ["grafana"]
