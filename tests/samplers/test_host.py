"""Readings of the process and the host, over a psutil that a test describes, and once over the real one."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferspan import semconv
from inferspan.records import Sample
from inferspan.samplers.host import HostSampler

OURS = 413


class Refused(Exception):
    """What psutil raises."""


class FakeProcess:
    """A process by its id; ``refuse`` names what the system does not tell."""

    def __init__(self, host: FakePsutil, pid: int) -> None:
        self.host, self.pid = host, pid

    def oneshot(self) -> Any:
        return self.host.answer("Process.oneshot", contextlib.nullcontext())

    def __getattr__(self, name: str) -> Any:
        if name in self.host.refuse:
            raise Refused
        return lambda: self.host.answer(f"Process.{name}", self.host.process[name])


class FakePsutil:
    """Like the module, as far as it is used."""

    Error = Refused

    def __init__(self) -> None:
        self.refuse: set[str] = set()
        self.answers: dict[str, Any] = {}
        self.pids: list[int] = []
        self.process: dict[str, Any] = {
            "cpu_times": SimpleNamespace(user=12.0, system=3.0),
            "memory_info": SimpleNamespace(rss=1 << 30, vms=2 << 30),
            "num_threads": 9,
            "num_fds": 30,
            "num_ctx_switches": SimpleNamespace(voluntary=100, involuntary=5),
            "io_counters": SimpleNamespace(read_bytes=4096, write_bytes=8192, read_count=50, write_count=80),
            "create_time": 900.0,
        }
        self.times = SimpleNamespace(user=100.0, nice=1.0, system=50.0, idle=800.0, iowait=5.0, irq=1.0, softirq=2.0, steal=0.5, guest=9.0)
        self.memory = SimpleNamespace(total=1000, available=700, used=300, free=400, cached=200, buffers=100)

    def answer(self, name: str, usual: Any) -> Any:
        """What a test wants ``name`` to return or raise, else the usual."""
        answer = self.answers.get(name, usual)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def Process(self, pid: int) -> FakeProcess:
        self.answer("Process", None)
        self.pids.append(pid)
        return FakeProcess(self, pid)

    def cpu_times(self) -> Any:
        return self.answer("cpu_times", self.times)

    def cpu_count(self) -> Any:
        return self.answer("cpu_count", 8)

    def virtual_memory(self) -> Any:
        return self.answer("virtual_memory", self.memory)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def sampler(library: Any, root: Path, **options: Any) -> HostSampler:
    """A sampler of process ``OURS`` on four CPUs."""
    fixed = {"library": library, "root": root, "pid": lambda: OURS, "clock": Clock(), "now": lambda: 1000.0, "cpus": lambda: 4}
    return HostSampler(**{**fixed, **options})


def told(samples: Any) -> list[tuple[Any, ...]]:
    """Metric, attribute values and value of what psutil told."""
    own = ("cpython.", "process.paging")
    return [(sample.metric, *sample.attributes.values(), sample.value) for sample in samples if not sample.metric.startswith(own)]


# Counters have counted nothing yet when they are first read.
PROCESS = [
    ("process.cpu.time", "user", 0),
    ("process.cpu.time", "system", 0),
    ("process.memory.usage", 1 << 30),
    ("process.memory.virtual", 2 << 30),
    ("process.thread.count", 9),
    ("process.unix.file_descriptor.count", 30),
    ("process.context_switches", "voluntary", 0),
    ("process.context_switches", "involuntary", 0),
    ("process.disk.io", "read", 0),
    ("process.disk.io", "write", 0),
    ("process.disk.operations", "read", 0),
    ("process.disk.operations", "write", 0),
    ("process.uptime", 100.0),
]
HOST = [
    ("system.cpu.time", "user", 0),
    ("system.cpu.time", "system", 0),
    ("system.cpu.time", "nice", 0),
    ("system.cpu.time", "idle", 0),
    ("system.cpu.time", "iowait", 0),
    ("system.cpu.time", "interrupt", 0),
    ("system.cpu.time", "steal", 0),
    ("system.memory.usage", "used", 300),
    ("system.memory.usage", "free", 400),
    ("system.memory.usage", "cached", 200),
    ("system.memory.usage", "buffers", 100),
]
UNLIMITED = [
    ("system.memory.limit", 1000),
    ("system.memory.utilization", "used", 0.3),
    ("system.memory.utilization", "free", 0.4),
    ("system.memory.utilization", "cached", 0.2),
    ("system.memory.utilization", "buffers", 0.1),
]


def test_first_round(tmp_path: Path) -> None:
    """The first round has everything but utilisations, which need two; a utilisation is never made up as 0."""
    assert told(sampler(FakePsutil(), tmp_path).collect()) == PROCESS + HOST + UNLIMITED


def test_one_rank_reports_the_host(tmp_path: Path) -> None:
    """On a host with several ranks only the first one reports the host; each reports itself."""
    assert told(sampler(FakePsutil(), tmp_path, local_rank=1).collect()) == PROCESS


def test_only_known_names(tmp_path: Path) -> None:
    """Every metric and attribute of a sample stands in the metric table."""
    clock = Clock()
    host = sampler(FakePsutil(), tmp_path, clock=clock)
    host.collect()
    clock.now += 2
    for sample in host.collect():
        assert set(sample.attributes) <= set(semconv.METRICS[sample.metric].attributes), sample


def test_utilisation(tmp_path: Path) -> None:
    """Utilisation is CPU time over time passed and CPUs we may use, over windows of a second at least."""
    clock, library = Clock(), FakePsutil()
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("200000 100000")
    host = sampler(library, tmp_path, clock=clock)

    def shares() -> list[tuple[Any, ...]]:
        return [row for row in told(host.collect()) if row[0].endswith("cpu.utilization") and row[1] in ("user", "system", "idle")]

    assert shares() == []
    clock.now += 0.4
    library.process["cpu_times"] = SimpleNamespace(user=13.0, system=3.0)
    assert shares() == []
    clock.now += 1.6
    library.process["cpu_times"] = SimpleNamespace(user=14.0, system=3.5)
    library.times = SimpleNamespace(user=104.0, system=50.0, idle=812.0)
    expected = [
        ("process.cpu.utilization", "user", 0.5),
        ("process.cpu.utilization", "system", 0.125),
        ("system.cpu.utilization", "user", 0.25),
        ("system.cpu.utilization", "system", 0.0),
        ("system.cpu.utilization", "idle", 0.75),
    ]
    assert shares() == expected
    clock.now += 0.1
    assert shares() == expected


def limited(root: Path, **files: str) -> Path:
    """A root whose cgroup has these files."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/\n")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    for name, text in files.items():
        (root / "sys/fs/cgroup" / name.replace("_", ".")).write_text(text)
    return root


