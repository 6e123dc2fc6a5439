"""Taking a step apart: each part is measured, and nothing of it stays."""

from __future__ import annotations

import torch

from benchmarks.models import LLAMA, llama
from benchmarks.steps import parts, take_apart
from inferspan.capture.observed_forward import ObservedForward


def test_each_part_is_measured_and_put_back() -> None:
    """Steps but the first of a request are shared out over the parts, the first part costs nothing more than itself, and all is as before."""
    model, whole, threads = llama(**LLAMA["tiny"]), ObservedForward.__call__, torch.get_num_threads()
    found = take_apart(model, requests=2, tokens=30)
    assert [one.part for one in found] == [*parts(cuda=False)] == ["calls forward through our callable", "records the call"]
    assert sum(one.steps for one in found) == 2 * 29 and all(one.steps and one.error > 0 for one in found)
    assert found[0].seconds == 0
    assert ObservedForward.__call__ is whole and "forward" not in vars(model.model.layers[0]) and torch.get_num_threads() == threads


def test_on_a_gpu_the_device_clock_is_taken_apart_as_well() -> None:
    """Each part adds one thing to the one before it."""
    names = [*parts(cuda=True)]
    assert names[:2] == [*parts(cuda=False)]
    assert names[2:] == [
        "and decides which boundaries get an event",
        "and calls a function of C for each of them",
        "and that is cuEventRecord",
    ]
