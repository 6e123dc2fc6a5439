"""Versions of torch and transformers as tests ask for them."""

from __future__ import annotations

import importlib.metadata
import re

import pytest

__all__ = ["is_before", "needs_torch"]


def is_before(library: str, *version: int) -> bool:
    """Whether the installed version of a library is lower than one of as many numbers as are given."""
    found = re.findall(r"\d+", importlib.metadata.version(library))[: len(version)]
    return tuple(map(int, found)) < version


def needs_torch(*version: int, reason: str) -> pytest.MarkDecorator:
    """Skips tests with a torch before ``version``."""
    return pytest.mark.skipif(is_before("torch", *version), reason=reason)
