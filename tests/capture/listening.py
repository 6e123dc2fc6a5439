"""Fixtures of folders whose tests listen to everything: the listener of each test, and torch on one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.cases.telemetry import Telemetry


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums in another order are other sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Everything that inferspan emits during the test."""
    listener = Telemetry()
    yield listener
    listener.close()
