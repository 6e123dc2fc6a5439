"""Which GPUs are ours, and what becomes of the readings when devices, drivers and the binding fail in whatever way."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from inferspan import guard, semconv
from inferspan.samplers.nvml import NvmlSampler
from tests.samplers import fake_nvml as fake
from tests.samplers.fake_nvml import Card, FakeNvml, NVMLError, hopper_card
from tests.samplers.test_nvml import EXPECTED, OURS, UUID, Clock, Readings, readings, reported, sampler, states

CARDS = ("GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb3333")


class TestOurs:
    """Which GPUs are this process's."""

    @pytest.mark.parametrize(
        ("environ", "expected"),
        [
            ({"CUDA_VISIBLE_DEVICES": "GPU-bbbb3333"}, {"GPU-bbbb3333"}),
            ({"CUDA_VISIBLE_DEVICES": "GPU-bb, GPU-aaaa1"}, {"GPU-bbbb3333", "GPU-aaaa1111"}),
            ({"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}, set()),
            ({"CUDA_VISIBLE_DEVICES": "GPU-ffff"}, set()),
            ({"CUDA_VISIBLE_DEVICES": ""}, set()),
            ({"CUDA_VISIBLE_DEVICES": "-1"}, set()),
            ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, set()),
            ({"CUDA_VISIBLE_DEVICES": "2,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"GPU-bbbb3333", "GPU-aaaa1111"}),
            ({"CUDA_VISIBLE_DEVICES": "2,-1,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"GPU-bbbb3333"}),
            ({"CUDA_VISIBLE_DEVICES": "2"}, {"GPU-aaaa2222"}),  # whose number counts by speed: only NVML's list of processes tells
            ({}, {"GPU-aaaa2222"}),
        ],
    )
    def test_before_cuda(self, environ: Mapping[str, str], expected: set[str]) -> None:
        """Until CUDA is up the environment decides, else the list of processes; a number that is not clear means nothing."""
        cards = [hopper_card(uuid, pid=OURS if uuid == "GPU-aaaa2222" else 1) for uuid in CARDS]
        assert reported(sampler(FakeNvml(*cards), environ=environ).collect()) == expected

    def test_only_card(self) -> None:
        """On a host with one card a number is clear in any order."""
        assert reported(sampler(FakeNvml(hopper_card(pid=1)), environ={"CUDA_VISIBLE_DEVICES": "0"}).collect()) == {UUID}

    def test_cuda_decides(self) -> None:
        """Once CUDA is up its own list counts, whatever the environment says, and gives the names of the devices."""
        cuda: list[Mapping[str, str] | None] = [None, {}, {"GPU-bbbb3333": "cuda:1"}]
        nvml = sampler(
            FakeNvml(*map(hopper_card, CARDS)), environ={"CUDA_VISIBLE_DEVICES": "GPU-aaaa1111"}, cuda_devices=lambda: cuda.pop(0)
        )
        assert [reported(nvml.collect()) for _ in range(2)] == [{"GPU-aaaa1111"}, set()]
        samples = nvml.collect()
        assert reported(samples) == {"GPU-bbbb3333"}
        assert {sample.attributes[semconv.DEVICE] for sample in samples} == {"cuda:1"}

    def test_cuda_list_fails(self, contained: list[guard.Swallowed]) -> None:
        """A failing list of CUDA devices is contained, and the other rules decide."""

        def fail() -> None:
            raise RuntimeError("no")

        assert reported(sampler(FakeNvml(hopper_card()), cuda_devices=fail).collect()) == {UUID}
        assert [error.place for error in contained] == ["samplers.nvml.cuda_devices"]
        contained.clear()

    def test_all_gpus(self) -> None:
        """All GPUs of the host are reported when asked for, each once."""
        samples = sampler(FakeNvml(*(hopper_card(uuid, pid=1) for uuid in CARDS)), all_gpus=True).collect()
        assert reported(samples) == set(CARDS)
        assert states(samples) == ["ok"] * 3


class TestFailures:
    """Devices and drivers that come and go."""

    def test_lost_card(self) -> None:
        """A lost card reports that it failed and nothing else; the other card and, later, the returning one are whole."""
        clock, lost, other = Clock(), hopper_card("GPU-a"), hopper_card("GPU-b")
        library = FakeNvml(lost, other)
        nvml = sampler(library, cuda_devices=lambda: {"GPU-a": "cuda:0", "GPU-b": "cuda:1"}, clock=clock)

        def of(uuid: str) -> Readings:
            return readings(sample for sample in nvml.collect() if sample.attributes[semconv.HW_ID] == uuid)

        failed = {("hw.status", state): int(state == "failed") for state in ("ok", "degraded", "failed", "predicted_failure")}
        assert of("GPU-a") == EXPECTED
        lost.error = fake.LOST
        lost.answers["TotalEnergyConsumption"] += 5_000
        assert (of("GPU-a"), of("GPU-b")) == (failed, EXPECTED)
        clock.now += 120
        assert (of("GPU-a"), of("GPU-b")) == (failed, EXPECTED)
        lost.error = None
        assert of("GPU-a") == failed  # it is asked again after a pause only
        clock.now += 120
        assert of("GPU-a") == {**EXPECTED, ("hw.energy",): 5}
        assert (library.inits, library.shutdowns) == (1, 0)

    @pytest.mark.parametrize("options", [{"all_gpus": True}, {}])
    def test_lost_card_stays_ours(self, options: Mapping[str, Any]) -> None:
        """A lost card, which NVML lists no more, is still reported as failed where the list had said that it is ours."""
        card = hopper_card()
        nvml = sampler(FakeNvml(card), **options)
        assert states(nvml.collect()) == ["ok"]
        card.error = fake.LOST
        assert [states(nvml.collect()) for _ in range(3)] == [["failed"]] * 3

    def test_lost_from_the_start(self) -> None:
        """A card that was lost before we came is reported under the UUID by which the environment names it."""
        card = hopper_card("GPU-a")
        card.error = fake.LOST
        samples = sampler(FakeNvml(card, hopper_card("GPU-b")), environ={"CUDA_VISIBLE_DEVICES": "GPU-a"}).collect()
        assert states(samples) == ["failed"]
        assert reported(samples) == {"GPU-a"}

    @pytest.mark.parametrize("whole", [True, False])
    def test_dead_nvml(self, whole: bool) -> None:
        """When NVML, or every device behind it, stops answering, readings disappear; they come back after a new init."""
        clock, card = Clock(), hopper_card()
        library = FakeNvml(card)
        nvml = sampler(library, clock=clock)
        nvml.collect()
        target: Any = library if whole else card
        target.error = fake.UNKNOWN
        card.answers["TotalEnergyConsumption"] += 7_000
        assert nvml.collect() == []
        inits = library.inits
        assert nvml.collect() == []  # not tried again before the pause is over
        assert library.inits == inits
        target.error = None
        clock.now += 120
        assert readings(nvml.collect()) == {**EXPECTED, ("hw.energy",): 7}
        nvml.close()
        assert library.inits == 2
        assert library.shutdowns == (1 if whole else 2)  # a shutdown that failed is not repeated

    def test_pauses_grow(self) -> None:
        """A driver that stays away is tried ever less often, once a minute in the end."""
        clock, library, tries = Clock(), FakeNvml(hopper_card()), []
        library.init_error = fake.UNKNOWN
        nvml = sampler(library, clock=clock)
        original = library.nvmlInit
        library.nvmlInit = lambda: (tries.append(clock.now - 1000), original())  # type: ignore[method-assign,assignment,func-returns-value]
        for _ in range(300):
            nvml.collect()
            clock.now += 1
        assert tries == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]

    def test_shutdown_by_others(self) -> None:
        """A shutdown of somebody else's is followed by one init of ours, and the round is not lost."""
        library = FakeNvml(hopper_card())
        nvml = sampler(library)
        nvml.collect()
        library.depth = 0
        assert readings(nvml.collect()) == EXPECTED
        nvml.close()
        nvml.close()
        assert (library.inits, library.shutdowns, library.depth) == (2, 1, 0)

    def test_fork(self) -> None:
        """A forked child initialises NVML itself, and leaves the parent's initialisation alone."""
        library, pids = FakeNvml(hopper_card()), [OURS]
        nvml = sampler(library, pid=lambda: pids[0], cuda_devices=lambda: {UUID: "cuda:0"})
        nvml.collect()
        pids[0] = 99
        nvml.close()
        assert (library.inits, library.shutdowns) == (1, 0)
        assert EXPECTED.keys() - readings(nvml.collect()).keys() == {("inferspan.gpu.process.memory.usage",)}
        nvml.close()
        assert (library.inits, library.shutdowns) == (2, 1)

    def test_no_driver(self, caplog: pytest.LogCaptureFixture) -> None:
        """A host without a driver gives no readings and one line, and is not asked again."""
        library = FakeNvml()
        library.init_error = fake.LIBRARY_NOT_FOUND
        nvml = sampler(library)
        with caplog.at_level("INFO", "inferspan"):
            assert [nvml.collect(), nvml.collect(), nvml.energy()] == [[], [], {}]
        assert [record.getMessage() for record in caplog.records] == ["GPU readings are off: this host has no NVIDIA driver"]
        nvml.close()

    def test_no_binding(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without the package there are no readings, and one line names it."""
        monkeypatch.setitem(sys.modules, "pynvml", None)
        nvml = NvmlSampler(environ={})
        with caplog.at_level("INFO", "inferspan"):
            assert [nvml.collect(), nvml.collect()] == [[], []]
        assert [record.getMessage() for record in caplog.records] == ["GPU readings are off: the package nvidia-ml-py is not installed"]
        nvml.close()


def _missing(name: Any, answer: Any) -> set[tuple[str, ...]]:
    """Readings that are not there if one function of the card answers so; all others have to be what they always are."""
    card = hopper_card()
    card.answers[name] = answer
    found = readings(sampler(FakeNvml(card), cuda_devices=lambda: {UUID: "cuda:0"}).collect())
    assert {key: found[key] for key in found.keys() & EXPECTED.keys()} == {key: EXPECTED[key] for key in found.keys() & EXPECTED.keys()}
    return EXPECTED.keys() - found.keys()


ANSWERS = [name for name in hopper_card().answers if name not in ("Name", "VbiosVersion")]


class TestOddAnswers:
    """Errors and values that no documentation names."""

    @pytest.mark.parametrize("name", ANSWERS, ids=str)
    @pytest.mark.parametrize(
        "answer", [ValueError("x"), IndexError("x"), OSError(5, "x"), KeyError("x"), SimpleNamespace(), "text", ()], ids=repr
    )
    def test_one_function(self, name: Any, answer: Any) -> None:
        """One function that raises or returns whatever it likes costs the readings that a card without it lacks, and no other."""
        assert _missing(name, answer) == _missing(name, NVMLError(fake.NOT_SUPPORTED))

    @pytest.mark.parametrize("answer", ["text", (1,), (1, 2, 3), (None, None)], ids=repr)
    def test_memory_of_cuda(self, answer: Any, contained: list[guard.Swallowed]) -> None:
        """What CUDA says of unified memory may be anything: it costs the memory readings of that card."""
        first, second = hopper_card("GPU-a"), hopper_card("GPU-b")
        del first.answers["MemoryInfo"]
        nvml = sampler(FakeNvml(first, second), cuda_devices=lambda: {"GPU-a": "cuda:0", "GPU-b": "cuda:1"}, cuda_memory=lambda _: answer)
        samples = nvml.collect()
        assert states(samples) == ["ok", "ok"]
        assert readings(sample for sample in samples if sample.attributes[semconv.HW_ID] == "GPU-b") == EXPECTED
        assert {error.place for error in contained} == {"samplers.nvml.cuda_memory"}
        contained.clear()

    @pytest.mark.parametrize("visible", ["²", "9" * 5000, "٣"], ids=["superscript", "long", "Arabic digit"])
    def test_visible_devices(self, visible: str) -> None:
        """A number that CUDA would not take names no device."""
        environ = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        assert sampler(FakeNvml(hopper_card()), environ=environ).collect() == []


class TestEnergy:
    """The quick road to the energy counters."""

    def test_energy(self) -> None:
        """Energy is read with the moment of its reading, without the rest of the round, on the scale of the metric."""
        clock, card = Clock(), hopper_card()
        library = FakeNvml(card, Card("GPU-none", processes=[(OURS, None)]))
        nvml = sampler(library, clock=clock)
        assert nvml.energy() == {UUID: (0, 1000)}
        card.answers["TotalEnergyConsumption"] += 1_500
        clock.now += 2
        assert nvml.energy() == {UUID: (1.5, 1002)}
        assert library.calls["nvmlDeviceGetPowerUsage"] == 0
        card.answers["TotalEnergyConsumption"] += 1_000
        assert readings(nvml.collect())[("hw.energy",)] == 2.5

    @pytest.mark.parametrize("error", [fake.LOST, fake.UNKNOWN])
    def test_no_energy(self, error: int) -> None:
        """A card that does not answer has no energy, and is judged by the next round."""
        card = hopper_card()
        nvml = sampler(FakeNvml(card), cuda_devices=lambda: {UUID: "cuda:0"})
        nvml.collect()
        card.error = error
        assert nvml.energy() == {}
        assert states(nvml.collect()) == (["failed"] if error == fake.LOST else [])
        assert nvml.energy() == {}

    @pytest.mark.parametrize(
        ("processes", "shared"),
        [([(OURS, 1)], False), ([(OURS, 1), (7, 1)], True), ([(7, 1)], True), ([], True), (fake.NO_PERMISSION, True)],
    )
    def test_shared(self, processes: Any, shared: bool) -> None:
        """A card counts as ours alone only if NVML lists our process there and no other."""
        card = hopper_card()
        card.processes = processes
        nvml = sampler(FakeNvml(card), cuda_devices=lambda: {UUID: "cuda:0"})
        assert nvml.shared(UUID)
        nvml.energy()
        assert nvml.shared(UUID) is shared
        nvml.collect()
        assert nvml.shared(UUID) is shared
