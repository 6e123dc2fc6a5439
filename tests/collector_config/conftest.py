"""The programs that read the configurations; a test that needs one which is not installed is skipped, or fails where it is required."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from tests.support.programs import need

Run = Callable[..., subprocess.CompletedProcess[str]]

# Nothing of the machine's own settings may decide what a configuration means.
OURS = ("OTEL", "JAEGER", "PROM", "GATEWAY", "INFERSPAN", "GRAFANA")


def clean_environment(**added: str) -> dict[str, str]:
    """The environment without the variables that configurations read."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith(OURS)}, **added}


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a user has to give before some configurations start: certificate, key and token, by the ends of the variables' names."""
    folder = tmp_path_factory.mktemp("given")
    files = {end: str(folder / end.lower()) for end in ("CERT", "KEY", "CA", "TOKEN_FILE")}
    authority = trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1")
    server.cert_chain_pems[0].write_to_path(files["CERT"])
    server.private_key_pem.write_to_path(files["KEY"])
    authority.cert_pem.write_to_path(files["CA"])
    Path(files["TOKEN_FILE"]).write_text("a token\n", encoding="utf-8")
    return files


@pytest.fixture
def run_tool() -> Run:
    """Run a program to its end; its whole output is in ``stdout``."""

    def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        need(program)
        return subprocess.run(
            [program, *arguments],
            env=clean_environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )

    return run
