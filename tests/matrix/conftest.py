"""Fixtures of the matrix: libraries that keep their remarks to themselves."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def everywhere(quiet: None) -> None:
    """No remarks about unusual pairs, and nothing that an earlier pair has compiled."""
    torch._dynamo.reset()
