"""The verdict of a soak: what grows is named, what only varies is not."""

from __future__ import annotations

import pytest

from benchmarks.services.soak import Sample, verdict

STEPS = 50_000


def _samples(*, bytes_per_step: float = 0.0, **last: int) -> list[Sample]:
    """Twenty samples of a process that warms up in the first half."""
    found = []
    for number in range(1, 21):
        steps = number * STEPS
        warm = min(number, 8) * 2**20
        found.append(Sample(steps, round(400 * 2**20 + warm + bytes_per_step * steps), 30, 12, 100_000))
    found[-1] = found[-1]._replace(**last)
    return found


def test_nothing_grows() -> None:
    """The warm-up of the first half does not count."""
    assert verdict(_samples()) == []


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (_samples(bytes_per_step=20.0), "memory grows by 20.0 bytes a step"),
        (_samples(files=31), "open files: 30, then 31"),
        (_samples(threads=13), "threads: 12, then 13"),
        (_samples(objects=101_000), "Python objects: 100,000, then 101,000"),
    ],
    ids=["memory", "files", "threads", "objects"],
)
def test_what_grows_is_named(samples: list[Sample], words: str) -> None:
    """One sentence, with the figures."""
    (sentence,) = verdict(samples)
    assert words in sentence


def test_objects_that_vary_are_no_growth() -> None:
    """Caches of libraries come and go."""
    assert verdict(_samples(objects=100_300)) == []
