"""Memory before and after steps and modules: known allocations, three rankings, CPU models, and nothing reset or waited for."""

from __future__ import annotations

import copy
import mmap
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inferspan import guard, semconv
from inferspan.settings import SettingsError
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached

from .fake_allocator import FakeAllocator, Holds, allocator_of

HIDDEN = torch.ones(2, 3)
KEYS = (
    semconv.MEMORY_START, semconv.MEMORY_END, semconv.MEMORY_RESERVED_START, semconv.MEMORY_RESERVED_END, semconv.MEMORY_HIGH_WATER_START,
    semconv.MEMORY_HIGH_WATER_END,
)  # fmt: skip


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAllocator]:
    """The allocator of cuda:0, on which every model is."""
    yield from allocator_of(monkeypatch)


def _chain(allocator: FakeAllocator) -> nn.Sequential:
    """Three modules: one keeps 300, one takes 9,000 for a while, one gives 100 back."""
    return nn.Sequential(Holds(allocator, 300, 300), Holds(allocator, 9000, 10), Holds(allocator, 0, -100))


def _of(attributes: Any) -> tuple[Any, ...]:
    return tuple((attributes or {}).get(key) for key in KEYS)


def _generate(model: Any, tokens: int) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.generate(models.prompt(), do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens)
    return found


