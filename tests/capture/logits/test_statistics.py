"""Logit statistics against float64 references written independently, and what computing them must leave alone."""

from __future__ import annotations

import collections
import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from inferspan import semconv
from inferspan.capture.logits import reductions as logit_reductions
from inferspan.capture.logits import ring as logit_ring
from inferspan.capture.logits.reductions import compute
from inferspan.capture.logits.ring import LogitRing
from inferspan.capture.logits.statistics import LogitStatistics, StepLogits, attributes, whole_logits
from inferspan.guard import Swallowed

INF, NAN = math.inf, math.nan
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
HOST_READS = {"_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select", "item", "unique", "_unique2"}


def reference(row: Tensor, chosen: int | None) -> LogitStatistics:
    """The statistics of one row, with numpy in float64, by their definitions."""
    values = row.detach().double().numpy()
    finite = np.sort(values[np.isfinite(values)])[::-1]
    nan, inf = float(np.isnan(values).sum()), float(np.isposinf(values).sum())
    logprob = rank = None
    valid = chosen is not None and 0 <= chosen < len(values)
    log_z = math.log(math.fsum(np.exp(finite - finite[0]))) + finite[0] if len(finite) else NAN
    if valid and not np.isnan(values[chosen]):
        rank = 1.0 + float((values > values[chosen]).sum())
        if np.isfinite(values[chosen]):
            logprob = float(values[chosen] - log_z)
    if not len(finite):
        return LogitStatistics(None, None, None, None, None, None, None, logprob, rank, nan, inf, chosen)
    logs = finite - log_z
    return LogitStatistics(
        entropy=-math.fsum(math.exp(v) * v for v in logs),
        max=float(finite[0]),
        min=float(finite[-1]),
        mean=float(finite.mean()),
        std=float(finite.std()),
        margin=float(finite[0] - finite[1]) if len(finite) > 1 else None,
        top1=math.exp(logs[0]),
        logprob=logprob,
        rank=rank,
        nan_count=nan,
        inf_count=inf,
        chosen=chosen,
    )


def agree(got: LogitStatistics, want: LogitStatistics) -> None:
    """Same fields defined, and the same numbers within what float32 sums of such logits allow."""
    scale = max(abs(want.max or 0.0), abs(want.min or 0.0), 1.0)
    for name, have, expected in zip(LogitStatistics._fields, got, want, strict=True):
        assert (have is None) == (expected is None), f"{name}: {have} instead of {expected}"
        if have is not None and expected is not None:
            exact = name in ("rank", "nan_count", "inf_count", "chosen")
            tolerance = 0.0 if exact else 2e-6 * scale + 2e-5 * abs(expected)
            assert abs(have - expected) <= tolerance, f"{name}: {have} instead of {expected}"


def measure(logits: Tensor, chosen: Tensor | None, top_k: int = 0) -> StepLogits:
    """The statistics of one step."""
    ring = LogitRing(top_k=top_k, capacity=1)
    assert ring.append(logits, chosen) == 0
    (step,) = ring.read()
    return step


def numbers(step: StepLogits) -> tuple[Any, ...]:
    """All that a step says."""
    return step.batch, step.mean, step.rows, step.top, step.counts, step.confidence


def flat(step: StepLogits) -> Iterator[float]:
    """The same as one series."""
    for row in (step.mean, *step.rows):
        yield from (math.nan if value is None else value for value in row)
    for pair in step.top:
        yield from pair


def special(kind: str, logits: Tensor) -> Tensor:
    """Random logits made awkward in one way."""
    if kind == "half":
        logits[:, ::2] = -INF
    elif kind == "few":
        logits[:, 3:] = -INF
    elif kind == "one":
        logits[:, 1:] = -INF
    elif kind == "none":
        logits[:] = -INF
    elif kind == "nan":
        logits[:, -1] = NAN
    elif kind == "all nan":
        logits[:] = NAN
    elif kind == "+inf":
        logits[:, 0] = INF
    elif kind == "mixed":
        logits[:, 0], logits[:, -1], logits[0] = INF, NAN, -INF
    elif kind == "huge":
        logits = logits.sign() * 6e4
    elif kind == "equal":
        logits[:] = 3.0
    elif kind == "peaked":
        logits[:, 2 % logits.shape[1]] = 60.0
    return logits


