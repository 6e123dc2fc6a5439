"""Statistics of module outputs against float64 references, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from inferspan import semconv
from inferspan.capture.modules import output_stats as module
from inferspan.capture.modules.output_stats import OutputStats
from inferspan.capture.values import host
from inferspan.records import AttributeValue
from tests.capture.values.test_counts import Launches

INF, NAN = math.inf, math.nan
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
COUNTS = (semconv.OUTPUT_STAT_NAN_COUNT, semconv.OUTPUT_STAT_INF_COUNT, semconv.OUTPUT_STAT_ELEMENT_COUNT)


def reference(tensor: Tensor) -> dict[str, AttributeValue]:
    """The attributes of a tensor, with numpy in float64, by their definitions."""
    values = tensor.detach().double().numpy()
    finite = values[np.isfinite(values)]
    result: dict[str, AttributeValue] = {
        semconv.OUTPUT_STAT_NAN_COUNT: int(np.isnan(values).sum()),
        semconv.OUTPUT_STAT_INF_COUNT: int(np.isinf(values).sum()),
        semconv.OUTPUT_STAT_ELEMENT_COUNT: values.size,
    }
    if values.size:
        result[semconv.OUTPUT_STAT_SPARSITY] = float((values == 0).mean())
    if finite.size:
        result |= {
            semconv.OUTPUT_STAT_MEAN: float(finite.mean()),
            semconv.OUTPUT_STAT_STD: float(finite.std()),
            semconv.OUTPUT_STAT_MIN: float(finite.min()),
            semconv.OUTPUT_STAT_MAX: float(finite.max()),
            semconv.OUTPUT_STAT_ABS_MAX: float(np.abs(finite).max()),
        }
    return result


def agree(got: dict[str, AttributeValue], want: dict[str, AttributeValue]) -> None:
    """Same keys, same whole numbers, doubles within what float32 sums allow."""
    assert got == {key: value if key in COUNTS else pytest.approx(value, rel=2e-5, abs=2e-5) for key, value in want.items()}
    assert {type(got[key]) for key in COUNTS} == {int}


def measure(tensor: Tensor) -> dict[str, AttributeValue]:
    """The attributes of one output."""
    store = OutputStats(capacity=1)
    assert store.append(tensor) == 0
    (attributes,) = store.read()
    return attributes


def special(kind: str, tensor: Tensor) -> Tensor:
    """Random values made awkward in one way."""
    flat = tensor.view(-1)
    if kind == "nan":
        flat[0] = NAN
    elif kind == "infinities":
        flat[:: max(2, flat.numel() // 3)], flat[-1] = -INF, INF
    elif kind == "half":
        flat[::2] = -INF
    elif kind == "one left":
        flat[1:] = NAN
    elif kind == "nothing left":
        flat[:] = NAN
    elif kind == "outlier":
        flat[0] = 1000.0
    elif kind == "constant":
        flat[:] = -7.0
    return tensor


KINDS = ["plain", "nan", "infinities", "half", "one left", "nothing left", "outlier", "constant"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (1, 6, 48), (4, 50, 30)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_statistics_equal_the_float64_reference(dtype: torch.dtype, shape: tuple[int, ...], kind: str) -> None:
    """Every dtype, shape and special value gives the numbers that numpy finds in float64; what is undefined is absent."""
    tensor = special(kind, torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 2 + 5).to(dtype)
    agree(measure(tensor), reference(tensor))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("view", [lambda t: t, lambda t: t.transpose(0, 2), lambda t: t[:, ::2, 1:], lambda t: t[:1].expand(9, -1, -1)])
def test_a_large_output_is_joined_from_pieces(monkeypatch: pytest.MonkeyPatch, view: Any, kind: str) -> None:
    """A tensor worked on in pieces gives what one piece gives, whatever its memory layout."""
    tensor = view(special(kind, torch.randn((6, 20, 10), generator=torch.Generator().manual_seed(2)) + torch.arange(10) * 3))
    monkeypatch.setattr(module, "PIECE", 64)
    monkeypatch.setattr(module, "LARGEST_STAGED", 0)
    monkeypatch.setattr(host, "MOST_MOMENTS", 0)
    agree(measure(tensor), reference(tensor))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_outputs_that_are_reduced_together(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, kind: str) -> None:
    """Small outputs are copied, and reduced many at a time, where they are not in host memory."""
    monkeypatch.setattr(host, "MOST_MOMENTS", 0)
    tensors = [special(kind, torch.randn((2, 9), generator=torch.Generator().manual_seed(seed))).to(dtype) for seed in range(70)]
    store = OutputStats()
    for tensor in tensors:
        store.append(tensor)
    for attributes, tensor in zip(store.read(), tensors, strict=True):
        agree(attributes, reference(tensor))


def test_a_small_output_on_a_device_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy; the reductions follow for 64 outputs at a time."""
    monkeypatch.setattr(host, "MOST_MOMENTS", 0)
    monkeypatch.setattr(module, "_dispatches", lambda: 0)  # modes do not see what inferspan launches
    store, tensors = OutputStats(), [torch.ones(1, 1, 64) for _ in range(63)]
    store.append(tensors[0])
    with Launches() as launches:
        for tensor in tensors[1:]:
            store.append(tensor)
    assert launches.names == ["copy_"] * 62
    with Launches() as launches:
        store.append(tensors[0])
    assert 0 < len(launches.names) <= 25


def test_an_empty_output_has_only_counts() -> None:
    """No values: zero elements are a fact, mean and extremes are absent."""
    assert measure(torch.empty(0, 4)) == dict.fromkeys(COUNTS, 0)


