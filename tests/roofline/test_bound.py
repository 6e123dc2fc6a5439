"""What limits work with planted times and sizes is named right."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from inferspan import semconv
from inferspan.records import PassFacts, PassRun, Profiled
from inferspan.roofline.bound import Rates, Times, rates_of
from inferspan.roofline.costs import Cost
from inferspan.roofline.model import ModelCosts, ModulePart, Work
from inferspan.roofline.peaks import Peaks, peaks_of
from inferspan.roofline.request import PhaseRoofline, RequestRoofline, StepRoofline

H200 = peaks_of("cuda", "NVIDIA H200", "bfloat16")
CPU = Peaks(200e9, 20e9)
MS = 1e-3


@dataclass(frozen=True)
class Planted:
    """Some work, how long it took, and what that is limited by."""

    name: str
    bound: str | None
    flops: float
    size: float
    elapsed: float
    host: float | None = None
    kernels: float | None = None
    copies: float | None = None
    waits: float | None = None
    peaks: Peaks | None = H200
    asynchronous: bool = True

    def rates(self) -> Rates:
        """Those that are found."""
        times = Times(self.elapsed, self.host, self.kernels, self.copies, self.waits, self.asynchronous)
        return rates_of(Work(round(self.flops), round(self.size)), times, self.peaks)


PLANTED = (
    Planted("prefill of 8B, 16,384 tokens", "compute", 2.6e14, 4e10, 380 * MS, host=25 * MS),
    Planted("prefill at half of the peak", "compute", 2.6e14, 4e10, 530 * MS, host=25 * MS),
    Planted("prefill at a third, the host far ahead", "compute", 2.6e14, 4e10, 800 * MS, host=25 * MS),
    Planted("large product as a profiler saw it", "compute", 1e13, 1e8, 15 * MS, host=14 * MS, kernels=14.5 * MS),
    Planted("convolution on a CPU", "compute", 1e11, 1e8, 800 * MS, peaks=CPU, asynchronous=False),
    Planted("compiled decode of 8B", "memory", 1.6e10, 1.5e10, 4.2 * MS, host=0.6 * MS),
    Planted("decode of 8B with 64 rows", "memory", 1e12, 2.4e10, 9 * MS, host=8 * MS),
    Planted("decode of 8B with a long cache", "memory", 2e10, 3.2e10, 9 * MS, host=8.5 * MS),
    Planted("decode on a slow kernel, the host ahead", "memory", 1.6e10, 1.5e10, 12 * MS, host=5 * MS),
    Planted("decode on a CPU", "memory", 3e8, 3e8, 30 * MS, peaks=CPU, asynchronous=False),
    Planted("eager decode of 8B", "launch", 1.6e10, 1.5e10, 25 * MS, host=24 * MS),
    Planted("eager decode of a small model", "launch", 2.7e8, 2.7e8, 12 * MS, host=12 * MS),
    Planted("one row through a small encoder", "launch", 4e9, 2.2e8, 6 * MS, host=6.1 * MS),
    Planted("kernels of a third of the time, as a profiler saw it", "launch", 1.6e10, 1.5e10, 20 * MS, host=9 * MS, kernels=6 * MS),
    Planted("a hundredth of both roofs", "launch", 1e9, 1e8, 5 * MS),
    Planted("a collective that waits for another rank, the host ahead", None, 2e6, 8e4, 500 * MS, host=2 * MS),
    Planted("the same as a profiler saw it", None, 2e6, 8e4, 500 * MS, host=2 * MS, kernels=490 * MS),
    Planted("weights that are moved for each pass", "transfer", 1.6e10, 1.5e10, 600 * MS, host=600 * MS, copies=560 * MS),
    Planted("copies of a little more than half", "transfer", 1e12, 1.5e10, 10 * MS, host=2 * MS, copies=5.2 * MS),
    Planted("copies on a card without known peaks", "transfer", 1e12, 1.5e10, 10 * MS, copies=8 * MS, peaks=None),
    Planted("a value is read after each layer", "sync", 1.6e10, 1.5e10, 30 * MS, host=29 * MS, waits=18 * MS),
    Planted("one wait of most of the step", "sync", 1e12, 1.5e10, 40 * MS, host=39 * MS, waits=33 * MS),
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: one.name)
def test_planted_bound(planted: Planted) -> None:
    """The limit that was planted is found."""
    assert planted.rates().bound == planted.bound


@pytest.mark.parametrize(
    "planted",
    [
        Planted("a card that nobody knows", None, 1e12, 1e10, 10 * MS, host=9 * MS, peaks=None),
        Planted("a CPU that was not measured", None, 1e9, 1e8, 10 * MS, peaks=None, asynchronous=False),
        Planted("Python on a CPU", None, 1e6, 1e5, 10 * MS, peaks=CPU, asynchronous=False),
        Planted("no time at all", None, 1e6, 1e5, 0.0),
        Planted("bandwidth alone is known", None, 1e12, 1e10, 10 * MS, host=9 * MS, peaks=Peaks(None, 4e11)),
    ],
    ids=lambda one: one.name,
)
def test_nothing_is_said_without_evidence(planted: Planted) -> None:
    """Where ceilings are not known, or the work explains too little of the time of a CPU, nothing is named."""
    assert planted.rates().bound is None


def test_share_of_the_nearer_roof() -> None:
    """15 GB in 5 ms are 3 TB/s, of 4.8 TB/s."""
    rates = rates_of(Work(16_000_000_000, 15_000_000_000), Times(5 * MS, asynchronous=True), H200)
    assert rates.share == pytest.approx(0.625)
    assert rates.bandwidth == pytest.approx(0.625)
    assert rates.flops == pytest.approx(16e9 / 5e-3 / 989.4e12)


def test_share_is_at_most_one() -> None:
    """What stays in the caches of a card may come faster than its memory gives it."""
    rates = rates_of(Work(1, 10**9), Times(0.1 * MS, asynchronous=True), H200)
    assert rates.share == 1.0


DECODE = ModelCosts(parts=(ModulePart("head", Cost(flops=2 * 10**9, weights=4 * 10**9)),), kind="decoder", peaks=H200, asynchronous=True)
"""A model whose pass of one token reads 4 GB."""
TOKEN = PassRun(1, 1, 9)


def _rows(*planted: tuple[str, str, float]) -> list[Profiled]:
    """Rows of a profiler window: name, kind, seconds."""
    return [Profiled(n, -1, name, 0, round(seconds * 1e9), {semconv.PROFILER_KIND: kind}) for n, (name, kind, seconds) in enumerate(planted)]


@pytest.mark.parametrize(
    ("rows", "bound"),
    [
        (_rows(("Memcpy HtoD", "memcpy", 7 * MS), ("gemv", "kernel", 1 * MS)), "transfer"),
        (_rows(("aten::_local_scalar_dense", "op", 8 * MS), ("gemv", "kernel", 1 * MS)), "sync"),
        (_rows(("aten::linear", "op", 8 * MS), ("gemv", "kernel", 1 * MS)), "launch"),
    ],
    ids=["copies", "waits", "neither"],
)
def test_rows_of_a_profiler_window(rows: list[Profiled], bound: str) -> None:
    """Copies and waits that a window has seen in a step are what limits it, if they take most of its time."""
    step = StepRoofline(DECODE, TOKEN, PassFacts(), rows)
    found = step.of_step({semconv.DEVICE_TIME: 10 * MS, semconv.PROFILER_KERNEL_TIME: 1 * MS}, 9 * MS)
    assert found[semconv.DEVICE_BOUND] == bound


@pytest.mark.parametrize(
    ("moving", "launches", "bound"),
    [(0.0, [0.9 * MS] * 10, "memory"), (0.0, [2.4 * MS] * 10, "launch"), (20 * MS, [0.1 * MS] * 10, "transfer")],
    ids=["the host runs ahead", "the device waits", "weights are moved"],
)
def test_phase_of_ten_steps(moving: float, launches: list[float], bound: str) -> None:
    """A phase of 25 ms whose passes take 8 ms at the peak bandwidth is limited by what the host did meanwhile."""
    run = PassRun(1, 1, 9, 10)
    phase = PhaseRoofline(DECODE, "decode", PassFacts(), [run], 26 * MS, 25 * MS, launches)
    RequestRoofline(DECODE, [phase], 26 * MS, moving)
    assert phase.attributes()[semconv.DEVICE_BOUND] == bound


def test_runs_without_a_known_shape_have_no_figures() -> None:
    """A phase with a pass of unknown shape, or with lengths that grow irregularly, has none."""
    assert PhaseRoofline(DECODE, "decode", PassFacts(), None, 1.0).attributes() == {}
    assert PhaseRoofline(DECODE, "decode", PassFacts(), [PassRun(1, 1, 9, 3, None)], 1.0).attributes() == {}
