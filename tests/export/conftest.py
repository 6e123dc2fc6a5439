"""Programs and receivers for the tests of the way out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.export.program import Program
from tests.support.otlp_receivers import RECEIVERS, Received


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """A program to be run."""
    return Program(tmp_path)


@pytest.fixture(params=list(RECEIVERS))
def receiver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    """A receiver for each protocol, named by the environment."""
    with RECEIVERS[request.param]() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", request.param)
        yield received