KINDS = ["plain", "half", "few", "one", "none", "nan", "all nan", "+inf", "mixed", "huge", "equal", "peaked"]


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
        assert tuple(token for token, _ in step.top) == tuple(logits[0].topk(2).indices.tolist())


def test_the_mean_of_a_small_batch_is_over_what_is_defined() -> None:
    """A masked row counts for nothing in the mean of a batch, and counts are summed over its rows."""
    logits = torch.tensor([[1.0, 2.0, 3.0], [-INF, -INF, -INF], [3.0, NAN, 1.0]])
    step = measure(logits, None)
    assert (step.mean.max, step.mean.min, step.mean.mean, step.mean.margin) == pytest.approx((3.0, 1.0, 2.0, 1.5))
    assert (step.mean.nan_count, step.mean.inf_count, step.mean.logprob, step.mean.rank) == (1.0, 0.0, None, None)


@pytest.mark.parametrize("top_k", [1, 2, 5, 100])
def test_top_k_are_the_most_likely_tokens_of_the_first_row(top_k: int) -> None:
    """The k most likely ids come with their probabilities, best first; masked tokens are not among them."""
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(2))
    logits[0, 10:40] = -INF
    step = measure(logits, None, top_k)
    want = logits[0].double().softmax(-1).topk(min(top_k, 20))
    assert tuple(token for token, _ in step.top) == tuple(want.indices.tolist())
    assert tuple(probability for _, probability in step.top) == pytest.approx(want.values.tolist(), rel=1e-5)


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


class Operations(TorchDispatchMode):
    """Counts what reaches the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("dtype", "batch", "top_k", "limit"), [(torch.float32, 1, 0, 29), (torch.bfloat16, 16, 5, 33), (torch.bfloat16, 64, 0, 31)]
)
def test_a_step_costs_few_operations_and_no_host_read(dtype: torch.dtype, batch: int, top_k: int, limit: int) -> None:
    """On a device, statistics of a step take about 29 operations, 4 more with top-k, whatever the batch, and never read a value on the host.

    The meta device stands for it: it has no values that could be read.
    """
    logits, chosen = torch.empty(batch, 300, dtype=dtype, device="meta"), torch.zeros(batch, dtype=torch.long, device="meta")
    ring, steps = LogitRing(top_k=top_k, capacity=50), 50
    with Operations() as operations:
        for _ in range(steps):
            ring.append(logits, chosen)
    assert operations.counts.total() <= (limit + 0.5) * steps, operations.counts
    assert not HOST_READS & set(operations.counts), operations.counts


@pytest.mark.parametrize(("batch", "vocabulary", "most"), [(1, 300, 11), (16, 3000, 11), (1, 200_000, 24), (16, 200_000, 31)])
def test_steps_on_a_cpu_are_done_in_one_go(batch: int, vocabulary: int, most: int) -> None:
    """On a CPU the logits of up to 16 steps are copied and taken together, while they are small: a few operations a step; results are the same."""
    steps = [torch.randn(batch, vocabulary) for _ in range(37)]
    chosen = torch.arange(batch)
    ring = LogitRing(top_k=2, capacity=50)
    with Operations() as operations:
        for logits in steps:
            kept = logits.clone()
            ring.append(kept, chosen)
            # The model may use the memory of its logits again.
            kept.fill_(float("nan"))
    found = ring.read()
    want = [measure(logits, chosen, top_k=2) for logits in steps]
    assert (operations.counts.total() - 2 * len(steps)) / len(steps) <= most, operations.counts
    assert len(found) == len(want)
    for got, step in zip(found, want, strict=True):
        assert [*flat(got)] == pytest.approx([*flat(step)], rel=1e-5, abs=1e-5, nan_ok=True)


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


def test_the_ring_returns_every_step_in_order_and_forgets_it() -> None:
    """Hundreds of steps of changing batch size, width and dtype come back in the order of their slots, once."""
    ring, shapes = LogitRing(top_k=1, capacity=1000), [(1, 8), (2, 8), (20, 8), (1, 9)]
    for step in range(700):
        logits = torch.zeros(shapes[step % 4], dtype=DTYPES[step % 3])
        logits[:, step % 8] = 1.0 + step % 5
        assert ring.append(logits, torch.full((logits.shape[0],), step % 8)) == step
    steps = ring.read()
    want = [(shapes[step % 4][0], 1.0 + step % 5, (step % 8,), 1.0) for step in range(700)]
    assert [(step.batch, step.mean.max, tuple(token for token, _ in step.top), step.rows[0].rank) for step in steps] == want
    assert ring.read() == []


def test_a_full_ring_takes_nothing_until_it_is_read() -> None:
    """Beyond its capacity a ring says None and keeps what it has; after ``read`` it takes steps again, and counts on."""
    ring, logits = LogitRing(top_k=0, capacity=2), torch.ones(1, 4)
    assert [ring.append(logits, None) for _ in range(4)] == [0, 1, None, None]
    assert (ring.full, len(ring.read()), ring.full, ring.append(logits, None)) == (True, 2, False, 2)


def test_rows_of_a_long_request_are_thinned_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a request's rows fill their share of memory, further steps of a batch keep their mean and first row."""
    monkeypatch.setattr(logit_ring, "DETAIL_BYTES", 1000)
    ring, logits = LogitRing(top_k=0, capacity=100), torch.randn(4, 8, generator=torch.Generator().manual_seed(6))
    for _ in range(10):
        ring.append(logits, torch.tensor([1, 2, 3, 4]))
    steps = ring.read()
    assert [len(step.rows) for step in steps] == [4] * 5 + [1] * 5
    agree(steps[9].mean, steps[0].mean._replace(chosen=steps[9].mean.chosen))


