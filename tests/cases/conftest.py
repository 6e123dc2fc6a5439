"""The listener of each test, and torch as the situations want it: one thread, fixed seed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.cases.telemetry import Telemetry


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models are slower on more threads, and sums in another order are other sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Everything that inferspan emits during the test."""
    listener = Telemetry()
    yield listener
    listener.close()
