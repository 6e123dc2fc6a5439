"""The listener of each test, and torch as the situations want it: one thread, fixed seed."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def everywhere(one_thread: None) -> None:
    """For every test of the folder."""
    torch.manual_seed(0)


