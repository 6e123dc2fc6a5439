"""The resource of our providers: host, rank, versions, and the user's words last."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource

import inferspan
from inferspan.export.resource import Detector, detected_resource

RANKS = ("inferspan.distributed.rank", "inferspan.distributed.local_rank", "inferspan.distributed.world_size")


def ranks(environ: Mapping[str, str]) -> tuple[object, ...]:
    """Rank, local rank and world size of the resource."""
    attributes = detected_resource(environ).attributes
    return tuple(attributes.get(name) for name in RANKS)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (None, None, None)),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, (3, 1, 8)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, None, 1)),
        ({"RANK": "3"}, (None, None, None)),
        ({"RANK": "8", "WORLD_SIZE": "8"}, (None, None, None)),
        ({"RANK": "-1", "WORLD_SIZE": "8"}, (None, None, None)),
        ({"RANK": "three", "WORLD_SIZE": "8"}, (None, None, None)),
        ({"RANK": "", "WORLD_SIZE": ""}, (None, None, None)),
        ({"RANK": "1", "LOCAL_RANK": "x", "WORLD_SIZE": "2"}, (1, None, 2)),
        ({"RANK": "7" * 5000, "WORLD_SIZE": "8"}, (None, None, None)),
        ({"RANK": "1", "WORLD_SIZE": "9" * 19}, (None, None, None)),
        ({"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "4"}, (2, 0, 4)),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}, (None, None, None)),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1"}, (None, None, None)),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "9"}, (1, 1, 2)),
    ],
)
def test_ranks(environ: Mapping[str, str], expected: tuple[object, ...]) -> None:
    """Ranks are those of torchrun or of a step of srun; what is not well formed is left out."""
    assert ranks(environ) == expected


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"RANK": "7" * 5000, "WORLD_SIZE": "8"}, ["RANK"]),
        ({"RANK": "8", "WORLD_SIZE": "8"}, ["RANK"]),
        ({"RANK": "1", "WORLD_SIZE": "many"}, ["WORLD_SIZE"]),
        ({"RANK": "1", "LOCAL_RANK": "x", "WORLD_SIZE": "2"}, ["LOCAL_RANK"]),
        ({"RANK": "gold"}, []),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, []),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, []),
    ],
)
def test_ranks_that_cannot_be_used(environ: Mapping[str, str], told: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """What a launcher has set and is no rank is one warning; one of the words alone is not a launcher's."""
    ranks(environ)
    ranks(environ)
    assert [message.split("=")[0] for message in caplog.messages] == told


def test_facts() -> None:
    """Host and installed frameworks are named, and the SDK's own attributes are kept."""
    attributes = detected_resource({}).attributes
    assert attributes["host.name"] == socket.gethostname()
    assert str(attributes["inferspan.framework.torch.version"]).startswith(importlib.metadata.version("torch").split("+")[0])
    assert attributes["inferspan.framework.transformers.version"] == importlib.metadata.version("transformers")
    assert attributes["telemetry.sdk.language"] == "python"
    assert len(str(attributes["service.instance.id"])) == 36
    assert attributes["process.pid"] == os.getpid()


def test_user_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the standard variables say replaces what we found."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=mine,inferspan.distributed.rank=77,team=a%20b")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat")
    attributes = detected_resource({"RANK": "1", "WORLD_SIZE": "2"}).attributes
    found = {key: attributes[key] for key in ("host.name", "inferspan.distributed.rank", "team", "service.name")}
    assert found == {"host.name": "mine", "inferspan.distributed.rank": "77", "team": "a b", "service.name": "chat"}


def test_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    """The detector for other people's providers finds the same facts, and nothing of the SDK's."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    attributes = Detector().detect().attributes
    assert attributes["inferspan.distributed.rank"] == 1
    assert "service.name" not in attributes and "telemetry.sdk.name" not in attributes


def service_name(arguments: list[str], path: Path, **environ: str) -> str:
    """The service name that a program of its own finds for itself."""
    source = os.pathsep.join([str(Path(inferspan.__file__).parents[1]), str(path)])
    run = subprocess.run(
        [sys.executable, *arguments], cwd=path, env={**os.environ, "PYTHONPATH": source, **environ}, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


UNNAMED = str(Resource.create().attributes["service.name"])
"""``unknown_service:python``, from 1.45 on, which knows what runs."""
ASK = "from inferspan.export.resource import detected_resource as found\nprint(found().attributes['service.name'])\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve.py"], "serve"),
        (["./deep/serve.py"], "serve"),
        (["-m", "pkg"], "pkg"),
        (["-m", "pkg.worker"], "pkg.worker"),
        (["-m", "serve"], "serve"),
        (["pkg"], "pkg"),
        (["pkg/__main__.py"], "pkg"),
        (["-c", ASK], UNNAMED),
        (["notebook.py"], UNNAMED),
        (["spawning.py"], "spawning"),
    ],
)
def test_service_is_called_like_the_program(arguments: list[str], expected: str, tmp_path: Path) -> None:
    """Without a name of the user's the service has that of the script or module; a notebook and ``-c`` have none."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    for name in ("serve.py", "deep/serve.py", "pkg/__main__.py", "pkg/worker.py"):
        (tmp_path / name).write_text(ASK)
    (tmp_path / "notebook.py").write_text("import sys\nsys.modules['ipykernel'] = sys\n" + ASK)
    spawning = "import multiprocessing\ndef work():\n    " + ASK.replace("\n", "\n    ").rstrip()
    spawning += "\nif __name__ == '__main__':\n    child = multiprocessing.get_context('spawn').Process(target=work)\n"
    (tmp_path / "spawning.py").write_text(spawning + "    child.start()\n    child.join()\n")
    assert service_name(arguments, tmp_path) == expected
    assert UNNAMED in ("unknown_service", "unknown_service:python")


@pytest.mark.parametrize("environ", [{"OTEL_SERVICE_NAME": "mine"}, {"OTEL_RESOURCE_ATTRIBUTES": "service.name=mine"}])
def test_service_name_of_the_user_wins(environ: dict[str, str], tmp_path: Path) -> None:
    """A name in the environment is the one that counts."""
    (tmp_path / "serve.py").write_text(ASK)
    assert service_name(["serve.py"], tmp_path, **environ) == "mine"
