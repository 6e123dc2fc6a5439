"""Fixtures for every test: a clean environment, and no contained error of ours that the test did not expect.

Tests that ask for it get a listener to everything that is emitted, torch on one thread, and libraries that keep their remarks to themselves.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import signal
import sys
import warnings
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from inferspan import extension, guard, setting_checks
from inferspan.export import providers
from inferspan.metrics.first_request import first_request

if TYPE_CHECKING:
    from tests.cases.telemetry import Telemetry

KEPT = ("INFERSPAN_EXTENSION", "INFERSPAN_BUILD_EXTENSION")
"""They choose what is tested, and say what must be there."""
VERSIONS = ("torch", "transformers", "opentelemetry-sdk", "opentelemetry-exporter-otlp", "nvidia-ml-py", "psutil")


def pytest_configure() -> None:
    """Programs of tests can be interrupted, also where the tests run in the background: a shell makes those ignore SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Who runs what."""
    from tests.support.distribution import ByServers

    return ByServers(config, log) if config.getvalue("dist") == "loadfile" else None


_frozen: tuple[str, int] = ("", 0)
"""File of the last test, and how many modules were imported then, in fifties."""


@pytest.fixture(autouse=True)
def old_objects_frozen(request: pytest.FixtureRequest) -> None:
    """What earlier files have left, and what was imported, is not looked at by collections of garbage: of a million objects one takes a second."""
    global _frozen
    now = (request.node.path.as_posix(), len(sys.modules) // 50)
    if now != _frozen:
        _frozen = now
        gc.collect()
        gc.freeze()


def pytest_report_header() -> str:
    """The versions that decide what a test sees."""
    found = []
    for name in VERSIONS:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} -")
    return "with: " + ", ".join([*found, f"recorder {extension.find()}"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Hostile texts in the captured log must not stop pytest-xdist, which sends reports as UTF-8."""
    report = yield
    report.sections = [(title, text.encode("utf-8", "backslashreplace").decode("utf-8")) for title, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the developer's shell steers a test, and no test looks for a model on a hub."""
    for name in list(os.environ):
        if name.startswith("OTEL_") or (name.startswith("INFERSPAN_") and name not in KEPT):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    setting_checks.warned.clear()
    # Whichever test comes first would have one metric more.
    first_request.take(0)


@pytest.fixture(autouse=True)
def nothing_borrowed() -> Iterator[None]:
    """A flush of a later test does not reach the providers of this one, which may fail on purpose and wait for a collection of garbage."""
    yield
    pipelines = providers.SETUP.pipelines
    for flusher in pipelines._flushers:
        flusher.stop()
    pipelines._flushers = ()


@pytest.fixture(autouse=True)
def contained() -> Iterator[list[guard.Swallowed]]:
    """Errors of ours that were contained during the test; one that is left here at its end fails it.

    A test that provokes such errors takes this fixture, compares what is in it, and clears it.
    """
    errors: list[guard.Swallowed] = []
    with guard.observe(errors.append):
        yield errors
    assert not errors, "inferspan contained errors of its own:\n" + "\n".join(map(str, errors))


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """No test depends on a compilation by an earlier one, after which modules are observed in another way, or not at all."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None and frames.input_codes.seen:
        sys.modules["torch._dynamo"].reset()


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Everything that inferspan emits during the test."""
    from tests.cases.telemetry import Telemetry

    listener = Telemetry()
    yield listener
    listener.close()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny models are slower on more threads, and sums in another order are other sums."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def quiet(one_thread: None) -> Iterator[None]:
    """One thread, and no remarks of torch and transformers."""
    import transformers

    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    transformers.logging.set_verbosity(verbosity)
