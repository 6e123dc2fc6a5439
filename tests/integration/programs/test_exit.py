"""A collector that is gone, or that never answers, costs the program a bounded wait at its exit and nothing else."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import plain_environment

pytestmark = pytest.mark.integration

EXIT_TIMEOUT = 1.0
GRACE = 8.0
"""The interpreter's own way out, with torch loaded, on a busy machine; an export that nothing bounds takes 10 s, for each signal."""

PROGRAM = """
import time
import torch
import inferspan

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
inferspan.instrument(model, modules="all")
for _ in range(200):
    model(torch.ones(1, 4))
print(time.time(), flush=True)
"""


@pytest.fixture(params=["gone", "silent"])
def dead_port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A port where nobody listens, or where connections are taken and nothing is ever said."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "silent":
            listener.listen(64)
        yield listener.getsockname()[1]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_exit_is_bounded(dead_port: int, protocol: str, tmp_path: Path) -> None:
    """The program ends with 0, within the exit timeout after its last statement."""
    environment = {
        **plain_environment(),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{dead_port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "INFERSPAN_EXIT_TIMEOUT": str(EXIT_TIMEOUT),
    }
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    ended = time.time()
    assert result.returncode == 0, result.stderr
    assert ended - float(result.stdout) < EXIT_TIMEOUT + GRACE, result.stderr