CONTAINER = [("inferspan.cgroup.memory.limit", 400), ("inferspan.cgroup.memory.usage", 100)]


def test_container(tmp_path: Path) -> None:
    """The limit on a container and its usage have names of their own; ``system.memory`` stays the whole host's."""
    root = limited(tmp_path, memory_max="400", memory_current="100")
    assert told(sampler(FakePsutil(), root).collect()) == PROCESS + CONTAINER + HOST + UNLIMITED


def test_every_rank_reports_its_container(tmp_path: Path) -> None:
    """Ranks on one host may run in containers of their own, so each reports the limit on its own."""
    root = limited(tmp_path, memory_max="400", memory_current="100")
    assert told(sampler(FakePsutil(), root, local_rank=1).collect()) == PROCESS + CONTAINER


def test_container_with_unreadable_usage(tmp_path: Path) -> None:
    """A usage that cannot be read is absent, not zero."""
    root = limited(tmp_path, memory_max="400")
    assert told(sampler(FakePsutil(), root, local_rank=1).collect()) == PROCESS + CONTAINER[:1]


def test_refused_readings(tmp_path: Path) -> None:
    """What the system refuses is absent, and costs nothing else."""
    library = FakePsutil()
    library.refuse = {"io_counters", "num_fds", "create_time"}
    refused = {"process.disk.io", "process.disk.operations", "process.unix.file_descriptor.count", "process.uptime"}
    assert told(sampler(library, tmp_path, local_rank=1).collect()) == [row for row in PROCESS if row[0] not in refused]


