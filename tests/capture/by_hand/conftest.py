"""Torch on one thread."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def everywhere(one_thread: None) -> None:
    """For every test of the folder."""
