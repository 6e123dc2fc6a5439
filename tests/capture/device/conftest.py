"""A driver made of Python in the place of CUDA's, and a host clock set by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inferspan.capture.device import clock as device_clock
from tests.capture.device.clocks import Host
from tests.capture.device.fake_cuda import FakeCuda


@pytest.fixture(params=[pytest.param(False, id="functions"), pytest.param(True, id="addresses")])
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """One device, which every model is on; it must not have seen anything that it should not."""
    yield from _install(FakeCuda(pointers=request.param), monkeypatch)


@pytest.fixture(params=[pytest.param(False, id="functions"), pytest.param(True, id="addresses")])
def two(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Two devices, over which every model is spread."""
    yield from _install(FakeCuda(2, pointers=request.param), monkeypatch)


def _install(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake.install(monkeypatch)
    yield fake
    assert not fake.faults


@pytest.fixture
def own_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each boundary has an event of its own, however close the next one is."""
    monkeypatch.setattr(device_clock, "SHARE_NS", 0)
    monkeypatch.setattr(device_clock, "SHARE_DATA_NS", 0)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host clock that stands still."""
    clock = Host()
    monkeypatch.setattr(device_clock, "perf_counter_ns", clock)
    return clock
