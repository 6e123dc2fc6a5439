"""Statistics of the benchmarks, against numpy and against cases whose answer is known."""

from __future__ import annotations

import math
import random

import numpy
import pytest

from benchmarks.ratios import Ratio, exponent, judge, quantile, ratio_of


def _ratio(median: float, low: float, high: float, pairs: int = 9) -> Ratio:
    return Ratio(median=median, low=low, high=high, sure_low=low, sure_high=high, fastest=median, pairs=pairs)


@pytest.mark.parametrize("size", [1, 2, 5, 40])
@pytest.mark.parametrize("share", [0.0, 0.025, 0.25, 0.5, 0.75, 1.0])
def test_quantile(size: int, share: float) -> None:
    """Quantiles are numpy's, of any number of values in any order."""
    generator = random.Random(size)
    values = [generator.uniform(0.5, 2) for _ in range(size)]
    assert quantile(values, share) == pytest.approx(float(numpy.quantile(values, share)), rel=1e-12)
    assert math.isnan(quantile([], share))


def test_pairs() -> None:
    """A ratio is of a run and its own partner: what slows both down does not show, and what the fastest were stands beside it."""
    plain = [1.0, 4.0, 2.0, 8.0, 1.0]
    found = ratio_of([1.1, 4.4, 2.2, 8.8, 1.1], plain)
    assert [*vars(found).values()] == pytest.approx([1.1] * 6 + [5])
    assert ratio_of([3.0, 2.0], [1.0, 4.0]).fastest == 2.0


def test_interval() -> None:
    """The interval of the median is about that of numpy's resampling, narrows with the number of pairs, and is the same every time."""
    generator = numpy.random.default_rng(3)
    few, many = (list(1.05 + 0.1 * generator.standard_normal(size)) for size in (12, 300))
    found = ratio_of(few, [1.0] * 12)
    medians = numpy.median(generator.choice(few, (20_000, 12)), axis=1)
    assert found.sure_low == pytest.approx(float(numpy.quantile(medians, 0.025)), abs=0.02)
    assert found.sure_high == pytest.approx(float(numpy.quantile(medians, 0.975)), abs=0.02)
    assert found == ratio_of(few, [1.0] * 12)
    narrow = ratio_of(many, [1.0] * 300)
    assert narrow.sure_high - narrow.sure_low < (found.sure_high - found.sure_low) / 2
    assert narrow.sure_low < 1.05 < narrow.sure_high


@pytest.mark.parametrize(("ours", "plain"), [([], []), ([1.0], [1.0, 2.0])])
def test_no_pairs(ours: list[float], plain: list[float]) -> None:
    """No pair, and a time without its partner, are errors."""
    with pytest.raises(ValueError, match=r"no pair|zip"):
        ratio_of(ours, plain)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (_ratio(1.01, 1.00, 1.02), "met"),
        (_ratio(1.01, 1.00, 1.03), "met, not resolved"),
        (_ratio(1.03, 1.00, 1.04), "missed, not resolved"),
        (_ratio(1.03, 1.025, 1.04), "missed"),
        (_ratio(1.00, 1.00, 1.00, pairs=4), "too few pairs"),
    ],
)
def test_verdict(ratio: Ratio, verdict: str) -> None:
    """A target of 1.02 is met or missed only if the whole interval says so, and nothing is said of fewer than five pairs."""
    assert judge(ratio, 1.02) == verdict


def test_exponent() -> None:
    """The exponent is the slope that numpy fits to the logarithms; costs that are not above zero are left out."""
    sizes = [4.0, 16.0, 64.0, 128.0]
    costs = [3.0, 9.0, 50.0, 90.0]
    assert exponent(sizes, costs) == pytest.approx(float(numpy.polyfit(numpy.log(sizes), numpy.log(costs), 1)[0]))
    assert exponent([1, 10, 100, 1000], [2, 20, -1, 2000]) == pytest.approx(1)
    assert math.isnan(exponent([1, 10], [1, 0]))


def test_groups() -> None:
    """Pairs of one group are drawn together and count as one: the interval of three groups is as wide as they are apart."""
    groups = [number // 20 for number in range(60)]
    ours = [1.0 + group / 10 for group in groups]
    alone, together = ratio_of(ours, [1.0] * 60), ratio_of(ours, [1.0] * 60, groups=groups)
    assert [(one.median, one.sure_low, one.sure_high, one.pairs) for one in (alone, together)] == [(1.1, 1.1, 1.1, 60), (1.1, 1.0, 1.2, 3)]
