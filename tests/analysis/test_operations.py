"""Figures by operation: sums, percentiles, own time, memory and bounds."""

from __future__ import annotations

import random
import threading

import pytest

from inferspan.analysis.operations import OTHERS, Operations
from inferspan.analysis.quantiles import EXACT, Quantiles


def test_a_row_has_every_figure() -> None:
    """Count, sums, extremes and percentiles of three calls; own time is without what ran inside."""
    operations = Operations()
    for seconds, memory in ((1.0, 100), (3.0, -40), (2.0, None)):
        operations.add("step", "decode_step", seconds, memory_delta=memory)
    operations.add_inside("step", "decode_step", 4.5)
    (row,) = operations.rows()
    assert row.as_dict() == {
        "kind": "step", "name": "decode_step", "count": 3, "total_duration": 6.0, "avg_duration": 2.0, "min_duration": 1.0,
        "max_duration": 3.0, "p50": 2.0, "p95": pytest.approx(2.9), "self_duration": 1.5, "clock": "host", "total_memory_delta": 60,
        "avg_memory_delta": 30.0,
    }  # fmt: skip


def test_memory_that_nothing_measured_is_absent() -> None:
    """A figure that is not known is no key, and not 0."""
    operations = Operations()
    operations.add("request", "chat m", 1.0)
    assert operations.rows()[0].total_memory_delta is None
    assert "avg_memory_delta" not in operations.as_dict()["request"]["chat m"]


@pytest.mark.parametrize(
    ("device", "clock", "total", "own"), [((None, None), "host", 6.0, 5.0), ((0.5, 0.25), "device", 0.75, 0.65), ((0.5, None), "mixed", 4.5, 4.4)]
)
def test_the_clock_is_named(device: tuple[float | None, float | None], clock: str, total: float, own: float) -> None:
    """Device time counts where it was measured, and the time inside is taken off by the same clock."""
    operations = Operations()
    operations.add("module", "layers.0", 2.0, device_seconds=device[0])
    operations.add("module", "layers.0", 4.0, device_seconds=device[1])
    operations.add_inside("module", "layers.0", 1.0, device_seconds=0.1)
    (row,) = operations.rows()
    assert (row.clock, row.total_duration) == (clock, total)
    assert row.self_duration == pytest.approx(own)


def test_time_inside_at_the_same_time_leaves_nothing_negative() -> None:
    """Calls on several threads add up to more than the stage around them: its own time is then 0."""
    operations = Operations()
    operations.add_inside("stage", "all", 3.0)
    operations.add("stage", "all", 2.0)
    assert operations.rows()[0].self_duration == 0.0


def test_an_operation_that_has_not_ended_has_no_row() -> None:
    """What is known only as being around others is no operation yet."""
    operations = Operations()
    operations.add_inside("stage", "open", 3.0)
    assert operations.rows() == []
    assert operations.as_dict() == {}


def test_rows_are_ordered() -> None:
    """From the outside to the inside, and the longest first."""
    operations = Operations()
    for kind, name, seconds in (("module", "a", 1.0), ("module", "b", 2.0), ("stage", "s", 0.5)):
        operations.add(kind, name, seconds)
    assert [(row.kind, row.name) for row in operations.rows()] == [("stage", "s"), ("module", "b"), ("module", "a")]
    assert [row.name for row in operations.rows(["module"])] == ["b", "a"]


def test_operations_are_bounded() -> None:
    """Further names than the bound are counted together, and nothing is lost from the sums."""
    operations = Operations(most=3)
    for number in range(10):
        operations.add("module", f"layers.{number}", 1.0)
    rows = {row.name: row.count for row in operations.rows()}
    assert rows == {"layers.0": 1, "layers.1": 1, "layers.2": 1, OTHERS: 7}


def test_threads_share_an_accumulator() -> None:
    """No call is lost."""
    operations = Operations()

    def add() -> None:
        for _ in range(2_000):
            operations.add("module", "m", 0.5)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert operations.rows()[0].count == 8_000


def test_percentiles_of_few_values_are_exact() -> None:
    """Up to the bound they are those of the values."""
    quantiles = Quantiles()
    for value in range(EXACT):
        quantiles.add(float(value))
    assert quantiles.exact
    assert quantiles.at(0.5) == (EXACT - 1) / 2


@pytest.mark.parametrize("draw", ["lognormal", "uniform", "two"])
def test_percentiles_of_many_values_are_within_their_error(draw: str) -> None:
    """100,000 values are kept as few numbers; p50 and p95 are at most 1 % off."""
    chance = random.Random(7)
    make = {
        "lognormal": lambda: chance.lognormvariate(-7, 1.5),
        "uniform": lambda: chance.uniform(1e-6, 1.0),
        "two": lambda: chance.choice((0.001, 10.0)) * chance.uniform(0.9, 1.1),
    }[draw]
    values = [make() for _ in range(100_000)]
    quantiles = Quantiles()
    for value in values:
        quantiles.add(value)
    ordered = sorted(values)
    for share in (0.0, 0.25, 0.6, 0.95, 1.0):
        assert quantiles.at(share) == pytest.approx(ordered[round(share * (len(values) - 1))], rel=0.0101)
    assert len(quantiles._buckets or ()) < 1_500


def test_zero_and_huge_values_have_a_place() -> None:
    """Nothing overflows; zero stays zero."""
    quantiles = Quantiles()
    for _ in range(EXACT + 1):
        quantiles.add(0.0)
    quantiles.add(1e300)
    assert quantiles.at(0.5) == 0.0
    assert quantiles.at(1.0) == pytest.approx(1e12, rel=0.02)
    for _ in range(3 * EXACT):
        quantiles.add(-3.0)
    assert quantiles.at(0.5) == pytest.approx(-3.0, rel=0.0101)
