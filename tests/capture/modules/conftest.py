"""What tests of recorded calls have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inferspan.capture.modules import recorder


@pytest.fixture
def running() -> Iterator[None]:
    """Whatever a test makes the running request is none afterwards."""
    yield
    recorder.current.call = None
