"""Counts of NaN, Inf and values near the limit against float64, in host memory and by way of a device, and what they launch."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from inferspan.capture.modules.recorder import IN_C
from inferspan.capture.values import host
from inferspan.capture.values.counts import DeviceCounts
from inferspan.capture.values.staging import LARGEST_STAGED, MOST_ROWS, MOST_STAGES

NAN, INF = math.nan, math.inf
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


class Launches(TorchDispatchMode):
    """Counts the operations that torch is given; views launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note an operation, and do it."""
        if not any("(a" in str(one.type) or one.alias_info is not None for one in func._schema.returns) or func._schema.name.endswith("_"):
            self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def exact(tensor: Tensor) -> tuple[int, int, int]:
    """NaN, Inf and finite values near the limit, counted in float64."""
    values = tensor.detach().double()
    near = values.isfinite() & (values.abs() >= torch.finfo(tensor.dtype).max / 2)
    return int(values.isnan().sum()), int(values.isinf().sum()), int(near.sum())


def spoilt(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 1) -> Tensor:
    """Random values, some of them bad, and some on both sides of the limit."""
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    limit = torch.finfo(dtype).max / 2
    bad = torch.tensor([NAN, INF, -INF, limit, -limit, limit * 2, limit * 0.99, -NAN, 0.0, -0.0], dtype=torch.float64).to(dtype)
    flat = tensor.view(-1)
    flat[: min(10, flat.numel())] = bad[: flat.numel()]
    return tensor


LAYOUTS: dict[str, Any] = {
    "as it is": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.transpose(0, 2),
    "strided": lambda tensor: tensor[:, ::2, 1:],
    "expanded": lambda tensor: tensor[:1].expand(9, -1, -1),
    "with gradients": lambda tensor: tensor.clone().requires_grad_(),
    "negated": torch._neg_view,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_counts_are_exact(dtype: torch.dtype, layout: str) -> None:
    """In every dtype and layout, at once and by way of a device."""
    tensor = LAYOUTS[layout](spoilt((4, 30, 7), dtype))
    rows = DeviceCounts()
    place = rows.add(tensor)
    assert host.counts(tensor) == exact(tensor)
    assert rows.read()(place) == exact(tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_counts_of_large_tensors_are_exact(dtype: torch.dtype) -> None:
    """Those that are not copied, and counts beyond what 16 bits hold."""
    tensor = spoilt((3, LARGEST_STAGED), dtype)
    tensor[1, :70_000] = NAN
    rows = DeviceCounts()
    places = [rows.add(tensor), rows.add(tensor[:, ::2])]
    numbers = rows.read()
    assert [numbers(place) for place in places] == [exact(tensor), exact(tensor[:, ::2])]
    assert host.counts(tensor) == exact(tensor)


def test_every_bit_pattern_of_16_bits_is_told() -> None:
    """All values of float16 and bfloat16."""
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        assert host.counts(patterns.view(dtype)) == exact(patterns.view(dtype))


def test_an_empty_tensor_has_none() -> None:
    """Nothing is read from where it would be."""
    assert host.counts(torch.empty(0, 3)) == (0, 0, 0)


def test_a_tensor_without_memory_has_none() -> None:
    """Sharded parameters are such between calls, and views of them; nothing is read from where they would be."""
    whole = torch.full((64,), NAN)
    view = whole[8:]
    whole.untyped_storage().resize_(0)
    for tensor in (whole, view):
        assert host.is_freed(tensor)
        assert host.counts(tensor) == (0, 0, 0)
        assert host.moments(tensor) is None


def test_tensors_come_back_in_any_order() -> None:
    """More shapes than buffers are open, and more tensors than one buffer has rows."""
    rows, tensors = DeviceCounts(), [spoilt((1 + index % (2 * MOST_STAGES), 11), DTYPES[index % 4], index) for index in range(5 * MOST_ROWS)]
    places = [rows.add(tensor) for tensor in tensors]
    numbers = rows.read()
    assert [numbers(place) for place in reversed(places)] == [exact(tensor) for tensor in reversed(tensors)]


def test_a_later_write_is_not_seen() -> None:
    """What the model does to a tensor afterwards changes nothing, and the tensor is not kept."""
    rows, tensor = DeviceCounts(), torch.ones(3, 3)
    place = rows.add(tensor)
    tensor.fill_(NAN)
    assert rows.read()(place) == (0, 0, 0)


def test_inference_mode_and_others_share_a_buffer() -> None:
    """A pass in inference mode may come before or after one outside of it."""
    for modes in ([True, False], [False, True]):
        rows, places = DeviceCounts(), []
        for mode in modes:
            with torch.inference_mode(mode):
                places.append(rows.add(spoilt((2, 8), torch.float32)))
        numbers = rows.read()
        assert [numbers(place) for place in places] == [exact(spoilt((2, 8), torch.float32))] * 2


# ------------------------------------------------------------------------------------------------------------------- what it costs
def test_a_small_tensor_on_a_device_is_one_launch() -> None:
    """One copy a tensor; a buffer is reduced by at most twelve operations for 64 tensors."""
    rows = DeviceCounts()
    tensors = [torch.ones(1, 1, 64) for _ in range(MOST_ROWS)]
    rows.add(tensors[0])
    DeviceCounts().add(torch.ones(LARGEST_STAGED + 1, dtype=tensors[0].dtype))  # makes the limits of the dtype
    with Launches() as launches:
        for tensor in tensors[1:-1]:
            rows.add(tensor)
    assert launches.names == ["copy_"] * (MOST_ROWS - 2)
    with Launches() as launches:
        rows.add(tensors[-1])
    assert launches.names[0] == "copy_"
    assert launches.names[1:4] == ["bitwise_and", "ge", "sum"]
    assert len(launches.names) <= 5


def test_a_large_tensor_is_three_launches() -> None:
    """And none that joins pieces where there is one; the limits of a dtype are made once."""
    rows = DeviceCounts()
    tensor = torch.ones(LARGEST_STAGED + 1)
    rows.add(tensor)
    with Launches() as launches:
        rows.add(tensor)
    assert launches.names == ["bitwise_and", "ge", "sum"]


@pytest.mark.skipif(not IN_C, reason="needs the C extension")
def test_a_tensor_in_host_memory_is_no_operation_of_torch() -> None:
    """The extension reads it where it is."""
    tensor = spoilt((4, 8), torch.float32)
    with Launches() as launches:
        host.counts(tensor)
        host.moments(tensor)
    assert launches.names == []


def test_without_the_extension_a_sound_tensor_is_screened() -> None:
    """One norm and its reading; the counts are exact all the same."""
    code = """if True:
        import math, torch
        from tests.capture.values.test_counts import DTYPES, Launches, exact, spoilt
        from inferspan.capture.values import host
        assert host.count_values is None
        for dtype in DTYPES:
            sound = torch.ones(4, 8, dtype=dtype)
            with Launches() as launches:
                assert host.counts(sound) == (0, 0, 0)
            assert len(launches.names) <= 2, launches.names
            tensor = spoilt((4, 30, 7), dtype)
            for view in (tensor, tensor.transpose(0, 2), torch._neg_view(tensor)):
                assert host.counts(view) == exact(view), dtype
            assert host.counts(torch.empty(0)) == (0, 0, 0)
    """
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "INFERSPAN_EXTENSION": "0"}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr

