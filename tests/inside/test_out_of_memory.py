"""Out-of-memory errors: request, step, module, shapes, what the allocator holds, and the snapshot; the error itself passes unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

from .fake_allocator import FakeAllocator, Holds, allocator_of

HIDDEN = torch.ones(2, 3)
CUDA_TEXT = "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 10.00 MiB is free."


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAllocator]:
    """The allocator of cuda:0, on which every model is."""
    yield from allocator_of(monkeypatch)


class _Runs(nn.Module):
    """Calls a function, and returns its input."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, hidden: Tensor, more: Tensor | None = None) -> Tensor:
        self.function()
        return hidden


def _cuda_error() -> None:
    raise torch.OutOfMemoryError(CUDA_TEXT)


def _cpu_error() -> None:
    torch.empty(1 << 52, dtype=torch.float64)


def _events(span: Any) -> list[dict[str, Any]]:
    return [dict(event.attributes or {}) for event in span.events if event.name == semconv.OOM_EVENT]


def _fails(model: Any, *inputs: Any) -> Exception:
    with pytest.raises(RuntimeError) as caught:
        model(*inputs)
    return caught.value


def test_module_shapes_and_allocator_of_a_plain_pass(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """The innermost module that ran, what it was called with, the bytes of the error, and the allocator's figures at that moment."""
    model = nn.Sequential(Holds(allocator, 9000, 200), nn.Sequential(_Runs(_cuda_error)))
    telemetry.instrument(model)
    _fails(model, HIDDEN)
    (span,) = telemetry.forwards()
    (event,) = _events(span)
    assert event.pop(semconv.OOM_SUMMARY) == ("summary of cuda:0" + "." * 10_000)[:4096]
    assert event == {
        semconv.MODULE_NAME: "1.0", semconv.INPUT_SHAPES: ("2x3",), semconv.INPUT_DTYPES: ("float32",), semconv.DEVICE: "cuda:0",
        semconv.OOM_REQUESTED: 3 << 29, semconv.OOM_ALLOCATED: 1200, semconv.OOM_RESERVED: 10_000, semconv.OOM_HIGH_WATER: 10_000,
    }  # fmt: skip
    attributes = dict(span.attributes or {})
    assert attributes[semconv.OOM_MODULE] == "1.0"
    assert attributes[semconv.ERROR_TYPE] == "torch.OutOfMemoryError"
    telemetry.check()


@pytest.mark.parametrize("settings", [{"modules": "none"}, {"modules": "all"}, {"modules": "all", "every_step": True}], ids=str)
def test_step_and_module_of_a_decoder(telemetry: Telemetry, allocator: FakeAllocator, settings: dict[str, Any]) -> None:
    """Memory runs out in the fourth step: it is named on the request and on the step, whatever is recorded of modules."""
    model, calls = models.llama(), list[int]()

    def runs_out(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 4:
            _cuda_error()

    model.model.layers[1].mlp.down_proj.register_forward_pre_hook(runs_out)
    handle = telemetry.instrument(model, **settings)
    with torch.no_grad(), pytest.raises(torch.OutOfMemoryError):
        model.generate(models.prompt(), do_sample=False, max_new_tokens=6, min_new_tokens=6)
    (request,) = telemetry.requests()
    (event,) = _events(request)
    name = "model.layers.1.mlp.down_proj"
    assert (event[semconv.MODULE_NAME], event[semconv.STEP_INDEX]) == (name, 3)
    assert event[semconv.INPUT_SHAPES] == (f"1x1x{model.config.intermediate_size}",)
    attributes = dict(request.attributes or {})
    assert (attributes[semconv.OOM_MODULE], attributes[semconv.OOM_STEP]) == (name, 3)
    assert [dict(span.attributes or {}).get(semconv.OOM_MODULE) for span in telemetry.steps()] == [None, None, None, name]
    told = f"step 3, {name} (1x1x{model.config.intermediate_size}), 1,610,612,736 bytes could not be allocated"
    assert str(handle.memory()).splitlines()[1:] == [f"  out of memory: {told}"]
    telemetry.check()


def test_the_error_of_the_cpu_allocator(telemetry: Telemetry) -> None:
    """A real one: 32 PiB. The event has the bytes and the resident memory, and says that there is no allocator to ask."""
    telemetry.instrument(model := nn.Sequential(_Runs(_cpu_error)), memory_snapshot="never.pickle")
    _fails(model, HIDDEN)
    (event,) = _events(telemetry.forwards()[0])
    assert event[semconv.OOM_REQUESTED] == 1 << 55
    assert event[semconv.MODULE_NAME] == "0"
    assert event[semconv.OOM_ALLOCATED] > 1 << 20
    assert event[semconv.OOM_SUMMARY].startswith("no allocator to ask on a CPU model; process: resident ")
    assert event[semconv.OOM_SNAPSHOT] == "none: there is no allocator to ask on a CPU model"
    telemetry.check()


def test_other_errors_are_none(telemetry: Telemetry) -> None:
    """A shape error has no such event or attribute."""
    telemetry.instrument(model := nn.Sequential(nn.Linear(7, 7)))
    _fails(model, HIDDEN)
    (span,) = telemetry.forwards()
    assert _events(span) == []
    assert semconv.OOM_MODULE not in (span.attributes or {})


def test_an_error_that_the_program_handles_is_none(telemetry: Telemetry) -> None:
    """The request has succeeded."""

    class Retries(nn.Module):
        """Goes on with less."""

        def __init__(self) -> None:
            super().__init__()
            self.part = _Runs(_cuda_error)

        def forward(self, hidden: Tensor) -> Tensor:
            try:
                found: Tensor = self.part(hidden)
                return found
            except RuntimeError:
                return hidden

    telemetry.instrument(model := Retries())
    model(HIDDEN)
    (span,) = telemetry.forwards()
    assert _events(span) == []
    assert span.status.is_ok or span.status.is_unset


def test_the_error_passes_and_nothing_holds_it(telemetry: Telemetry, allocator: FakeAllocator) -> None:
    """It is the same object with the same text; the tensors of the failed pass are freed with it."""
    import gc
    import weakref

    error = torch.OutOfMemoryError(CUDA_TEXT)
    held: list[weakref.ref[Tensor]] = []

    def raises() -> None:
        big = torch.ones(10)
        held.append(weakref.ref(big))
        raise error

    telemetry.instrument(model := nn.Sequential(_Runs(raises)))
    caught = _fails(model, HIDDEN)
    assert caught is error
    assert str(caught) == CUDA_TEXT
    error = error.with_traceback(None)
    del caught
    gc.collect()
    assert held[0]() is None


# ---------------------------------------------------------------------------------------------------------------- snapshot
def _history(monkeypatch: pytest.MonkeyPatch, *, recorded: bool) -> list[str]:
    written: list[str] = []

    def dump(path: str) -> None:
        written.append(path)
        Path(path).write_bytes(b"snapshot")

    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: recorded, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", dump)
    return written


def test_a_snapshot_is_written_where_history_is_recorded(
    telemetry: Telemetry, allocator: FakeAllocator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once, to the file that the setting names, with the process filled in."""
    import os

    written = _history(monkeypatch, recorded=True)
    telemetry.instrument(model := nn.Sequential(_Runs(_cuda_error)), memory_snapshot=str(tmp_path / "memory-{pid}.pickle"))
    _fails(model, HIDDEN)
    path = str(tmp_path / f"memory-{os.getpid()}.pickle")
    assert written == [path]
    assert _events(telemetry.forwards()[0])[0][semconv.OOM_SNAPSHOT] == path


def test_requests_around_it_share_the_snapshot(
    telemetry: Telemetry, allocator: FakeAllocator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One exception that ends two requests is one snapshot; each has the event."""
    written = _history(monkeypatch, recorded=True)
    inner = nn.Sequential(_Runs(_cuda_error))
    outer = nn.Sequential(_Runs(lambda: inner(HIDDEN)))
    for model in (inner, outer):
        telemetry.instrument(model, memory_snapshot=str(tmp_path / "memory.pickle"))
    _fails(outer, HIDDEN)
    assert len(written) == 1
    assert [len(_events(span)) for span in telemetry.forwards()] == [1, 1]
    telemetry.check()


def test_without_a_history_the_event_says_why_there_is_no_snapshot(
    telemetry: Telemetry, allocator: FakeAllocator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The call of torch that begins one is named; no file is made."""
    written = _history(monkeypatch, recorded=False)
    telemetry.instrument(model := nn.Sequential(_Runs(_cuda_error)), memory_snapshot=str(tmp_path / "memory.pickle"))
    _fails(model, HIDDEN)
    told = "none: call torch.cuda.memory._record_memory_history() before, so that there is a history to write"
    assert _events(telemetry.forwards()[0])[0][semconv.OOM_SNAPSHOT] == told
    assert written == []


def test_a_snapshot_that_cannot_be_written_says_why(
    telemetry: Telemetry, allocator: FakeAllocator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error of the program is the only one that it gets."""
    _history(monkeypatch, recorded=True)
    telemetry.instrument(model := nn.Sequential(_Runs(_cuda_error)), memory_snapshot=str(tmp_path / "missing" / "memory.pickle"))
    assert isinstance(_fails(model, HIDDEN), torch.OutOfMemoryError)
    assert _events(telemetry.forwards()[0])[0][semconv.OOM_SNAPSHOT] == "none: No such file or directory"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_real_shortage_on_a_gpu(telemetry: Telemetry, tmp_path: Path) -> None:
    """64 TiB: the module, the bytes and torch's table; the snapshot is a file that torch reads."""
    import pickle

    model = nn.Sequential(nn.Linear(3, 3), _Runs(lambda: torch.empty(1 << 46, dtype=torch.uint8, device="cuda"))).cuda()
    path = tmp_path / "memory.pickle"
    telemetry.instrument(model, memory_snapshot=str(path))
    torch.cuda.memory._record_memory_history(max_entries=1000)
    try:
        _fails(model, HIDDEN.cuda())
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    (event,) = _events(telemetry.forwards()[0])
    assert (event[semconv.MODULE_NAME], event[semconv.OOM_REQUESTED]) == ("1", 1 << 46)
    assert "PyTorch CUDA memory summary" in event[semconv.OOM_SUMMARY]
    assert event[semconv.OOM_SNAPSHOT] == str(path)
    assert pickle.loads(path.read_bytes())["segments"]