def test_outputs_come_back_in_order_and_once() -> None:
    """Hundreds of outputs of changing shape and dtype come back in the order of their slots; the store is then empty."""
    store, shapes = OutputStats(capacity=1000), [(3,), (2, 2), (0,), (7, 1, 2)]
    for index in range(700):
        assert store.append(torch.full(shapes[index % 4], float(index), dtype=DTYPES[index % 2 * 3])) == index
    want = [None if index % 4 == 2 else float(index) for index in range(700)]
    assert [attributes.get(semconv.OUTPUT_STAT_MEAN) for attributes in store.read()] == want
    assert store.read() == []


def test_a_full_store_takes_nothing_until_it_is_read() -> None:
    """Beyond its capacity a store says None and keeps what it has."""
    store = OutputStats(capacity=2)
    assert [store.append(torch.ones(2)) for _ in range(3)] == [0, 1, None]
    assert (store.full, len(store.read()), store.append(torch.ones(2))) == (True, 2, 0)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_what_has_no_statistics_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Odd tensors and things that are no tensors give None, and never an error."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Mine(Tensor):
        """A subclass that may mean anything."""

    plain = torch.ones(2, 2)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(plain)
    odd: list[object] = [
        None,
        3.5,
        [plain.long()],
        plain.long(),
        plain.bool(),
        plain.to(torch.float8_e5m2),
        plain.to(torch.complex64),
        plain.to("meta"),
        plain.to_sparse(),
        plain.as_subclass(Mine),
        torch.nested.nested_tensor([plain, plain], layout=torch.jagged),
        torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8),
        fake,
    ]
    store = OutputStats(capacity=100)
    assert [store.append(thing) for thing in odd] == [None] * len(odd)
    seen: list[int | None] = []

    def look(row: Tensor) -> Tensor:
        seen.append(store.append(row))
        return row

    torch.func.vmap(look)(plain)
    monkeypatch.setattr(module, "LARGEST", 3)
    assert [*seen, store.append(plain)] == [None, None]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_output_is_left_alone(dtype: torch.dtype) -> None:
    """The tensor keeps every bit and its version, draws no random numbers, and inference tensors are fine too."""
    tensor = special("infinities", torch.randn(4, 9)).to(dtype).requires_grad_()
    before, version, state = tensor.detach().clone(), tensor._version, torch.get_rng_state()
    want = measure(tensor)
    assert tensor.detach().view(torch.uint8).equal(before.view(torch.uint8))
    assert tensor._version == version
    assert torch.get_rng_state().equal(state)
    with torch.inference_mode():
        store = OutputStats(capacity=1)
        store.append(tensor.clone())
    assert store.read() == [want]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_cuda_agrees_with_the_reference_without_waiting(dtype: torch.dtype, kind: str) -> None:
    """On a GPU the numbers are the same, and appending never synchronises."""
    tensor = special(kind, torch.randn((2, 300, 64), generator=torch.Generator().manual_seed(3))).to(dtype)
    on_device, store = tensor.cuda(), OutputStats(capacity=600)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(300):
            store.append(on_device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for attributes in store.read()[::299]:
        agree(attributes, reference(tensor))


MIXED = torch.tensor([1.0, -2.0, 3.0, 0.5, -0.25, 0.0, 0.0, 2.75]).repeat(50).view(8, 50)


def _scaled_reference(tensor: Tensor) -> dict[str, float]:
    """Figures of finite values, of a copy between -1 and 1, because sums of squares of float64 values may be too large for float64."""
    scale = float(tensor.abs().amax())
    scaled = tensor.double() / scale
    figures = {
        "mean": scaled.mean(),
        "std": scaled.std(correction=0),
        "min": scaled.amin(),
        "max": scaled.amax(),
        "abs_max": scaled.abs().amax(),
    }
    return {f"inferspan.output.stat.{name}": float(value) * scale for name, value in figures.items()}


@pytest.mark.parametrize(
    "tensor",
    [
        MIXED * 1e30, MIXED * 1e38, MIXED * 1e-30, (MIXED * 1e36).bfloat16(), MIXED.double() * 1e200, MIXED.double() * 5e307,
        MIXED.double() * 1e-200, MIXED * 1e-3 + 1000, MIXED * 1e-5 + 16, MIXED.double() * 1e-10 + 1000,
    ],
    ids=["large", "largest", "small", "bfloat16", "float64", "largest float64", "small float64", "far", "further", "far float64"],
)  # fmt: skip
@pytest.mark.parametrize("road", ["C", "strided", "staged", "pieces"])
def test_figures_of_any_size(monkeypatch: pytest.MonkeyPatch, road: str, tensor: Tensor) -> None:
    """Squares of float32 values over 1e19 are none, and neither are those about a mean that is rounded."""
    if road != "C":
        monkeypatch.setattr(host, "MOST_MOMENTS", 0)
    if road == "pieces":
        monkeypatch.setattr(module, "PIECE", 64)
        monkeypatch.setattr(module, "LARGEST_STAGED", 0)
    got = measure(tensor.t() if road == "strided" else tensor)
    want = _scaled_reference(tensor)
    assert {key: got.get(key) for key in want} == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("value", [1e19, 1e30, 3.4e38, 0.1, 1e-30, 1e-45])
def test_equal_values_do_not_deviate(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """Not by what their mean is rounded."""
    monkeypatch.setattr(host, "MOST_MOMENTS", 0)
    assert measure(torch.full((37, 41), value))[semconv.OUTPUT_STAT_STD] == 0.0


def test_the_deviation_of_many_values_far_from_zero() -> None:
    """Over 2^20 values with a mean a million times their deviation."""
    tensor = (torch.randn(1100, 2000, generator=torch.Generator().manual_seed(3)) * 1e-3 + 1000).t()
    assert measure(tensor)[semconv.OUTPUT_STAT_STD] == pytest.approx(float(tensor.double().std(correction=0)), rel=1e-6)
