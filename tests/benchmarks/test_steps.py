"""Taking a step apart: each part is measured, and nothing of it stays."""

from __future__ import annotations

import torch

from benchmarks.models import LLAMA, llama
from benchmarks.steps import parts, take_apart
from inferspan.capture.compilation import SLOT


def test_each_part_is_measured_and_put_back() -> None:
    """Steps but the first of a request are shared out over the parts, the first part costs nothing more than itself, and all is as before."""
    model, threads = llama(**LLAMA["tiny"]), torch.get_num_threads()
    seen: list[int] = []
    layer = model.model.layers[0]
    found = take_apart(model, requests=2, tokens=30, say=lambda _: seen.append(SLOT in vars(layer)))
    names = ["nothing on the modules", "calls go through our callable", "and are recorded"]
    assert [one.part for one in found] == [*parts(cuda=False)] == names
    assert sum(one.steps for one in found) == 2 * 29 and all(one.steps and one.error > 0 for one in found)
    assert (found[0].seconds, found[0].ratio) == (0, 1)
    assert seen == [False, False] and SLOT not in vars(layer) and torch.get_num_threads() == threads


def test_on_a_gpu_the_device_clock_is_taken_apart_as_well() -> None:
    """Each part adds one thing to the one before it."""
    assert [*parts(cuda=True)] == [*parts(cuda=False), "and get events on the device"]