# ------------------------------------------------------------------------------------------------------------------ modules
def test_readings_of_modules_are_those_of_the_allocator(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """Allocated, reserved and peak before and after each module are on its span."""
    telemetry.instrument(model := _chain(allocator), memory="all", modules="all")
    model(HIDDEN)
    found = {span.attributes[semconv.MODULE_NAME]: _of(span.attributes) for span in telemetry.modules() if span.attributes}
    assert found == {
        "0": (1000, 1300, 8000, 8000, 5000, 5000),
        "1": (1300, 1310, 8000, 10_300, 5000, 10_300),
        "2": (1310, 1210, 10_300, 10_300, 10_300, 10_300),
    }
    telemetry.check()


def test_the_request_has_the_readings_around_it(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """A plain forward pass has allocated, reserved and peak at its start and end."""
    telemetry.instrument(model := _chain(allocator), memory="steps")
    model(HIDDEN)
    assert _of(telemetry.only(telemetry.forwards())) == (1000, 1210, 8000, 10_300, 5000, 10_300)


def test_the_three_rankings(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """Each has its own order: what is allocated after a module, what it leaves, and by how much the peak has risen inside."""
    handle = telemetry.instrument(model := _chain(allocator), memory="all", modules="none")
    model(HIDDEN)
    found = handle.memory()
    assert [one.module for one in found.top("after")] == ["1", "0", "2"]
    assert [one.module for one in found.top("difference")] == ["0", "1", "2"]
    assert [one.module for one in found.top("rise", most=1)] == ["1"]
    assert found.peak == 10_300
    assert found.readings == 3


def test_means_and_totals_over_many_calls(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """After four passes: means of what is allocated after and of the differences, the rise in total, and the number of readings."""
    handle = telemetry.instrument(model := _chain(allocator), memory=["0"], modules="none")
    for _ in range(4):
        model(HIDDEN)
    (module,) = handle.memory().modules
    assert module.readings == 4
    assert module.after == 1300 + 210 * 1.5
    assert module.difference == 300
    assert module.rise == 0


def test_the_figures_in_words(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """Peak in GiB, then five modules by each ranking, named for what it is, with the number of readings."""
    allocator.allocated = allocator.peak = allocator.reserved = 3 << 30
    model = nn.Sequential(*(Holds(allocator, (index + 1) << 20, index << 20) for index in range(7)))
    handle = telemetry.instrument(model, memory="all", modules="none")
    model(HIDDEN)
    assert str(handle.memory()).splitlines() == [
        "memory: peak 3.02 GiB allocated on cuda:0; 0 steps; 7 readings of 7 modules",
        "  by allocated after the module, on average: mostly tells when a module runs",
        "    6: 3.02 GiB after, +6.00 MiB, peak +6.00 MiB, 1 reading",
        "    5: 3.01 GiB after, +5.00 MiB, peak +5.00 MiB, 1 reading",
        "    4: 3.01 GiB after, +4.00 MiB, peak +4.00 MiB, 1 reading",
        "    3: 3.01 GiB after, +3.00 MiB, peak +3.00 MiB, 1 reading",
        "    2: 3.00 GiB after, +2.00 MiB, peak +2.00 MiB, 1 reading",
        "  by difference after - before, on average: what a module leaves allocated",
        "    6: 3.02 GiB after, +6.00 MiB, peak +6.00 MiB, 1 reading",
        "    5: 3.01 GiB after, +5.00 MiB, peak +5.00 MiB, 1 reading",
        "    4: 3.01 GiB after, +4.00 MiB, peak +4.00 MiB, 1 reading",
        "    3: 3.01 GiB after, +3.00 MiB, peak +3.00 MiB, 1 reading",
        "    2: 3.00 GiB after, +2.00 MiB, peak +2.00 MiB, 1 reading",
        "  by rise of the peak inside the module, in total: where the peak comes from",
        "    6: 3.02 GiB after, +6.00 MiB, peak +6.00 MiB, 1 reading",
        "    5: 3.01 GiB after, +5.00 MiB, peak +5.00 MiB, 1 reading",
        "    4: 3.01 GiB after, +4.00 MiB, peak +4.00 MiB, 1 reading",
        "    3: 3.01 GiB after, +3.00 MiB, peak +3.00 MiB, 1 reading",
        "    2: 3.00 GiB after, +2.00 MiB, peak +2.00 MiB, 1 reading",
    ]


def test_a_ranking_that_there_is_not_is_refused(telemetry: Telemetry) -> None:
    """The error names the rankings."""
    with pytest.raises(ValueError, match="'size' is no ranking; use one of after, difference, rise"):
        telemetry.instrument(nn.Linear(2, 2)).memory().top("size")


def test_a_boundary_asks_the_allocator_once(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """All three figures come from one call: two for each module, two for the request."""
    telemetry.instrument(model := _chain(allocator), memory="all", modules="none")
    model(HIDDEN)
    assert allocator.asked == 2 * 3 + 2


def test_a_module_that_an_exception_has_left_has_no_reading(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """Modules around it keep theirs."""

    class Catches(nn.Module):
        """Goes on after its part has failed."""

        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Linear(7, 7)

        def forward(self, hidden: Tensor) -> Tensor:
            try:
                found: Tensor = self.part(hidden)
                return found
            except RuntimeError:
                allocator.take(70)
                return hidden

    handle = telemetry.instrument(model := nn.Sequential(Catches()), memory="all", modules="none")
    model(HIDDEN)
    assert [(one.module, one.difference) for one in handle.memory().modules] == [("0", 70)]
    telemetry.check()


def test_a_request_with_many_modules_has_an_event_of_bounded_size(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """The highest modules by each ranking, and the number of others; the handle has all."""
    model = nn.Sequential(*(Holds(allocator, 0, 1) for _ in range(200)))
    handle = telemetry.instrument(model, memory="all", modules="none")
    model(HIDDEN)
    (event,) = [event for event in telemetry.forwards()[0].events if event.name == semconv.MEMORY_MODULES_EVENT]
    attributes: Any = event.attributes
    assert len(attributes[semconv.MEMORY_MODULE_NAMES]) + attributes[semconv.MEMORY_MODULES_OMITTED] == 200
    assert len(attributes[semconv.MEMORY_MODULE_NAMES]) <= 128
    assert len(handle.memory().modules) == 200


def test_each_call_is_kept_with_step_and_time(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """Allocated, reserved and peak before and after, of the latest calls in the order in which they ended."""
    model = models.llama()
    model.lm_head.register_forward_hook(lambda *_: allocator.take(50))
    handle = telemetry.instrument(model, memory=["lm_head", "model.norm"])
    _generate(model, 3)
    calls = handle.memory().calls
    assert [(one.module, one.step) for one in calls] == [(name, step) for step in range(3) for name in ("model.norm", "lm_head")]
    assert [one.after for one in calls[1::2]] == [(1050, 8000, 5000), (1100, 8000, 5000), (1150, 8000, 5000)]
    assert [one.before for one in calls[1::2]] == [(1000, 8000, 5000), (1050, 8000, 5000), (1100, 8000, 5000)]
    (request,) = telemetry.requests()
    times = [request.start_time, *(one.time_ns for one in calls), request.end_time]
    assert times == sorted(times)  # type: ignore[type-var]


# -------------------------------------------------------------------------------------------------------------------- steps
def test_each_step_has_readings(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """The model keeps 50 bytes a pass: a step begins where the last one has ended."""
    model = models.llama()
    model.lm_head.register_forward_hook(lambda *_: allocator.take(50))
    handle = telemetry.instrument(model, memory="steps")
    _generate(model, 12)
    found = [_of(span.attributes)[:2] for span in telemetry.steps()]
    assert found == [(1000 + 50 * index, 1050 + 50 * index) for index in range(12)]
    assert handle.memory().steps == 12
    assert handle.memory().modules == ()
    telemetry.check()


def test_modules_are_read_in_every_step(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """Not in sampled steps only."""
    handle = telemetry.instrument(model := models.llama(), memory=["lm_head", "model.layers.*.mlp"])
    _generate(model, 9)
    assert [(one.module, one.readings) for one in handle.memory().modules] == [
        ("model.layers.0.mlp", 9), ("model.layers.1.mlp", 9), ("lm_head", 9),
    ]  # fmt: skip
    telemetry.check()


# ---------------------------------------------------------------------------------------------------------------------- CPU
def test_a_cpu_model_has_resident_memory_for_steps_and_a_note_for_modules(telemetry: Telemetry) -> None:
    """Modules get no hook and no figure."""
    handle = telemetry.instrument(model := models.llama(), memory="layers")
    _generate(model, 3)
    for span in telemetry.steps():
        start, end, *reserved, high_start, high_end = _of(span.attributes)
        assert 1 << 20 < start <= high_start
        assert 1 << 20 < end <= high_end
        assert reserved == [None, None]
    assert all(semconv.MEMORY_START not in (span.attributes or {}) for span in telemetry.modules())
    found = handle.memory()
    assert found.note == "modules: no allocator to ask on a CPU model"
    assert found.modules == ()
    assert str(found) == f"memory: peak {found.peak_gib:.2f} GiB resident; 3 steps; modules: no allocator to ask on a CPU model"
    telemetry.check()


def test_resident_memory_of_a_step_holds_what_the_step_keeps(telemetry: Telemetry) -> None:
    """64 MiB that a pass writes and keeps are in the difference of its step, and in the peak."""
    model, kept = models.llama(), list[Tensor]()

    def keep(*_: Any) -> None:
        # Not from malloc: in a process that has run many tests it finds as much in memory that it has kept.
        kept.append(torch.frombuffer(mmap.mmap(-1, 64 << 20), dtype=torch.uint8).fill_(1))

    model.lm_head.register_forward_hook(keep)
    handle = telemetry.instrument(model, memory="steps")
    _generate(model, 2)
    differences = [_of(span.attributes)[1] - _of(span.attributes)[0] for span in telemetry.steps()]
    assert min(differences) > 60 << 20
    assert (handle.memory().peak or 0) > 120 << 20


# -------------------------------------------------------------------------------------------------------- and nothing else
def test_off_reads_nothing(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """No attribute of steps, no event, and the text says how to switch it on."""
    handle = telemetry.instrument(model := models.llama())
    _generate(model, 3)
    assert all(semconv.MEMORY_START not in (span.attributes or {}) for span in telemetry.steps())
    assert str(handle.memory()) == 'memory: nothing was read; set memory="steps" or to modules'
    assert handle.memory().as_dict() == {}


def test_it_switches_at_run_time(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """On, and off again; a pattern that matches nothing raises."""
    handle = telemetry.instrument(model := _chain(allocator))
    model(HIDDEN)
    handle.set(memory="all")
    model(HIDDEN)
    handle.set(memory="none")
    model(HIDDEN)
    assert handle.memory().readings == 3
    with pytest.raises(SettingsError, match=r"'memory': pattern 'nothing\..*' matches no module"):
        handle.set(memory=["nothing.*"])


def test_the_model_does_what_it_does_without(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """Equal tokens and random stream; nothing stays on the model or a copy."""
    model = models.llama()
    torch.manual_seed(3)
    plain = model.generate(models.prompt(), do_sample=True, max_new_tokens=8, min_new_tokens=8)
    after = torch.get_rng_state()
    telemetry.instrument(model, memory="all")
    torch.manual_seed(3)
    assert torch.equal(plain, model.generate(models.prompt(), do_sample=True, max_new_tokens=8, min_new_tokens=8))
    assert torch.equal(after, torch.get_rng_state())
    assert attached(model)["hooks"] == 0
    assert attached(copy.deepcopy(model))["hooks"] == 0
    telemetry.check()


def test_a_reading_that_fails_costs_only_itself(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, allocator: FakeAllocator, contained: list[guard.Swallowed]
) -> None:
    """The request is recorded without it, and the error is counted."""
    telemetry.instrument(model := _chain(allocator), memory="all")

    def broken(device: Any = None) -> Any:
        raise RuntimeError("no figures")

    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", broken)
    assert torch.equal(model(HIDDEN), HIDDEN)
    assert semconv.MEMORY_START not in telemetry.only(telemetry.forwards())
    assert {error.place for error in contained} == {"memory of modules"}
    contained.clear()


def test_requests_on_threads_do_not_mix(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """Each request has the calls of its own thread; together they have all."""
    model = nn.Sequential(*(Holds(allocator, 0, 0) for _ in range(5)))
    handle = telemetry.instrument(model, memory="all", modules="none")
    threads = [threading.Thread(target=lambda: [model(HIDDEN) for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.readings for one in handle.memory().modules} == {40}
    assert attached(model)["hooks"] == 0


def test_numerics_do_not_count_into_the_reading(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """Memory is read before anything else of ours runs at the end of a module: both settings together give the same figures."""
    handle = telemetry.instrument(model := _chain(allocator), memory="all", numerics="all", output_stats=True, modules="all")

    def takes(*_: Any) -> dict[str, int]:
        allocator.take(7)
        return {"seen": 1}

    handle.on_module(Holds, takes)
    model(HIDDEN)
    first = next(one for one in handle.memory().modules if one.module == "0")
    assert first.difference == 300
    assert handle.numerics().calls == 3
    telemetry.check()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_known_allocations_on_a_gpu(telemetry: Telemetry) -> None:
    """A module that keeps 8 MiB and takes 64 for a while: differences and rise are exact, and the user's peak is not reset."""

    class Takes(nn.Module):
        """Keeps 8 MiB."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.kept: list[Tensor] = []

        def forward(self, hidden: Tensor) -> Tensor:
            self.kept.append(torch.empty(8 << 20, dtype=torch.uint8, device="cuda"))
            torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
            return hidden

    model = nn.Sequential(Takes()).cuda()
    torch.cuda.reset_peak_memory_stats()
    handle = telemetry.instrument(model, memory="all", modules="none")
    model(HIDDEN.cuda())
    (module,) = handle.memory().modules
    assert module.difference == 8 << 20
    assert module.rise == 72 << 20
    assert handle.memory().peak == torch.cuda.max_memory_allocated()