NUMBERLESS = "no number"
"""What a counter returns that psutil has misread."""
READINGS: dict[str, set[str]] = {
    "Process.oneshot": set(),
    "Process.cpu_times": {"process.cpu.time"},
    "Process.memory_info": {"process.memory.usage", "process.memory.virtual"},
    "Process.num_threads": {"process.thread.count"},
    "Process.num_fds": {"process.unix.file_descriptor.count"},
    "Process.num_ctx_switches": {"process.context_switches"},
    "Process.io_counters": {"process.disk.io", "process.disk.operations"},
    "Process.create_time": {"process.uptime"},
    "cpu_times": {"system.cpu.time"},
    "cpu_count": set(),
    "virtual_memory": {"system.memory.usage", "system.memory.limit", "system.memory.utilization"},
}
"""Metrics that each function of psutil gives in the first round."""


@pytest.mark.parametrize("name", READINGS)
@pytest.mark.parametrize(
    "answer",
    [ValueError("need more than 1 value"), IndexError("list"), KeyError(b"MemTotal:"), RuntimeError("/proc/stat"), NUMBERLESS],
    ids=["ValueError", "IndexError", "KeyError", "RuntimeError", "no number"],
)
def test_unreadable_counter(tmp_path: Path, name: str, answer: Any) -> None:
    """Whatever psutil raises or returns for one reading, that one is absent and all the others are there."""
    library = FakePsutil()
    library.answers[name] = answer
    expected = [row for row in PROCESS + HOST + UNLIMITED if row[0] not in READINGS[name]]
    assert told(sampler(library, tmp_path).collect()) == expected


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x")], ids=repr)
def test_unreadable_process(tmp_path: Path, error: Exception) -> None:
    """Where the process itself cannot be looked up, the host is still there."""
    library = FakePsutil()
    library.answers["Process"] = error
    assert told(sampler(library, tmp_path).collect()) == HOST + UNLIMITED


def test_part_of_a_reading_is_unreadable(tmp_path: Path) -> None:
    """A state of memory or a mode of CPU time that is no number is absent by itself."""
    library = FakePsutil()
    library.memory.cached = None
    library.times.idle = "?"
    found = told(sampler(library, tmp_path, local_rank=0).collect())
    assert [row for row in found if row[:2] == ("system.cpu.time", "idle")] == []
    assert ("system.cpu.time", "user", 0) in found
    assert [row for row in found if row[0] == "system.memory.usage"] == [
        ("system.memory.usage", "used", 500),
        ("system.memory.usage", "free", 400),
        ("system.memory.usage", "buffers", 100),
    ]


def test_psutil_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A psutil that fails in whatever way while it is imported is no psutil."""

    class Broken:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == "psutil":
                raise OSError("undefined symbol")

    monkeypatch.delitem(sys.modules, "psutil", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert told(HostSampler(root=tmp_path).collect()) == []


@pytest.mark.parametrize("text", ["9" * 5000, "-1", "²", "max", ""], ids=["long", "negative", "superscript", "max", "empty"])
def test_odd_limits_of_a_container(tmp_path: Path, text: str) -> None:
    """A limit that is no number is none, and costs no other reading."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(text)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(f"{text} 100000")
    assert told(sampler(FakePsutil(), tmp_path).collect()) == PROCESS + HOST + UNLIMITED


