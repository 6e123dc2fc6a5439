"""The package as a whole: what it exports, what importing it loads, and who imports whom."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import inferspan

SOURCE = Path(inferspan.__file__).parent
HEAVY = ("torch", "transformers", "numpy", "pynvml", "psutil", "opentelemetry.sdk", "grpc", "google.protobuf", "yaml")
"""What ``import inferspan`` must not load: it costs seconds, or does something to the process."""

# Sources that are made of torch operations. All else must be importable where there is no torch.
NEEDS_TORCH: tuple[str, ...] = ("inferspan.capture", "inferspan.graph", "inferspan.samplers.allocator")
if importlib.util.find_spec("opentelemetry.instrumentation") is None:
    # Its base class is in an extra of ours.
    NEEDS_TORCH += ("inferspan.zero_code.instrumentor",)
# What works without the SDK, however it is reached: records, settings and what reads the machine or a session file.
LIGHT = tuple(
    f"inferspan.{name}"
    for name in (
        "buffer", "bundles", "caller", "cli", "extension", "guard", "ranks", "records", "report", "samplers", "semconv", "settings",
        "metrics.summary", "export.variables", "version",
    )
)  # fmt: skip
BROUGHT_BY_SDK = {"opentelemetry.sdk", "google.protobuf", "psutil"}
"""Its resource detectors look for psutil."""


def module_names() -> list[str]:
    """Every module of the package, without importing any."""
    names = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("inferspan", *path.relative_to(SOURCE).with_suffix("").parts)
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in names if not name.endswith("__main__")]


def loaded_by(statement: str) -> list[str]:
    """Which of the heavy packages a statement loads in a fresh interpreter."""
    code = f"import sys\n{statement}\nimport json\nprint(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return list(json.loads(result.stdout.splitlines()[-1]))


def test_exports_are_sorted_and_there() -> None:
    """``__all__`` is sorted, has no name twice, and every name in it can be had."""
    names = list(inferspan.__all__)
    assert names == sorted(set(names))
    assert [name for name in names if not hasattr(inferspan, name)] == []


def test_what_is_listed_is_public() -> None:
    """``dir(inferspan)`` and completion show the public names, also before they are loaded, and nothing that the package itself imports."""
    shown = "import inferspan; before = dir(inferspan); inferspan.Settings; print([before == dir(inferspan), before])"
    found = eval(subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout)
    assert found[0] is True
    assert sorted(name for name in found[1] if not name.startswith("__")) == sorted(name for name in inferspan.__all__ if name[0] != "_")


def test_exports_are_what_users_were_promised() -> None:
    """The public names are these; a new one is a decision, and this list is where it is made."""
    assert {"Settings", "__version__", "configure", "context", "flush", "instrument"} <= set(inferspan.__all__)


@pytest.mark.parametrize("name", [name for name in module_names() if not name.startswith(NEEDS_TORCH)])
def test_exports_of_modules_are_there(name: str) -> None:
    """Each module's ``__all__`` names things that it has, each once; their order is ruff's business."""
    module = importlib.import_module(name)
    names = list(getattr(module, "__all__", ()))
    assert len(names) == len(set(names))
    assert [export for export in names if not hasattr(module, export)] == []


def test_import_is_light() -> None:
    """Importing the package and making settings loads neither torch, NVML, psutil nor the SDK."""
    assert loaded_by("import inferspan\ninferspan.Settings()\ninferspan.__version__") == []


def test_import_of_light_modules_is_light() -> None:
    """Nothing heavy is loaded by the modules that need nothing heavy, the samplers of GPUs and host among them."""
    light = [name for name in module_names() if name.startswith(LIGHT) and not name.startswith(NEEDS_TORCH)]
    assert loaded_by("\n".join(f"import {name}" for name in light)) == []


def test_only_sources_load_torch() -> None:
    """Everything but the sources made of torch operations can be imported without torch; the SDK is the most that it loads."""
    others = [name for name in module_names() if not name.startswith(NEEDS_TORCH)]
    assert set(loaded_by("\n".join(f"import {name}" for name in others))) <= BROUGHT_BY_SDK


def test_import_check_can_fail() -> None:
    """The check above sees a package that is loaded."""
    assert loaded_by("import psutil, opentelemetry.sdk.trace") == ["psutil", "opentelemetry.sdk"]


def test_package_is_pickled_by_its_name() -> None:
    """As cloudpickle does for functions that use it."""
    assert pickle.loads(pickle.dumps(inferspan)) is inferspan


def test_version_is_the_installed_one() -> None:
    """``__version__`` is what pip says."""
    metadata = importlib.import_module("importlib.metadata")
    try:
        expected = metadata.version("inferspan")
    except metadata.PackageNotFoundError:
        pytest.skip("inferspan is not installed, only on the path")
    assert inferspan.__version__ == expected


def test_layers() -> None:
    """import-linter's contracts hold: layers, sources without OpenTelemetry, sinks without torch."""
    linter = pytest.importorskip("importlinter.cli")
    code = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports(cache_dir=None))"
    assert linter
    result = subprocess.run([sys.executable, "-c", code], cwd=SOURCE.parents[1], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
