"""Counters of the units of a GPU and errors of its driver: exact samples from what NVML answers, and none where it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from inferspan import semconv as s
from inferspan.samplers.nvml import NvmlSampler
from tests.samplers.fake_gpm import UNITS, CountingNvml
from tests.samplers.fake_nvml import NOT_SUPPORTED, UNKNOWN, hopper_card, split_card
from tests.samplers.test_nvml import UUID, Clock, sampler

NO_PERMISSION = 4
COUNTERS = {s.M_SM_ACTIVE, s.M_SM_OCCUPANCY, s.M_PIPE_ACTIVE, s.M_DRAM_ACTIVE, s.M_PCIE_BANDWIDTH, s.M_NVLINK_BANDWIDTH}


def _counters(samples: Any) -> dict[tuple[str, ...], float]:
    keys = (s.PIPE_NAME, s.NETWORK_IO_DIRECTION, s.XID)
    return {
        (one.metric, *(str(one.attributes[key]) for key in keys if key in one.attributes)): one.value
        for one in samples
        if one.metric in COUNTERS | {s.M_XID_ERRORS}
    }


def _of(library: CountingNvml, **options: Any) -> tuple[NvmlSampler, Clock]:
    clock = Clock()
    return sampler(library, clock=clock, **options), clock


def _rounds(found: tuple[NvmlSampler, Clock], count: int) -> list[dict[tuple[str, ...], float]]:
    rounds = []
    for _ in range(count):
        rounds.append(_counters(found[0].collect()))
        found[1].now += 5
    return rounds


def test_a_reading_is_the_mean_between_two_samples() -> None:
    """In base units: shares of 1, bytes a second."""
    first, second = _rounds(_of(CountingNvml(hopper_card())), 2)
    assert first == {}
    assert second == {
        (s.M_SM_ACTIVE,): 0.8, (s.M_SM_OCCUPANCY,): 0.25, (s.M_PIPE_ACTIVE, "tensor"): 0.5, (s.M_PIPE_ACTIVE, "fp64"): 0.0,
        (s.M_PIPE_ACTIVE, "fp32"): 0.125, (s.M_PIPE_ACTIVE, "fp16"): 0.0625, (s.M_PIPE_ACTIVE, "integer"): 0.03, (s.M_DRAM_ACTIVE,): 0.9,
        (s.M_PCIE_BANDWIDTH, "transmit"): 2 * 2**20, (s.M_PCIE_BANDWIDTH, "receive"): 4 * 2**20,
        (s.M_NVLINK_BANDWIDTH, "transmit"): 8 * 2**20, (s.M_NVLINK_BANDWIDTH, "receive"): 16 * 2**20,
    }  # fmt: skip


def test_readings_name_their_card() -> None:
    """As all others do."""
    found, clock = _of(CountingNvml(hopper_card()))
    found.collect()
    clock.now += 5
    assert {one.attributes[s.HW_ID] for one in found.collect() if one.metric == s.M_SM_ACTIVE} == {UUID}


def test_a_counter_that_the_card_lacks_is_absent() -> None:
    """Without NVLink there is no zero."""
    library = CountingNvml(hopper_card())
    library.units = {number: value for number, value in UNITS.items() if number < 60}
    assert {name for name, *_ in _rounds(_of(library), 2)[1]} == COUNTERS - {s.M_NVLINK_BANDWIDTH}


def test_a_value_that_is_no_number_is_absent() -> None:
    """NVML divides by the time between the samples."""
    library = CountingNvml(hopper_card())
    library.units = {**UNITS, 10: float("nan")}
    assert (s.M_DRAM_ACTIVE,) not in _rounds(_of(library), 2)[1]


def test_a_card_without_counters_is_asked_once() -> None:
    """All before Hopper."""
    library = CountingNvml(hopper_card())
    library.supported = False
    assert _rounds(_of(library), 3) == [{}, {}, {}]
    assert library.calls["support"] == 1
    assert library.calls["sample"] == 0


@pytest.mark.parametrize("code", [NO_PERMISSION, NOT_SUPPORTED])
def test_counters_that_are_refused_are_asked_once(code: int) -> None:
    """As for a program without rights; nothing stays allocated, and everything else is read."""
    library = CountingNvml(hopper_card())
    library.refused = code
    found = _of(library)
    assert _rounds(found, 3) == [{}, {}, {}]
    assert library.calls["sample"] == 1
    assert library.held["sample"] == 0
    assert s.M_POWER in {one.metric for one in found[0].collect()}


def test_a_failure_of_one_round_is_not_the_last() -> None:
    """An error that says nothing about the next time."""
    library = CountingNvml(hopper_card())
    found = _of(library)
    _rounds(found, 1)
    library.refused = UNKNOWN
    assert _rounds(found, 1) == [{}]
    library.refused = None
    assert (s.M_SM_ACTIVE,) in _rounds(found, 1)[0]


def test_a_card_that_is_split_is_not_asked() -> None:
    """Neither its instances: queries of memory are reported to fail after it."""
    library = CountingNvml(split_card())
    _rounds(_of(library, all_gpus=True), 2)
    assert library.calls["support"] == 0
    assert library.held["events"] == 0


def test_samples_and_events_are_freed() -> None:
    """One sample is held between two rounds, none after the end."""
    library = CountingNvml(hopper_card())
    found = _of(library)
    _rounds(found, 5)
    assert library.held == {"sample": 1, "events": 1}
    found[0].close()
    assert library.held == {"sample": 0, "events": 0}


def test_what_is_not_wanted_is_not_asked() -> None:
    """The setting ``gpu_metrics`` names groups."""
    library = CountingNvml(hopper_card())
    _rounds(_of(library, metrics={s.M_POWER}), 2)
    assert library.calls["support"] == 0
    assert library.held["events"] == 0


def test_errors_of_the_driver_are_counted_by_their_number() -> None:
    """From the first reading on; none is zero before it has occurred."""
    library = CountingNvml(hopper_card())
    found = _of(library, metrics={s.M_XID_ERRORS, s.M_POWER})
    assert _rounds(found, 1) == [{}]
    library.xids += [94, 31, 94]
    assert _rounds(found, 2) == [{(s.M_XID_ERRORS, "31"): 1, (s.M_XID_ERRORS, "94"): 2}] * 2
    library.xids.append(94)
    assert _rounds(found, 1)[0][s.M_XID_ERRORS, "94"] == 3


def test_events_that_are_refused_are_absent() -> None:
    """Some containers do not deliver them."""
    library = CountingNvml(hopper_card())
    library.events_refused = NOT_SUPPORTED
    library.xids.append(94)
    assert _rounds(_of(library, metrics={s.M_XID_ERRORS, s.M_POWER}), 2) == [{}, {}]
    assert library.held["events"] == 0



def test_a_card_that_cannot_register_now_holds_no_set_of_events() -> None:
    """Each round makes a set of its own; one that is not used is given back."""
    library = CountingNvml(hopper_card())
    library.events_refused = UNKNOWN
    _rounds(_of(library), 5)
    assert library.held["events"] == 0