def test_fork(tmp_path: Path) -> None:
    """The process is looked up again when its id has changed, and its utilisation starts anew."""
    clock, library, pids = Clock(), FakePsutil(), [OURS]
    host = sampler(library, tmp_path, pid=lambda: pids[0], clock=clock, local_rank=1)
    host.collect()
    host.collect()
    pids[0] = 99
    clock.now += 5
    assert told(host.collect()) == PROCESS
    assert library.pids == [OURS, 99]


def test_off(tmp_path: Path) -> None:
    """While somebody else reports the same metrics there is no reading at all."""
    others = [True, False]
    host = sampler(FakePsutil(), tmp_path, off=lambda: others.pop(0))
    assert host.collect() == ()
    assert told(host.collect()) == PROCESS + HOST + UNLIMITED


def test_without_psutil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psutil there is still what Python itself knows."""
    monkeypatch.setitem(sys.modules, "psutil", None)
    samples = HostSampler(root=tmp_path).collect()
    expected = {"cpython.gc.collections", "cpython.gc.collected_objects", "cpython.gc.uncollectable_objects"}
    if sys.platform != "win32":
        expected.add("process.paging.faults")
    assert {sample.metric for sample in samples} == expected


def test_counters_count_from_the_first_reading(tmp_path: Path) -> None:
    """What was used before the first reading belongs to no interval of ours; a forked child begins anew."""
    library, pids = FakePsutil(), [OURS]
    host = sampler(library, tmp_path, pid=lambda: pids[0], local_rank=0)
    counters = {name for name in semconv.DEVICE_METRICS if semconv.METRICS[name].instrument == semconv.OBSERVABLE_COUNTER}

    def counted() -> dict[tuple[Any, ...], float]:
        return {tuple(row[:-1]): row[-1] for row in told(host.collect()) if row[0] in counters and row[-1]}

    assert counted() == {}
    library.process["cpu_times"] = SimpleNamespace(user=14.5, system=3.0)
    library.process["io_counters"] = SimpleNamespace(read_bytes=5096, write_bytes=8000, read_count=53, write_count=80)
    library.times = SimpleNamespace(**{**vars(library.times), "idle": 803.0})
    risen = {
        ("process.cpu.time", "user"): 2.5,
        ("process.disk.io", "read"): 1000,
        ("process.disk.operations", "read"): 3,
        ("system.cpu.time", "idle"): 3.0,
    }
    assert counted() == risen
    assert counted() == risen
    pids[0] = 99
    assert counted() == {}


def test_garbage_collector(tmp_path: Path) -> None:
    """The collector's counts are those of the interpreter since the first reading, by generation."""

    def collections() -> list[Sample]:
        return [sample for sample in host.collect() if sample.metric == "cpython.gc.collections"]

    host = sampler(FakePsutil(), tmp_path)
    gc.disable()
    try:
        first = collections()
        before = gc.get_stats()
        gc.collect()
        after = gc.get_stats()
        second = collections()
    finally:
        gc.enable()
    counts = [each["collections"] - earlier["collections"] for each, earlier in zip(after, before, strict=True)]
    assert sum(counts) == 1
    named = [Sample("cpython.gc.collections", 0, {"cpython.gc.generation": generation}) for generation in range(3)]
    assert (first, second) == (named, [sample._replace(value=count) for sample, count in zip(named, counts, strict=True)])


def test_real_process() -> None:
    """The real psutil gives this process's own numbers."""
    psutil = pytest.importorskip("psutil")
    host = HostSampler()
    values = {sample.metric: sample.value for sample in host.collect() if not sample.attributes}
    process = psutil.Process(os.getpid())
    assert values["process.memory.usage"] == pytest.approx(process.memory_info().rss, rel=0.2)
    assert values["process.thread.count"] >= 1
    assert 0 < values["process.uptime"] < 24 * 3600
    assert 0 < values["system.memory.limit"] <= psutil.virtual_memory().total
    host.close()


def test_opt_in_metrics_are_not_emitted() -> None:
    """The conventions have these as opt-in, so they are not sent."""
    assert {"process.memory.utilization", "process.signals_pending"} & semconv.METRICS.keys() == set()
