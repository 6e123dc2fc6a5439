"""Kineto's events as rows, and the place of kernels and operations, tried with made-up events: no GPU is needed for any of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from inferspan import semconv
from inferspan.capture.profiler.events import ProfilerEvent, place, short_name
from inferspan.capture.profiler.torch_profiler import MARK, read_events
from inferspan.records import ModuleCalls, ModuleInfo

HERE, OTHER = 100, 200


class _DeviceType(NamedTuple):
    name: str


class Old:
    """An event with the methods that ``_KinetoEvent`` has in every supported version of torch."""

    def __init__(
        self, name: str, start: int, length: int, *, device: int = -1, at: int = HERE, key: int = 0, op: int = 0, scope: int = 0
    ) -> None:
        self._values = (name, start, length, device, at, key, op, scope)

    def name(self) -> str:
        return str(self._values[0])

    def start_ns(self) -> int:
        return self._values[1]

    def duration_ns(self) -> int:
        return self._values[2]

    def device_type(self) -> _DeviceType:
        return _DeviceType("CPU" if self._values[3] < 0 else "CUDA")

    def device_index(self) -> int:
        return self._values[3]

    def device_resource_id(self) -> int:
        return self._values[4]

    def correlation_id(self) -> int:
        return self._values[5]

    def linked_correlation_id(self) -> int:
        return self._values[6]

    def scope(self) -> int:
        return self._values[7]


class New(Old):
    """An event that tells its kind and more, as newer versions do."""

    def __init__(self, kind: str, facts: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.activity_type, self.metadata_json = lambda: kind, lambda: facts


EPOCH = 1_700_000_000_000_000_000
FACTS = '"stream": 7, "grid": [4, 1, 1], "block": [128, 1, 1], "bytes": 64'
PASS = [
    ("cpu_op", Old(MARK, EPOCH, 100, key=1)),
    ("cpu_op", Old(MARK, EPOCH + 1000, 100, key=2)),
    ("cpu_op", Old("aten::linear", EPOCH + 5_000, 900, key=3)),
    ("cpu_op", Old("aten::addmm", EPOCH + 5_100, 700, key=4)),
    ("cuda_runtime", Old("cudaLaunchKernel", EPOCH + 5_200, 50, key=77, op=4)),
    ("kernel", Old("void gemm<1>(int)", EPOCH + 9_000, 400, device=0, at=7, key=77, op=4)),
    ("user_annotation", Old("mine", EPOCH + 5_950, 500, key=5, scope=7)),
    ("gpu_user_annotation", Old("mine", EPOCH + 9_500, 500, device=0, at=7, key=5)),
    ("cuda_driver", Old("cuLaunchKernelEx", EPOCH + 6_000, 50, key=78)),
    ("kernel", Old("triton_poi_fused_0", EPOCH + 9_600, 300, device=0, at=7, key=78)),
    ("gpu_memcpy", Old("Memcpy DtoH (Device -> Pinned)", EPOCH + 9_900, 20, device=0, at=9, key=79, op=3)),
    ("gpu_memset", Old("Memset (Device)", EPOCH + 9_950, 20, device=0, at=9, key=80, op=3)),
    ("cpu_op", Old("autograd::engine::evaluate_function", EPOCH + 6_100, 10, at=OTHER, key=6)),
    ("cuda_runtime", Old("cudaLaunchKernel", EPOCH + 6_200, 50, at=OTHER, key=81)),
    ("kernel", Old("of_another_thread", EPOCH + 9_700, 300, device=0, at=8, key=81)),
]
ROWS = [
    ProfilerEvent("op", "aten::linear", 55_000, 55_900, 3, 0, -1, -1, ""),
    ProfilerEvent("op", "aten::addmm", 55_100, 55_800, 4, 0, -1, -1, ""),
    ProfilerEvent("launch", "cudaLaunchKernel", 55_200, 55_250, 77, 4, -1, -1, ""),
    ProfilerEvent("launch", "cuLaunchKernelEx", 56_000, 56_050, 78, 0, -1, -1, ""),
    ProfilerEvent("kernel", "void gemm<1>(int)", 59_000, 59_400, 77, 4, 0, 7, ""),
    ProfilerEvent("kernel", "triton_poi_fused_0", 59_600, 59_900, 78, 0, 0, 7, ""),
    ProfilerEvent("kernel", "of_another_thread", 59_700, 60_000, 81, 0, 0, 8, ""),
    ProfilerEvent("memcpy", "Memcpy DtoH (Device -> Pinned)", 59_900, 59_920, 79, 3, 0, 9, ""),
    ProfilerEvent("memset", "Memset (Device)", 59_950, 59_970, 80, 3, 0, 9, ""),
]
MARKS = [(49_000, 52_000), (51_000, 51_100)]
"""Readings around the two marks: the second pair is closer, and its middle is the middle of the second mark."""


@pytest.mark.parametrize("new", [False, True])
def test_rows(new: bool) -> None:
    """Old and new events give the same rows: our clock, our thread, no ranges that somebody has named."""
    raw = [event if not new else New(kind, FACTS, *event._values[:3], **_keywords(event)) for kind, event in PASS]
    found = read_events(raw, MARKS)
    assert [row._replace(facts="") for row in found] == ROWS
    assert {row.facts for row in found if row.device >= 0} == {FACTS if new else ""}


def _keywords(event: Old) -> dict[str, int]:
    return dict(zip(("device", "at", "key", "op", "scope"), event._values[3:], strict=True))


def test_no_rows_without_a_clock() -> None:
    """Where no mark was recorded no time would mean anything, so there are no rows."""
    assert read_events([event for _, event in PASS[2:]], MARKS) == []


def _calls(*spans: tuple[int, int, int]) -> ModuleCalls:
    info = ModuleInfo("m", "M", None, "m")
    return ModuleCalls((number, -1, info, start, end, (), (), None, None) for number, start, end in spans)


LAYERS = _calls((1, 55_050, 55_300), (0, 54_000, 56_500), (2, 57_000, 58_000))
"""Call 1 inside call 0, as calls end, and call 2 after both."""


def _placed(**options: Any) -> Any:
    given = {"since": 50_000, "until": 58_000, "first": 3, "limit": 100, "with_ops": False, "device": "cuda", **options}
    return place(given.pop("rows", ROWS), given.pop("calls", LAYERS), **given)


def test_kernels_hang_under_the_module_that_launched_them() -> None:
    """A kernel goes by the moment of its launch, else by the operation it came from; what this thread did not launch is left alone."""
    placed = _placed()
    shown = [(record.parent, record.name, record.start, record.end) for record in placed.records]
    assert shown == [
        (1, "gemm", 59_000, 59_400),
        (0, "triton_poi_fused_0", 59_600, 59_900),
        (0, "Memcpy DtoH", 59_900, 59_920),
        (0, "Memset", 59_950, 59_970),
    ]
    assert [record.number for record in placed.records] == [3, 4, 5, 6]
    assert (placed.kernels, placed.kernel_ns, placed.ops, placed.left_out) == (4, 740, 1, 0)


def test_attributes_of_a_kernel() -> None:
    """Name, stream, device, queue, shape of the launch and bytes, where the profiler knows them."""
    rows = [row._replace(facts=FACTS) if row.key == 77 and row.kind == "kernel" else row for row in ROWS]
    first, *_, copy, _ = (record.attributes for record in _placed(rows=rows).records)
    assert first == {
        semconv.PROFILER_KIND: "kernel",
        semconv.KERNEL_NAME: "void gemm<1>(int)",
        semconv.KERNEL_STREAM: 7,
        semconv.DEVICE: "cuda:0",
        semconv.KERNEL_CORRELATION: 77,
        semconv.KERNEL_QUEUE_TIME: 3.8e-06,
        semconv.KERNEL_GRID: "4x1x1",
        semconv.KERNEL_BLOCK: "128x1x1",
        semconv.KERNEL_BYTES: 64,
    }
    assert semconv.KERNEL_QUEUE_TIME not in copy and copy[semconv.PROFILER_KIND] == "memcpy"


def test_operations_above_kernels() -> None:
    """With operations, those that no other one runs are shown, and kernels hang under the one that launched them."""
    placed = _placed(with_ops=True)
    assert [(record.number, record.parent, record.name) for record in placed.records] == [
        (3, 0, "aten::linear"),
        (4, 3, "gemm"),
        (5, 0, "triton_poi_fused_0"),
        (6, 3, "Memcpy DtoH"),
        (7, 3, "Memset"),
    ]


def test_without_modules() -> None:
    """Kernels of a compiled step, which has no module calls, hang under the step."""
    assert {record.parent for record in _placed(calls=ModuleCalls()).records} == {-1}


def test_only_of_this_pass() -> None:
    """What was launched before the pass began or after it ended is not of this pass, whenever it ran."""
    assert [record.name for record in _placed(since=55_500).records] == ["triton_poi_fused_0"]
    assert [record.name for record in _placed(until=55_500).records] == ["gemm", "Memcpy DtoH", "Memset"]


@pytest.mark.parametrize(
    ("limit", "names"),
    [
        (5, ["aten::linear", "gemm", "triton_poi_fused_0", "Memcpy DtoH", "Memset"]),
        (4, ["gemm", "triton_poi_fused_0", "Memcpy DtoH", "Memset"]),
        (2, ["gemm", "triton_poi_fused_0"]),
        (1, ["gemm"]),
        (0, []),
        (-3, []),
    ],
)
def test_a_limit_keeps_the_longest(limit: int, names: list[str]) -> None:
    """Operations go first, then the shortest kernels; all of them are counted."""
    placed = _placed(limit=limit, with_ops=True)
    assert [record.name for record in placed.records] == names
    assert placed.left_out == 5 - len(names) and placed.kernels == 4
    # Whose operation has gone hangs under the module instead.
    assert "aten::linear" in names or all(record.parent in (0, 1) for record in placed.records)


def test_an_operation_does_not_stick_out() -> None:
    """The two clocks agree to a microsecond: what sticks out of the module or the pass is cut off."""
    rows = [ProfilerEvent("op", "aten::mul", 55_900, 56_600, 1, 0, -1, -1, ""), ProfilerEvent("op", "aten::add", 57_950, 58_100, 2, 0, -1, -1, "")]
    placed = _placed(rows=rows, with_ops=True)
    assert [(record.parent, record.start, record.end) for record in placed.records] == [(0, 55_900, 56_500), (2, 57_950, 58_000)]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::Fn<float>, std::array<char*, 2ul> >(int, float)",
            "vectorized_elementwise_kernel",
        ),
        ("void at::native::(anonymous namespace)::softmax_forward<c10::BFloat16, (bool)1>(float*)", "softmax_forward"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, 1>(internal::Args<int>)", "kernel"),
        ("nvjet_tst_64x8_64x16_1x4_h_bz_TNT", "nvjet_tst_64x8_64x16_1x4_h_bz_TNT"),
        ("triton_red_fused__to_copy_add_mean_0", "triton_red_fused__to_copy_add_mean_0"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD"),
        ("<<<>>>", "<<<>>>"),
        ("k" * 100, "k" * 80),
    ],
)
def test_short_names(name: str, short: str) -> None:
    """A span is named as one would speak of the kernel; the full name is an attribute."""
    assert short_name(name) == short
