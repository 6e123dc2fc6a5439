"""Random environments, with a fixed seed: nothing that reads them raises, and a program with any of them runs as without."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry import environment_variables as api_variables
from opentelemetry.sdk import environment_variables as sdk_variables_of_otel
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

import inferspan
from inferspan import extension, settings
from inferspan.export import providers, sdk_variables, variables
from inferspan.export.exporters import build_exporter
from inferspan.export.resource import detected_resource
from inferspan.ranks import ranks
from inferspan.settings import Settings

SETS = 1000
PROCESSES = 30
ENDPOINTS = ("http://127.0.0.1:1", "http://me:hunter2@127.0.0.1:1/?key=hunter2", "127.0.0.1:1", "http://[", "ftp://x", "http://", "unix:///x")
VALUES = (
    "", " ", "abc", "0", "-1", "1", "3.5", "nan", "inf", "1e400", "9" * 20, "7" * 5000, "true", "none", "unset", "\u00fcn\u00ef", "\udcff",
    "a,b,,c", "=", "k=v", "no/such/file", "/", "/dev/null", "/dev/zero", "/dev/full", "*", "[", "nomatch*", "%s%d%n",
    "x" * 3000, "{}", "null", "always_on", "traceidratio", "console", "otlp", "prometheus", "http/json", "grpc", "slow", "debug",
)  # fmt: skip
HEADERS = ("Bearer hunter2", "authorization=hunter2", "authorization: hunter2,=hunter2", "x=hunter2\n", "", "\udcff=hunter2")
NOT_TRIED = ("OTEL_PYTHON_CONTEXT",)
"""What OpenTelemetry's API reads itself, once, when its first context is made."""


def names() -> list[str]:
    """Every variable that OpenTelemetry, a launcher or one of our settings has."""
    of_otel = {
        value
        for module in (api_variables, sdk_variables_of_otel)
        for value in vars(module).values()
        if isinstance(value, str) and value.startswith("OTEL_") and value not in NOT_TRIED
    }
    of_ours = {variable for _, variable, _, _ in settings.describe()} | set(settings.NO_SETTINGS)
    return sorted(of_otel | of_ours | {"RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"})


def environments(count: int, seed: int) -> Iterator[dict[str, str]]:
    """Random environments of 1 to 12 variables each."""
    rng, known = random.Random(seed), names()
    for _ in range(count):
        chosen = rng.sample(known, rng.randint(1, 12))
        pools = {name: ENDPOINTS if name.endswith("ENDPOINT") else HEADERS if name.endswith("HEADERS") else VALUES for name in chosen}
        yield {name: rng.choice(pool) for name, pool in pools.items()}


@contextmanager
def environment(environ: Mapping[str, str]) -> Iterator[None]:
    """These variables beside those of the process, which come back."""
    before = dict(os.environ)
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def read_everything(environ: Mapping[str, str]) -> None:
    """Call what reads the environment, as a set-up would, without making anything global."""
    Settings.resolve(environ=environ)
    ranks(environ)
    extension.find(environ)
    variables.names_destination(environ)
    for signal in variables.SIGNALS:
        variables.destination(environ, signal)
        variables.stays_here(environ, signal)
        providers.current_provider(signal)
        never = variables.unreachable(environ, [signal]).get(signal, [])
        for name in variables.choose_exporters(environ, signal):
            if name not in never and name != "otlp_proto_grpc":  # a channel of gRPC has threads
                with sdk_variables.hidden():
                    build_exporter(name, signal, environ)
    with sdk_variables.hidden():
        TracerProvider(shutdown_on_exit=False)
        MeterProvider(shutdown_on_exit=False)
        LoggerProvider(shutdown_on_exit=False)
        detected_resource(environ)


def test_nothing_that_reads_a_random_environment_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand environments are read without an exception, and stay as they are."""
    monkeypatch.chdir(tmp_path)
    failed = []
    for environ in environments(SETS, seed=1207):
        with environment(environ):
            before = dict(os.environ)
            try:
                read_everything(environ)
            except Exception as error:
                failed.append((environ, repr(error)))
            assert dict(os.environ) == before
    assert failed == []


PROGRAM = """
import json, os, sys
import torch
import opentelemetry.trace
assert "opentelemetry.sdk" not in sys.modules
ended = []
for number, environ in enumerate(json.loads(open(sys.argv[1]).read())):
    child = os.fork()
    if child == 0:
        out = os.open(f"{number}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ.update(environ)
        model, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()), torch.ones(2, 3)
        want = model(x)
        import inferspan
        handle = inferspan.instrument(model, nvml=False, host=False)
        assert torch.equal(model(x), want)
        inferspan.flush(0.5)
        handle.uninstrument()
        assert torch.equal(model(x), want)
        os._exit(0)
    ended.append(os.waitpid(child, 0)[1])
print(json.dumps(ended))
"""


def test_programs_run_in_random_environments(tmp_path: Path) -> None:
    """Thirty processes with an environment each: instrument() and calls work, and nothing secret is in their output."""
    sets = [environ | {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"} for environ in environments(PROCESSES, seed=64)]
    (tmp_path / "sets.json").write_text(json.dumps(sets))
    source = os.pathsep.join([str(Path(inferspan.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, "sets.json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    logs = [(tmp_path / f"{number}.log").read_text(errors="replace") for number in range(PROCESSES)]
    failed = [(sets[number], logs[number][-1500:]) for number, status in enumerate(json.loads(run.stdout)) if status]
    assert failed == []
    assert [log for log in logs if "Traceback" in log] == []
    assert [log for log in logs if "hunter2" in log] == []
