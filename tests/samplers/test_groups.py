"""Settings ``gpu_metrics`` and ``host_metrics``: what is off is not read, and below one second only what is cheap is."""

from __future__ import annotations

from typing import Any

import pytest

from inferspan import semconv
from inferspan.samplers.groups import CHEAP_GPU, GPU_GROUPS, HOST_GROUPS, chosen
from inferspan.samplers.host import HostSampler
from inferspan.samplers.nvml import NvmlSampler
from inferspan.setting_checks import GPU_METRICS, HOST_METRICS
from tests.samplers.fake_nvml import FakeNvml, hopper_card
from tests.samplers.test_host import FakePsutil

UUID = "GPU-00cb6b6e-a504-ebd9-6345-b27dd00fbaa1"
DEAR = {"nvmlDeviceGetTotalEnergyConsumption", "fields", "nvmlDeviceGetComputeRunningProcesses"}


def gpu(library: FakeNvml, *words: str) -> NvmlSampler:
    """A sampler of one card that reads some groups."""
    metrics = chosen(GPU_GROUPS, words or None)
    return NvmlSampler(metrics=metrics, library=library, environ={}, pid=lambda: 413, cuda_devices=lambda: {UUID: "cuda:0"})


def metrics_of(samples: Any) -> set[str]:
    """Names of the metrics that were read."""
    return {sample.metric for sample in samples}


def test_words_of_the_settings_are_the_groups() -> None:
    """Every word means something, and every metric of a GPU and of the host has a word."""
    assert tuple(GPU_GROUPS) == GPU_METRICS
    assert tuple(HOST_GROUPS) == HOST_METRICS
    of_torch = {name for name in semconv.DEVICE_METRICS if name.startswith("inferspan.torch.")}
    assert chosen(GPU_GROUPS, None) | chosen(HOST_GROUPS, None) == set(semconv.DEVICE_METRICS) - of_torch


@pytest.mark.parametrize("word", GPU_METRICS)
def test_only_the_chosen_group_of_a_card_is_there(word: str) -> None:
    """Each word brings its metrics, as far as the card has them, and no others."""
    found = metrics_of(gpu(FakeNvml(hopper_card()), word).collect())
    assert found <= set(GPU_GROUPS[word])
    assert found or word in ("fan", "units", "xid")  # a card of a server has none; this one has no counters and no errors


def test_what_is_off_is_not_asked() -> None:
    """A reading that nobody wants costs no call of NVML."""
    library = FakeNvml(hopper_card())
    gpu(library, "memory", "utilization").collect()
    assert DEAR & set(library.calls) == {"nvmlDeviceGetComputeRunningProcesses"}  # memory of this process
    assert "nvmlDeviceGetPowerUsage" not in library.calls


def test_energy_that_is_off_is_not_read_for_requests() -> None:
    """Without the group, a request has no energy, and its reading asks nothing."""
    library = FakeNvml(hopper_card())
    assert gpu(library, "memory").energy() == {}
    assert not library.calls


def test_cheap_readings_ask_nothing_dear() -> None:
    """No energy, no batched fields (PCIe), no list of processes."""
    library = FakeNvml(hopper_card())
    sampler = gpu(library)
    sampler.collect()
    library.calls.clear()
    assert metrics_of(sampler.collect_cheap()) == CHEAP_GPU
    assert DEAR.isdisjoint(library.calls)
    assert sum(library.calls.values()) <= 6


def test_cheap_readings_have_the_values_of_whole_ones() -> None:
    """Both read the same series."""
    sampler = gpu(FakeNvml(hopper_card()))
    whole = {(sample.metric, *sample.attributes.items()): sample.value for sample in sampler.collect()}
    cheap = {(sample.metric, *sample.attributes.items()): sample.value for sample in sampler.collect_cheap()}
    assert cheap.items() <= whole.items()


@pytest.mark.parametrize("word", HOST_METRICS)
def test_only_the_chosen_group_of_the_host_is_there(word: str) -> None:
    """Each word brings its metrics and no others."""
    sampler = HostSampler(library=FakePsutil(), metrics=chosen(HOST_GROUPS, (word,)))
    found = metrics_of(sampler.collect())
    assert found
    assert found <= set(HOST_GROUPS[word])


def test_cheap_readings_of_the_host_are_cpu_and_memory() -> None:
    """No counts of the collector, of files and of threads."""
    sampler = HostSampler(library=FakePsutil())
    sampler.collect()
    found = metrics_of(sampler.collect_cheap())
    assert found <= {*HOST_GROUPS["cpu"], *HOST_GROUPS["memory"], semconv.M_PROCESS_MEMORY}
    assert {semconv.M_SYSTEM_CPU_TIME, semconv.M_SYSTEM_MEMORY_USAGE, semconv.M_PROCESS_MEMORY} <= found