def test_tensors_without_values_of_their_own_are_not_measured() -> None:
    """Meta, integer, sparse and wrapped tensors and subclasses get no slot, and leave the ring usable."""

    class Mine(Tensor):
        """A subclass that may mean anything."""

    ring, plain = LogitRing(top_k=0, capacity=9), torch.ones(1, 4)
    odd = [plain.to("meta"), plain.long(), plain.to_sparse(), plain.as_subclass(Mine), plain.to(torch.float8_e4m3fn), plain + 1j]
    assert [ring.append(tensor, None) for tensor in odd] == [None] * 6
    seen: list[int | None] = []

    def look(row: Tensor) -> Tensor:
        seen.append(ring.append(row, None))
        return row

    torch.func.vmap(look)(plain[None])
    assert seen == [None]
    assert ring.append(plain, None) == 0


@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (4,), (1, 2, 3)], ids=str)
def test_what_is_no_batch_of_logits_is_refused(shape: tuple[int, ...]) -> None:
    """An empty tensor or one of another rank raises an error that names its shape."""
    with pytest.raises(ValueError, match=r"batch, vocabulary.*\("):
        compute(torch.zeros(shape), None, top_k=0)


def test_another_implementation_can_be_given() -> None:
    """The ring uses the implementation it is given, with a place for what it finds."""
    calls: list[tuple[int, Any]] = []

    def counted(logits: Tensor, chosen: Tensor | None, *, top_k: int, out: Tensor | None = None) -> Tensor:
        calls.append((top_k, None if out is None else tuple(out.shape)))
        return compute(logits, chosen, top_k=top_k, out=out)

    LogitRing(top_k=3, capacity=1, statistics=counted).append(torch.ones(1, 9), None)
    assert calls == [(3, (1, 19))]


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
    """With content capture the chosen token and the top-k of the first row are there, as texts too if there is a tokenizer."""
    step = measure(torch.tensor([[0.0, 4.0, 2.0], [9.0, 0.0, 0.0]]), torch.tensor([2, 0]), 2)
    bare = attributes(step, content=True)
    assert (bare[semconv.TOKEN_ID], bare[semconv.LOGITS_TOP_K_IDS]) == (2, [1, 2])
    assert bare[semconv.LOGITS_TOP_K_PROBABILITIES] == pytest.approx(torch.tensor([0.0, 4.0, 2.0]).softmax(0)[[1, 2]].tolist())
    texts = attributes(step, content=True, decode="abc".__getitem__)
    assert texts == {**bare, semconv.TOKEN_TEXT: "c", semconv.LOGITS_TOP_K_TEXTS: ["b", "c"]}


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


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_failure_of_held_steps_leaves_those_before_them(
    monkeypatch: pytest.MonkeyPatch, contained: list[Swallowed], error: type[BaseException]
) -> None:
    """What had been reduced when memory ran out, or an interrupt came, is given; later steps are not taken."""
    logits, reduce, calls = torch.randn(40, 2, 64), logit_reductions._reduce, 0

    def fail(*args: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise error
        return reduce(*args)

    monkeypatch.setattr(logit_reductions, "_reduce", fail)
    ring = LogitRing(top_k=0, capacity=100)
    slots = []
    for step in logits:
        with contextlib.suppress(KeyboardInterrupt):
            slots.append(ring.append(step, None))
    assert slots[:31] == list(range(31))
    assert slots[-8:] == [None] * 8
    assert [one.place for one in contained] == ["logit statistics"] * (error is MemoryError)
    contained.clear()
    got = ring.read()
    assert len(got) == 16
    for measured, rows in zip(got, logits, strict=False):
        agree(measured.rows[1], reference(rows[1], None)._replace(chosen=None))


def _exit_code_of_child(work: Callable[[], int]) -> int | None:
    """What ``work`` returns in a forked child, ``None`` if it does not within five seconds."""
    child = os.fork()
    if child == 0:
        os._exit(work())
    for _ in range(500):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_threads_of_its_parent() -> None:
    """Held steps are the parent's; a request that begins in the child is measured step by step, as long as torch needs no threads."""
    logits, ids, before = torch.randn(20, 1, 1000), torch.zeros(1, dtype=torch.long), torch.get_num_threads()
    ring = LogitRing(top_k=0, capacity=100)
    for step in logits[:5]:
        ring.append(step, ids)

    def leave() -> int:
        return 10 + len(ring.read())

    def go_on() -> int:
        taken = [ring.append(step, ids) for step in (*logits[5:], torch.randn(1, 7), torch.randn(1, 7))]
        return 10 + len(ring.read()) + (taken[-1] is not None)

    def begin() -> int:
        own = LogitRing(top_k=0, capacity=100)
        for step in logits:
            own.append(step, ids)
        return 10 + len(own.read())

    torch.set_num_threads(2)
    try:
        torch.randn(64, 4096).softmax(-1)
        assert [_exit_code_of_child(work) for work in (leave, go_on, begin)] == [10, 10, 30]
    finally:
        torch.set_num_threads(before)
    for step in logits[5:]:
        ring.append(step, ids)
    for got, row in zip(ring.read(), logits, strict=True):
        agree(got.rows[0], reference(row[0], 0))


def test_parts_of_logits_are_told_from_whole_ones() -> None:
    """A DTensor is whole if it is replicated, and a plain tensor if it is as wide as the vocabulary of a tensor-parallel model."""
    from torch import distributed
    from torch._C._distributed_c10d import HashStore
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    logits = torch.randn(1, 2, 8, requires_grad=True)
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        replicated = whole_logits(distribute_tensor(logits, mesh, [Replicate()]))
        assert type(replicated) is Tensor
        assert torch.equal(replicated, logits)
        assert whole_logits(distribute_tensor(logits, mesh, [Shard(2)])) is None
        ring = LogitRing(top_k=0, capacity=2)
        assert ring.append(distribute_tensor(logits.detach()[:, -1], mesh, [Shard(1)]), None) is None
    finally:
        distributed.destroy_process_group()
    assert whole_logits(logits) is logits
    assert whole_logits(logits, vocabulary=8) is logits
    assert whole_logits(logits, vocabulary=16) is None
    assert whole_logits(None, vocabulary=16) is None


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
