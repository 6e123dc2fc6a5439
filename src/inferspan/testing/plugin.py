"""Fixtures for pytest: ``pytest_plugins = ["inferspan.testing.plugin"]`` in the ``conftest.py`` of the root.

There is no entry point: pytest would load it, and inferspan with it, in every project of the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from .gpus import FakeGpu, fake_gpus
from .recording import Recording, record

__all__ = ["inferspan_gpus", "inferspan_record"]


@pytest.fixture
def inferspan_record(tmp_path: Path) -> Iterator[Callable[..., Recording]]:
    """A function like ``record`` that begins at once and ends with the test; the files are in ``tmp_path``."""
    with ExitStack() as stack:
        number = 0

        def begin(model: Any, tokenizer: Any = None, **settings: Any) -> Recording:
            nonlocal number
            number += 1
            path = settings.pop("path", tmp_path / f"recording-{number}.jsonl")
            return stack.enter_context(record(model, tokenizer, path=path, **settings))

        yield begin


@pytest.fixture
def inferspan_gpus() -> Iterator[Callable[..., tuple[FakeGpu, ...]]]:
    """A function like ``fake_gpus`` that begins at once and ends with the test."""
    with ExitStack() as stack:
        yield lambda *gpus, **options: stack.enter_context(fake_gpus(*gpus, **options))
