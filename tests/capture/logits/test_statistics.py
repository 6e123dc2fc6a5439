"""Logit statistics against float64 references written independently, and what computing them must leave alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from inferspan import semconv
from inferspan.capture.logits import reductions as logit_reductions
from inferspan.capture.logits.reductions import ENDED, compute, finish, finish_few
from inferspan.capture.logits.ring import LogitRing
from inferspan.capture.logits.statistics import attributes
from tests.capture.logits.references import (
    DTYPES,
    INF,
    KINDS,
    NAN,
    agree,
    measure,
    numbers,
    reference,
    special,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (3, 7), (2, 1000), (16, 64), (1, 50_257)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_statistics_equal_the_float64_reference(dtype: torch.dtype, shape: tuple[int, int], kind: str) -> None:
    """Every row of every dtype, size and mask gives the numbers that numpy finds in float64, and None where none is defined."""
    generator = torch.Generator().manual_seed(shape[1])
    logits = special(kind, torch.randn(shape, generator=generator) * 4 - 2).to(dtype)
    chosen = torch.randint(0, shape[1], shape[:1], generator=generator)
    step = measure(logits, chosen)
    assert (step.batch, step.rows_kept, len(step.rows)) == (shape[0], shape[0], shape[0])
    for row in range(shape[0]):
        agree(step.rows[row], reference(logits[row], int(chosen[row])))


@pytest.mark.parametrize("top_k", [0, 3])
@pytest.mark.parametrize("shape", [(1, 300), (32, 40)], ids=str)
def test_a_few_rows_are_finished_one_by_one(shape: tuple[int, int], top_k: int) -> None:
    """They give what operations of torch give, also for ids that are no tokens."""
    generator = torch.Generator().manual_seed(shape[1])
    chosen = torch.randint(-2, shape[1] + 2, shape[:1], generator=generator)
    rows = compute(torch.randn(shape, generator=generator) * 4, chosen, top_k=top_k).double()
    found = finish_few(rows.flatten().tolist(), vocabulary=shape[1], top_k=top_k)
    assert found == pytest.approx(finish(rows, vocabulary=shape[1], top_k=top_k).flatten().tolist(), rel=1e-15, nan_ok=True)


@pytest.mark.parametrize(("value", "chosen"), [(-INF, 1), (NAN, 1), (INF, 1), (0.5, ENDED + 1)])
def test_rows_that_are_not_finished_one_by_one(value: float, chosen: int) -> None:
    """A mask, a value that is not finite and a row that had ended are left to torch."""
    logits = torch.tensor([[0.1, 0.2, 0.3], [0.4, value, 0.6]])
    rows = compute(logits, torch.tensor([0, chosen]), top_k=0).double()
    assert finish_few(rows.flatten().tolist(), vocabulary=3, top_k=0) is None


@pytest.mark.parametrize("batch", [17, 40])
def test_a_large_batch_keeps_its_mean_and_first_row(batch: int) -> None:
    """Beyond 16 rows only the first row and the mean of what is defined come back, with the counts of the whole batch."""
    logits = torch.randn(batch, 100, generator=torch.Generator().manual_seed(1))
    logits[1], logits[2, 5], logits[3, 6] = -INF, NAN, INF
    chosen = torch.arange(batch)
    ring = LogitRing(top_k=2, capacity=10)
    for shift in range(3):
        ring.append(logits + shift, chosen)
    for shift, step in enumerate(ring.read()):
        want = [reference(logits[row] + shift, row) for row in range(batch)]
        assert (step.batch, step.rows_kept, len(step.rows)) == (batch, 1, 1)
        agree(step.rows[0], want[0])
        for name in ("entropy", "max", "min", "mean", "std", "margin", "top1", "logprob"):
            defined = [value for value in (getattr(row, name) for row in want) if value is not None]
            assert getattr(step.mean, name) == pytest.approx(np.mean(defined), rel=1e-4, abs=1e-5), name
        assert (step.mean.nan_count, step.mean.inf_count) == (1.0, 1.0)
        assert [ids for ids, _ in step.top] == [logits[0].topk(2).indices.tolist()]


def test_the_mean_of_a_small_batch_is_over_what_is_defined() -> None:
    """A masked row counts for nothing in the mean of a batch, and counts are summed over its rows."""
    logits = torch.tensor([[1.0, 2.0, 3.0], [-INF, -INF, -INF], [3.0, NAN, 1.0]])
    step = measure(logits, None)
    assert (step.mean.max, step.mean.min, step.mean.mean, step.mean.margin) == pytest.approx((3.0, 1.0, 2.0, 1.5))
    assert (step.mean.nan_count, step.mean.inf_count, step.mean.logprob, step.mean.rank) == (1.0, 0.0, None, None)


@pytest.mark.parametrize("top_k", [1, 2, 5, 100])
def test_top_k_are_the_most_likely_tokens_of_each_row(top_k: int) -> None:
    """The k most likely ids of every row come with their probabilities, best first; masked tokens come last, with 0."""
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(2))
    logits[0, 10:40] = -INF
    step = measure(logits, None, top_k)
    for row, (ids, probabilities) in enumerate(step.top):
        likely = 20 if row == 0 else 50
        want = logits[row].double().softmax(-1).topk(min(top_k, likely))
        assert ids[:likely] == want.indices.tolist()
        assert probabilities[:likely] == pytest.approx(want.values.tolist(), rel=1e-5)
        assert not any(probabilities[likely:])


@pytest.mark.parametrize("token", [-1, -100, 10, 2**40])
def test_an_id_outside_of_the_vocabulary_has_no_logprob(token: int) -> None:
    """A padding id that the model has no logit for leaves log-probability and rank undefined, and harms nothing else."""
    step = measure(torch.arange(10.0)[None], torch.tensor([token]))
    assert (step.rows[0].logprob, step.rows[0].rank, step.rows[0].max, step.rows[0].chosen) == (None, None, 9.0, token)


def test_a_very_unlikely_token_keeps_its_logprob() -> None:
    """A probability too small for a float32 still has its log-probability, and its rank."""
    step = measure(torch.tensor([[0.0, 200.0, 100.0]]), torch.tensor([0]))
    assert (step.rows[0].logprob, step.rows[0].rank) == (-200.0, 3.0)


def test_a_mask_of_the_lowest_float_does_not_disturb_the_distribution() -> None:
    """Entropy and margin are right when tokens are masked with the lowest float instead of -inf; what overflows is undefined."""
    logits = torch.full((1, 8), torch.finfo(torch.float32).min)
    logits[0, :2] = 1.0
    row = measure(logits, torch.tensor([1])).rows[0]
    assert row.entropy == pytest.approx(math.log(2))
    assert (row.margin, row.std) == (0.0, None)


def test_differences_that_float32_cannot_hold_leave_the_rest_alone() -> None:
    """Between the lowest and the highest float entropy and minimum are known, though their difference is none."""
    largest = torch.finfo(torch.float32).max
    row = measure(torch.tensor([[largest, -largest, 0.0]]), None).rows[0]
    assert (row.entropy, row.max, row.top1) == (0.0, largest, 1.0)


def test_a_wide_vocabulary_in_bfloat16_is_summed_in_float32() -> None:
    """The mean of 70,000 equal bfloat16 logits is their value, and their entropy the logarithm of the size."""
    step = measure(torch.full((1, 70_000), 3.0, dtype=torch.bfloat16), None)
    assert step.rows[0].mean == pytest.approx(3.0, abs=1e-6)
    assert step.rows[0].entropy == pytest.approx(math.log(70_000), rel=1e-6)


def test_a_batch_worked_on_in_chunks_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splitting a large batch to bound temporary memory changes no number."""
    logits = torch.randn(7, 30, generator=torch.Generator().manual_seed(3))
    chosen = torch.arange(7)
    whole, without = compute(logits, chosen, top_k=3), compute(logits, None, top_k=3)
    monkeypatch.setattr(logit_reductions, "CHUNK", 60)
    torch.testing.assert_close(compute(logits, chosen, top_k=3), whole, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(compute(logits, None, top_k=3), without, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_logits_and_random_state_are_left_alone(dtype: torch.dtype) -> None:
    """The input keeps every bit, its graph and its version; no random number is drawn; the result has no graph."""
    logits = special("mixed", torch.randn(3, 64)).to(dtype).requires_grad_()
    before, version, state = logits.detach().clone(), logits._version, torch.get_rng_state()
    result = compute(logits, torch.tensor([1, 2, 3]), top_k=4)
    assert logits.detach().view(torch.uint8).equal(before.view(torch.uint8))
    assert (logits._version, logits.grad_fn, result.requires_grad) == (version, None, False)
    assert torch.get_rng_state().equal(state)


@pytest.mark.parametrize("context", [torch.inference_mode, torch.enable_grad, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_modes_of_the_caller_do_not_matter(context: Any) -> None:
    """Inference tensors, recording of gradients and autocast give the same numbers, also when read outside of the mode."""
    logits = torch.randn(2, 64, generator=torch.Generator().manual_seed(4))
    plain = measure(logits, torch.tensor([1, 2]), 2)
    ring = LogitRing(top_k=2, capacity=1)
    with context():
        ring.append(logits.clone(), torch.tensor([1, 2]))
    assert [numbers(step) for step in ring.read()] == [numbers(plain)]


def test_views_that_are_not_contiguous_are_read_as_they_are() -> None:
    """The last position of [B, T, V] logits gives what a copy of it gives."""
    logits = torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(5))
    chosen = torch.tensor([1, 2, 3])
    assert numbers(measure(logits[:, -1, :], chosen)) == numbers(measure(logits[:, -1, :].clone(), chosen))


def test_attributes_of_a_single_row() -> None:
    """One row gives the double attributes, whole numbers for counts and rank, no row arrays and no content."""
    step = measure(torch.tensor([[0.0, 1.0, NAN, -INF]]), torch.tensor([0]), 2)
    got = attributes(step, content=False, decode=str)
    z = 1 + math.e
    assert got == {
        semconv.LOGITS_ENTROPY: pytest.approx(math.log(z) - math.e / z, rel=1e-5),
        semconv.LOGITS_MAX: 1.0,
        semconv.LOGITS_MIN: 0.0,
        semconv.LOGITS_MEAN: 0.5,
        semconv.LOGITS_STD: pytest.approx(0.5),
        semconv.LOGITS_MARGIN: 1.0,
        semconv.LOGITS_TOP1: pytest.approx(math.e / z),
        semconv.LOGITS_CHOSEN_LOGPROB: pytest.approx(-math.log(z)),
        semconv.LOGITS_CHOSEN_RANK: 2,
        semconv.LOGITS_NAN_COUNT: 1,
        semconv.LOGITS_INF_COUNT: 0,
    }
    assert {type(value) for key, value in got.items() if "count" in key or "rank" in key} == {int}


def test_attributes_with_content_name_the_tokens() -> None:
    """With content capture the chosen token and the top-k of each row are there, as texts too if there is a tokenizer."""
    logits = torch.tensor([[0.0, 4.0, 2.0], [9.0, 0.0, 1.0]])
    step = measure(logits, torch.tensor([2, 0]), 2)
    bare = attributes(step, content=True)
    assert (bare[semconv.STEP_TOKEN_IDS], bare[semconv.LOGITS_TOP_K_IDS]) == ([2, 0], [1, 2, 0, 2])
    shares = logits.softmax(-1)
    assert bare[semconv.LOGITS_TOP_K_PROBABILITIES] == pytest.approx([*shares[0, [1, 2]].tolist(), *shares[1, [0, 2]].tolist()])
    texts = attributes(step, content=True, decode="abc".__getitem__)
    assert texts == {**bare, semconv.STEP_TOKEN_TEXTS: ["c", "a"], semconv.LOGITS_TOP_K_TEXTS: ["b", "c", "a", "c"]}


def test_a_row_that_has_ended_has_no_tokens() -> None:
    """The arrays hold the rows that run, in order, as those of the statistics do."""
    step = measure(torch.tensor([[0.0, 4.0, 2.0], [9.0, 0.0, 1.0], [1.0, 0.0, 3.0]]), torch.tensor([2, ENDED, 0]), 2)
    found = attributes(step, content=True)
    assert found[semconv.STEP_TOKEN_IDS] == [2, 0]
    assert found[semconv.LOGITS_TOP_K_IDS] == [1, 2, 2, 0]


def test_tokens_of_a_large_batch_are_those_of_its_first_row() -> None:
    """Of more rows than are kept the first row's tokens stand there, and how many rows they leave out."""
    step = measure(torch.eye(20).roll(1, 1), torch.arange(20), 1)
    found = attributes(step, content=True)
    assert found[semconv.STEP_TOKEN_IDS] == [0]
    assert found[semconv.LOGITS_TOP_K_IDS] == [1]
    assert found[semconv.STEP_ROWS_OMITTED] == 19


def test_a_small_batch_leaves_no_row_out() -> None:
    """Where every row is kept there is no count of others."""
    assert semconv.STEP_ROWS_OMITTED not in attributes(measure(torch.eye(16), torch.arange(16), 1), content=True)


def test_without_chosen_tokens_the_likeliest_ones_of_each_row_are_there() -> None:
    """Beams are rows that are no sequences: nothing is known to be chosen."""
    found = attributes(measure(torch.eye(3), None, 1), content=True)
    assert found[semconv.LOGITS_TOP_K_IDS] == [0, 1, 2]
    assert semconv.STEP_TOKEN_IDS not in found


def test_attributes_of_a_batch_have_rows_where_all_are_defined() -> None:
    """Row arrays stand beside the mean for 2 to 16 rows, except where a row has no value."""
    step = measure(torch.tensor([[1.0, 3.0, 5.0], [2.0, -INF, -INF]]), torch.tensor([0, 0]))
    got = attributes(step, content=False)
    assert got[semconv.LOGITS_ROWS[semconv.LOGITS_MAX]] == [5.0, 2.0]
    assert semconv.LOGITS_ROWS[semconv.LOGITS_MARGIN] not in got
    assert got[semconv.LOGITS_MARGIN] == 2.0
    large = attributes(measure(torch.ones(17, 3), None), content=False)
    assert not set(semconv.LOGITS_ROWS.values()) & set(large)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 3, 20])
def test_attributes_are_always_finite(batch: int, kind: str) -> None:
    """No special value in the logits makes a non-finite attribute."""
    logits = special(kind, torch.randn(batch, 12, generator=torch.Generator().manual_seed(7)))
    got = attributes(measure(logits, torch.zeros(batch, dtype=torch.long), 3), content=True)
    numbers = np.hstack([np.asarray(value, dtype=float) for value in got.values()])
    assert len(numbers)
    assert np.isfinite(numbers).all(), got


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_cuda_agrees_with_the_reference_without_waiting(dtype: torch.dtype, kind: str) -> None:
    """On a GPU, also on a side stream, the numbers are the same, and appending never synchronises."""
    generator = torch.Generator().manual_seed(8)
    logits = special(kind, torch.randn(3, 5000, generator=generator) * 4).to(dtype)
    chosen = torch.randint(0, 5000, (3,), generator=generator)
    on_device, ids, ring = logits.cuda(), chosen.cuda(), LogitRing(top_k=2, capacity=600)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(300):
            ring.append(on_device, ids)
        with torch.cuda.stream(side):
            ring.append(on_device, ids)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    steps = ring.read()
    assert len(steps) == 301
    for step in (steps[0], steps[299], steps[300]):
        for row in range(3):
            agree(step.rows[row], reference(logits[row], int(chosen[row])))
