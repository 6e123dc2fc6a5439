"""What the tests of summaries share: providers of their own, whose spans go into a session file, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

import inferspan


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Of a session."""
    return tmp_path / "session.jsonl"


@pytest.fixture
def record(file: Path) -> Iterator[Callable[..., inferspan.Handle]]:
    """Instruments a model, which is recorded into the file; the global providers stay as they are."""
    providers: dict[str, Any] = {
        "tracer_provider": TracerProvider(shutdown_on_exit=False),
        "meter_provider": MeterProvider(shutdown_on_exit=False),
        "logger_provider": LoggerProvider(shutdown_on_exit=False),
    }
    handles: list[inferspan.Handle] = []

    def instrument(model: Any, **settings: Any) -> inferspan.Handle:
        quiet: dict[str, Any] = {"nvml": False, "host": False, "allocator": False}
        handles.append(inferspan.instrument(model, session_file=str(file), **providers, **quiet, **settings))
        return handles[-1]

    yield instrument
    # The providers are left open: inferspan.flush() of a later test would find a destination that refuses.
    for handle in handles:
        handle.uninstrument()
