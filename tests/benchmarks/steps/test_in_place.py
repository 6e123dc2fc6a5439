"""The time of the wrappers in place: what is timed in which setting, what is left behind, and the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks import machine
from benchmarks.models import LLAMA, Workload, llama, prepare
from benchmarks.rows import PLAIN
from benchmarks.steps import in_place
from benchmarks.steps.in_place import CRITERIA, FIRST, METHODS, STEP, Timings, lines_of, time_in_place
from benchmarks.steps.pairs import SETTINGS

TOKENS, REQUESTS = 20, 2


@pytest.fixture(scope="module")
def work() -> Workload:
    """A small model with requests of a few steps."""
    return prepare("tiny", llama(**LLAMA["tiny"]).cpu().float(), tokens=TOKENS)


@pytest.fixture(scope="module")
def found(work: Workload) -> Iterator[list[Timings]]:
    """Times of two settings beside the plain model."""
    torch._dynamo.reset()
    with machine.one_thread():
        yield time_in_place(work, [SETTINGS["unsampled"], SETTINGS["default"]], requests=REQUESTS)


def test_the_plain_model_comes_first(found: list[Timings]) -> None:
    """Lines come in the order of the settings."""
    assert [one.row.name for one in found][1:] == [SETTINGS["unsampled"].name, SETTINGS["default"].name]


@pytest.mark.parametrize("name", METHODS)
def test_each_step_that_counts_has_a_time_of_each_wrapper(found: list[Timings], name: str) -> None:
    """No step that counts is left out."""
    # Before the first step that counts the stopwatch goes on; the last step has no pass after it.
    assert [len(one.values[name]) for one in found] == [REQUESTS * (TOKENS - FIRST)] * 3


def test_the_plain_model_reports_no_choice(found: list[Timings]) -> None:
    """Nothing of ours is there."""
    assert CRITERIA not in found[0].values


def test_the_class_is_left_as_it_was(work: Workload, found: list[Timings]) -> None:
    """Nothing of the stopwatch or of ours stays."""
    assert not set(METHODS) & set(vars(type(work.model)))


def test_a_setting_that_fails_says_why(work: Workload) -> None:
    """One setting that cannot be attached does not end the others."""
    def fails(_: Any) -> Any:
        raise RuntimeError("not today")

    lines = lines_of(work, time_in_place(work, [replace(SETTINGS["default"], attach=fails)], requests=1))
    assert "not today" in lines[1]["sum"]


def test_the_sum_is_without_the_measurement(work: Workload) -> None:
    """What measuring takes is known from the plain model."""
    plain = Timings(PLAIN, {METHODS[0]: [2000], METHODS[1]: [1000], STEP: [5000]})
    ours = Timings(SETTINGS["default"], {METHODS[0]: [7000], METHODS[1]: [8000], CRITERIA: [4000], STEP: [6000]})
    assert lines_of(work, [plain, ours])[1]["sum"] == "16.0 (16.0)"


def test_the_columns_are_those_of_the_lines(work: Workload, found: list[Timings]) -> None:
    """No column is empty by mistake."""
    assert {key for key, _ in in_place.COLUMNS} <= set(lines_of(work, found)[0])
