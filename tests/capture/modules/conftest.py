"""What tests of recorded calls have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo  # so that it can tell when something is compiled

from inferspan.capture.modules import recorder


@pytest.fixture
def running() -> Iterator[None]:
    """Whatever a test makes the running request is none afterwards."""
    yield
    recorder.current.call = None


@pytest.fixture
def nothing_compiled() -> None:
    """Other tests may have compiled something in this process, after which registered hooks do the work."""
    torch._dynamo.reset()


