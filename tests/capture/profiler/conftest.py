"""What is emitted during a test, and that no profiler is left open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.autograd import profiler as autograd_profiler

from tests.cases.telemetry import Telemetry

# As Any, because torch does not declare the names that are needed here.
_profiler: Any = autograd_profiler
_autograd: Any = torch.autograd


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Everything that inferspan emits during the test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    listener = Telemetry()
    yield listener
    listener.close()
    torch.set_num_threads(threads)
    assert not _autograd._profiler_enabled(), "a profiler was left open"
    assert _profiler._prepare_profiler is _autograd._prepare_profiler, "a start of the profiler is still watched"
