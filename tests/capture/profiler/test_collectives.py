"""Time in collectives, from events in the forms in which torch 2.4 and 2.13 tell of gloo, and kernels under the names that NCCL gives them."""

from __future__ import annotations

from typing import Any

import pytest

from inferspan import semconv
from inferspan.capture.profiler.collectives import is_collective_kernel
from inferspan.capture.profiler.events import ProfilerEvent, place
from inferspan.capture.profiler.torch_profiler import MARK, read_events
from inferspan.records import ModuleCalls, ModuleInfo
from tests.capture.profiler.test_events import EPOCH, OTHER, New, Old

USER = 7
"""The scope of ranges that are named by hand, which torch uses for collectives as well."""
ON_GLOO = [
    ("cpu_op", Old(MARK, EPOCH, 100, key=1)),
    ("cpu_op", Old("c10d::allreduce_", EPOCH + 1_000, 100, key=2)),
    ("user_annotation", Old("gloo:all_reduce", EPOCH + 1_050, 5_000, at=OTHER, key=3, scope=USER)),
    ("user_annotation", Old("nccl:all_reduce", EPOCH + 1_050, 100, key=4, scope=USER)),
    ("user_annotation", Old("mine", EPOCH + 1_050, 100, key=5, scope=USER)),
]


@pytest.mark.parametrize("new", [False, True])
def test_a_collective_that_a_thread_of_gloo_runs_is_a_row(new: bool) -> None:
    """A range in which NCCL is launched is none, and neither is one of the program."""
    raw: list[Any] = [event for _, event in ON_GLOO]
    if new:
        keys = ("device", "at", "key", "op", "scope")
        raw = [New(kind, "", *event._values[:3], **dict(zip(keys, event._values[3:], strict=True))) for kind, event in ON_GLOO]
    found = read_events(raw, [(0, 100)])
    assert [(row.kind, row.name, row.end - row.start) for row in found] == [("op", "c10d::allreduce_", 100), ("collective", "gloo:all_reduce", 5_000)]


def _op(name: str, start: int, end: int, key: int = 1) -> ProfilerEvent:
    return ProfilerEvent("op", name, start, end, key, 0, -1, -1, "")


def _range(start: int, end: int) -> ProfilerEvent:
    return ProfilerEvent("collective", "gloo:all_reduce", start, end, 0, 0, -1, -1, "")


def _kernel(name: str, launched: int, start: int, end: int, key: int) -> list[ProfilerEvent]:
    launch = ProfilerEvent("launch", "cudaLaunchKernelExC", launched, launched + 5, key, 0, -1, -1, "")
    return [launch, ProfilerEvent("kernel", name, start, end, key, 0, 0, 7, "")]


def _calls(*spans: tuple[int, int, int, int]) -> ModuleCalls:
    info = ModuleInfo("m", "M", None, "m")
    return ModuleCalls((number, parent, info, start, end, (), (), None, None) for number, parent, start, end in spans)


LAYER = _calls((1, 0, 150, 300), (0, -1, 100, 400))
"""Call 1 inside call 0."""


def _placed(rows: list[ProfilerEvent], **options: Any) -> Any:
    given = {"calls": LAYER, "since": 0, "until": 1_000, "first": 2, "limit": 100, "with_ops": False, "device": "cpu", **options}
    return place(rows, given.pop("calls"), **given)


def test_what_lasts_at_the_same_time_counts_once() -> None:
    """The operation that launches it, the collective, and the operation that waits for it."""
    rows = [_op("c10d::allreduce_", 160, 170), _range(165, 250), _op("_c10d_functional::wait_tensor", 200, 260, 2)]
    assert _placed(rows).collective_ns == 100


def test_operations_inside_of_others_count() -> None:
    """``aten::add`` of a tensor that is still being summed waits for it."""
    assert _placed([_op("aten::add", 160, 300), _op("_c10d_functional::wait_tensor", 170, 290, 2)]).collective_ns == 120


def test_a_module_has_those_that_began_inside_of_it() -> None:
    """In seconds, with those of the calls inside it; a collective outside of all calls is the pass's alone."""
    placed = _placed([_range(160, 260), _range(320, 340), _range(500, 600)])
    assert placed.collectives == {1: pytest.approx(100e-9), 0: pytest.approx(120e-9)}
    assert placed.collective_ns == 220


def test_a_collective_counts_until_the_end_of_its_pass() -> None:
    """An asynchronous one may go on."""
    assert _placed([_range(900, 1_500)]).collective_ns == 100


def test_a_collective_of_the_host_is_a_span_and_no_kernel() -> None:
    """It hangs under the module in which it began."""
    placed = _placed([_range(160, 260)])
    assert [(record.parent, record.name, record.start, record.end) for record in placed.records] == [(1, "gloo:all_reduce", 160, 260)]
    assert placed.records[0].attributes == {semconv.PROFILER_KIND: "collective", semconv.OP_NAME: "gloo:all_reduce"}
    assert (placed.kernels, placed.kernel_ns) == (0, 0)


def test_on_a_device_kernels_count_and_their_launches_do_not() -> None:
    """Two streams at once count once; a kernel may run long after the module that launched it."""
    rows = [
        _op("c10d::allreduce_", 160, 190),
        *_kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 165, 2_000, 2_300, 10),
        *_kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 350, 2_200, 2_500, 11),
        *_kernel("void gemm<1>(int)", 200, 2_300, 2_900, 12),
    ]
    placed = _placed(rows, device="cuda")
    assert placed.collective_ns == 500
    assert placed.collectives == {1: pytest.approx(300e-9), 0: pytest.approx(500e-9)}
    assert placed.kernel_ns == 1_200


def test_a_pass_ends_with_its_last_kernel() -> None:
    """The host may have launched all of it long before."""
    assert _placed(_kernel("void gemm<1>(int)", 200, 2_300, 2_900, 12), device="cuda").until == 2_900
    assert _placed([_range(900, 1_500)]).until == 1_000


def test_without_collectives_there_is_no_time_in_them() -> None:
    """Of any kind of event."""
    placed = _placed([_op("aten::add", 160, 300), *_kernel("void gemm<1>(int)", 200, 300, 900, 12)], device="cuda")
    assert (placed.collective_ns, placed.collectives) == (0, {})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", True),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", True),
        ("void ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32(ncclSymkDevWorkArgs4K)", True),
        ("rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", True),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", False),
        ("Memcpy PtoP (Device -> Device)", False),
    ],
)
def test_kernels_of_collectives_are_known_by_their_names(name: str, expected: bool) -> None:
    """Those of NCCL and RCCL."""
    assert is_collective_kernel(name) is expected
