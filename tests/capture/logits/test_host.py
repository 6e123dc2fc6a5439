"""Logits in the memory of the host, reduced by the C extension: against torch operations and float64, and what is left to others."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from inferspan.capture.logits import host
from inferspan.capture.logits.reductions import COLUMNS, ENDED, compute
from inferspan.capture.logits.ring import LogitRing
from inferspan.capture.modules.recorder import IN_C
from tests.capture.logits.references import INF, NAN, Operations, agree, flat, measure, reference

pytestmark = pytest.mark.skipif(not IN_C, reason="needs the C extension")


def _reduced(logits: Tensor, chosen: Tensor | None) -> Tensor | None:
    out = torch.full((logits.shape[0], COLUMNS), -77.0)
    assert host.can_reduce(logits, chosen)
    return out if host.reduce(logits, chosen, out.data_ptr()) else None


@pytest.mark.parametrize("vocabulary", [2, 3, 15, 16, 17, 31, 511, 512, 513, 527, 1025, 50_257])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 4.0, 60.0, 1e30], ids=str)
def test_columns_equal_those_of_float64(vocabulary: int, scale: float) -> None:
    """Whatever the size: every number of a chunk and of what is left over counts once. A variance may be too large for float32."""
    logits = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * scale - scale
    logits[2] = logits[2].abs().neg()
    chosen = torch.tensor([0, vocabulary - 1, vocabulary // 2])
    found = _reduced(logits, chosen)
    assert found is not None
    wide = compute(logits.double(), chosen, top_k=0)
    torch.testing.assert_close(found, wide.float(), rtol=2e-5, atol=2e-6 * max(1.0, min(scale, 60.0)))


@pytest.mark.parametrize("row", [[3.0] * 40, [5.0, 5.0, 1.0], [-0.0, 0.0, -1e-44], [-3.0e38, 0.0, 1.0], [-87.5, -200.0, 0.0, -86.9], [1e-45, 0.0]], ids=str)
def test_awkward_rows_equal_torch(row: list[float]) -> None:
    """Ties, signs of zero, denormal numbers, and values so far below the largest that nothing of them is left."""
    logits = torch.tensor([row])
    found = _reduced(logits, torch.tensor([1]))
    assert found is not None
    torch.testing.assert_close(found, compute(logits, torch.tensor([1]), top_k=0), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("place", [0, 15, 16, 511, 600, 1029])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_value_that_is_not_finite_is_left_to_others(value: float, place: int) -> None:
    """Wherever it stands, in any row."""
    logits = torch.randn(2, 1030)
    logits[1, place] = value
    assert _reduced(logits, None) is None


def test_a_difference_that_float32_cannot_hold_is_left_to_others() -> None:
    """Between the lowest and the highest float."""
    largest = torch.finfo(torch.float32).max
    assert _reduced(torch.tensor([[largest, -largest]]), None) is None


@pytest.mark.parametrize("token", [-1, -100, 40, 2**40, 7 + ENDED])
def test_an_id_outside_of_the_vocabulary_is_kept_as_it_is(token: int) -> None:
    """As torch operations keep it."""
    logits, chosen = torch.randn(1, 40), torch.tensor([token])
    found = _reduced(logits, chosen)
    assert found is not None
    assert found[0, 10:].tolist() == compute(logits, chosen, top_k=0)[0, 10:].tolist()


def test_rows_and_ids_with_strides() -> None:
    """The last position of ``[B, T, V]`` logits, and the last column of ids."""
    logits, ids = torch.randn(4, 3, 90), torch.randint(0, 90, (4, 6))
    found = _reduced(logits[:, -1], ids[:, -1])
    assert found is not None
    torch.testing.assert_close(found, compute(logits[:, -1], ids[:, -1], top_k=0), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("logits", "chosen"),
    [
        (torch.randn(1, 8).double(), None),
        (torch.randn(1, 8).half(), None),
        (torch.randn(1, 8, device="meta"), None),
        (torch.randn(8, 2).T, None),
        (torch.randn(1, 1), None),
        (torch.randn(1, 8), torch.zeros(1, dtype=torch.int32)),
        (torch.randn(1, 8), torch.zeros(1, dtype=torch.long, device="meta")),
    ],
)
def test_other_tensors_are_left_to_others(logits: Tensor, chosen: Any) -> None:
    """Other dtypes, devices and layouts."""
    assert not host.can_reduce(logits, chosen)


def test_a_tensor_without_memory_is_left_to_others() -> None:
    """Its address is none, or counts from 0."""
    base = torch.randn(4, 8)
    view = base[2:]
    base.untyped_storage().resize_(0)
    out = torch.empty(4, COLUMNS)
    assert not host.reduce(base, None, out.data_ptr())
    assert not host.reduce(view, None, out.data_ptr())


def test_a_tensor_that_is_negated_when_it_is_read_is_left_to_others() -> None:
    """The imaginary part of a conjugate shares memory with what it is the negative of."""
    lazy = torch.view_as_complex(torch.randn(2, 8, 2)).conj().imag
    assert lazy.is_neg() and not host.reduce(lazy, None, torch.empty(2, COLUMNS).data_ptr())


def test_a_ring_goes_on_with_held_steps_once_a_value_is_not_finite() -> None:
    """Steps before, the one with a mask, and those behind it come in their order, with the numbers of float64."""
    chance = random.Random(3)
    logits = torch.randn(40, 2, 64)
    for step in (11, 17, 30):
        logits[step, 1, chance.randrange(64)] = chance.choice([-INF, NAN, INF])
    ring, chosen = LogitRing(top_k=0, capacity=100), torch.tensor([1, 2])
    assert [ring.append(step, chosen) for step in logits] == [*range(40)]
    found = ring.read()
    assert len(found) == 40
    for got, rows in zip(found, logits, strict=True):
        for row in range(2):
            agree(got.rows[row], reference(rows[row], row + 1))


def test_a_step_runs_no_operation_of_torch_and_keeps_no_logits() -> None:
    """The model may use the memory of its logits again at once."""
    ring, chosen = LogitRing(top_k=0, capacity=100), torch.tensor([3])
    steps = list(torch.randn(30, 1, 500))
    with Operations() as operations:
        for logits in steps:
            kept = logits.clone()
            ring.append(kept, chosen)
            kept.fill_(NAN)
    counted = {name: count for name, count in operations.counts.items() if name not in ("clone", "fill_")}
    assert sum(counted.values()) <= 1, counted
    for got, logits in zip(ring.read(), steps, strict=True):
        assert [*flat(got)] == pytest.approx([*flat(measure(logits, chosen))], rel=1e-5, abs=1e-5)


def test_ids_on_another_device_after_those_of_the_host_are_not_read() -> None:
    """Their address is none of this process's memory; the step counts, without its token."""
    ring, logits = LogitRing(top_k=0, capacity=9), torch.randn(1, 20)
    ring.append(logits, torch.tensor([3]))
    ring.append(logits, torch.zeros(1, dtype=torch.long, device="meta"))
    found = ring.read()
    assert [step.rows[0].rank is None for step in found] == [False, True]
