"""A recorded call in C and in Python: which calls get a row, what the row holds, and what passes through."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import weakref
from time import perf_counter_ns
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from inferspan.capture.device.driver import DriverEvents
from inferspan.capture.modules import recorder, shapes
from inferspan.records import ModuleInfo, ModuleStage
from tests.capture.device.fake_cuda import FakeCuda
from tests.capture.modules.recorders import IMPLEMENTATIONS, INFOS, Counted, Implementation, Thing, observe, rows_of


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, torch.OutOfMemoryError])
def test_failing_forward(implementation: Implementation, running: None, error: type[BaseException]) -> None:
    """The very exception passes through, and the call is recorded as failed, with those inside of it that it left open."""
    module, engine = Counted(), object()
    observed, log = observe(implementation, module, engine), implementation.log()
    log.engine, recorder.current.call, log.calls_left = engine, log, 3
    raised = error("theirs")

    def fail(*_: Any, **__: Any) -> None:
        log.enter(INFOS[1], (), 1)
        raise raised

    module.answer = fail
    with pytest.raises(error) as caught:
        observed(torch.ones(2))
    assert caught.value is raised and raised.__context__ is None and raised.__cause__ is None
    name = {"OutOfMemoryError": "torch.OutOfMemoryError"}.get(error.__name__, error.__name__)
    assert [(row[2], row[7]) for row in rows_of(log)] == [(INFOS[1], "_OTHER"), (INFOS[0], name)]
    assert log.open_calls == 0


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_stage_has_room_of_its_own(implementation: Implementation, running: None) -> None:
    """A stage is recorded where modules have no room, and the other way round; those that found none are counted apart."""
    info, engine, log = ModuleInfo("eyes", "Eyes", None, "eyes", ModuleStage("eyes")), object(), implementation.log()
    stage, module = observe(implementation, Counted(), engine, info), observe(implementation, Counted(), engine)
    log.engine, recorder.current.call, log.stages_left = engine, log, 1
    for call in (stage, module, stage, stage, module):
        call(torch.ones(2))
    assert (log.calls_left, log.missed, log.stages_left) == (0, 2, -2)
    log.calls_left = 1
    for call in (stage, module):
        call(torch.ones(2))
    log.enter(info, (), 1)
    assert (log.calls_left, log.missed, log.stages_left) == (0, 2, -4)
    log.leave(2)
    assert [row[2] for row in rows_of(log)] == [info, INFOS[0], info]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_call_that_another_has_ended(implementation: Implementation, running: None) -> None:
    """Where the frame of a call has gone while it ran, one of the same module that is open ends in its place, as what it is."""
    module, engine = Counted(), object()
    observed, log = observe(implementation, module, engine), implementation.log()
    log.engine, recorder.current.call, log.calls_left = engine, log, 9
    x = torch.ones(2)
    module.answer = lambda *_: (log.leave(5), log.enter(INFOS[0], ("other",), 1), x)[2]
    observed(x)
    first, second = rows_of(log)
    assert (first[0], first[5]) == (0, shapes.describe(x))
    assert (*second[:2], *second[5:7]) == (1, -1, ("other",), shapes.describe(x))
    module.answer = lambda *_: (log.discard(), x)[1]
    observed(x)
    assert (log.open_calls, log.recorded) == (0, 0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_who_is_recorded(implementation: Implementation, running: None) -> None:
    """Only calls of the engine whose request runs on this thread, and only as long as there is room; the others are called through."""
    module, engine = Counted(), object()
    observed, log = observe(implementation, module, engine), implementation.log()
    x = torch.ones(2)
    assert observed(x) is x  # no request
    recorder.current.call = log
    assert observed(x) is x and (log.recorded, log.missed) == (0, 0)  # of another engine
    log.engine = engine
    assert observed(x) is x and (log.recorded, log.missed) == (0, 1)  # no room
    log.calls_left = 1
    assert observed(x) is x and observed(x) is x and (log.recorded, log.missed, log.calls_left) == (1, 2, 0)
    log.calls_left = 1
    thread = threading.Thread(target=observed, args=(x,))
    thread.start()
    thread.join()
    assert (log.recorded, log.calls_left) == (1, 1)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_clock_of_a_call(implementation: Implementation, running: None) -> None:
    """An observed call tells the clock of its request where it begins and ends, and what it takes and gives."""
    fake = FakeCuda(pointers=True)
    cuda = fake.torch_cuda()
    pools = (DriverEvents(0, cuda, fake, implementation.native),)
    clock = implementation.boundaries(pools, 0, 10**12, perf_counter_ns)
    outer, inner, engine = Counted(), Counted(), object()
    inner_observed, log = observe(implementation, inner, engine), implementation.log()
    outer.inner = inner
    outer.answer = lambda x: (fake.work.__setitem__(0, fake.work[0] + 2), inner_observed(x), fake.work.__setitem__(0, fake.work[0] + 1))[1]
    inner.answer = lambda x: (fake.work.__setitem__(0, fake.work[0] + 4), x + 1)[1]
    outer_observed = observe(implementation, outer, engine)
    log.engine, recorder.current.call, log.calls_left, log.clock = engine, log, 9, clock
    outer_observed(torch.ones(2))
    events = clock.cut()
    with pools[0].reading():
        times = events.seconds(pools, -1, -1)
    # The inner one takes what the outer one took, and the outer one returns what it gave: two boundaries in all, and the work of the
    # outer one counts for what comes after them.
    assert {number: round(value * 1e3, 6) for number, value in times.items()} == {0: 6, 1: 6}
    assert events.count == 2
    assert fake.calls["cuEventRecord"] == 2
    assert [row[0] for row in rows_of(log)] == [1, 0]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_arguments_that_change_while_they_are_read(implementation: Implementation, running: None) -> None:
    """A mode of the program's may be asked for a shape, and may do anything then."""
    module, engine = Counted(), object()
    observed, log = observe(implementation, module, engine), implementation.log()
    log.engine, recorder.current.call, log.calls_left = engine, log, 99
    call = ctypes.pythonapi.PyObject_Call  # hands on the very dictionary
    call.restype, call.argtypes = ctypes.py_object, [ctypes.py_object] * 3
    given: dict[str, Any] = {}

    class Emptying(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given.clear()
            return function(*args, **(kwargs or {}))

    for place in range(200):
        # Nothing but the dictionary holds them.
        given["first"] = torch.ones(2, 3) if place % 4 < 2 else (torch.ones(2, 3), torch.ones(4))
        given["second"] = torch.ones(4)
        with Emptying():
            call(observed, (), given)
    assert log.open_calls == 0


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nothing_is_kept_by_a_call(implementation: Implementation, running: None) -> None:
    """Neither inputs and outputs, nor the module once it is gone, nor what a call has raised."""
    module, engine = Counted(), Thing()
    observed, log = observe(implementation, module, engine), implementation.log()
    log.engine, recorder.current.call, log.calls_left = engine, log, 99

    def fail(*_: Any) -> None:
        raise ValueError("theirs")

    x = torch.ones(2)
    seen: list[Any] = [weakref.ref(x), weakref.ref(module), weakref.ref(engine)]
    gc.collect()  # what other tests have left refers to the same facts
    counts = [sys.getrefcount(one) for one in (x, module, engine, fail, INFOS[0], log)]
    observed(x)
    module.answer = fail
    for _ in range(3):
        with pytest.raises(ValueError, match="theirs"):
            observed(x)
    log.discard()
    module.answer = Counted().answer
    assert [sys.getrefcount(one) for one in (x, module, engine, fail, INFOS[0], log)] == counts
    del x, module, engine, observed, log
    recorder.current.call = None
    gc.collect()
    assert [reference() for reference in seen] == [None] * 3


def test_tensor_is_the_plain_one() -> None:
    """Subclasses are asked for nothing: what they answer may be code of theirs."""

    class Loud(Tensor):
        @property
        def shape(self) -> Any:  # type: ignore[override]
            raise AssertionError("asked")

    for param in IMPLEMENTATIONS:
        implementation: Any = param.values[0]
        module, engine = Counted(), object()
        observed, log = observe(implementation, module, engine), implementation.log()
        log.engine, recorder.current.call, log.calls_left = engine, log, 9
        try:
            loud = torch.ones(2).as_subclass(Loud)
            assert observed(loud) is loud and observed((loud, 1)) is not None
        finally:
            recorder.current.call = None
        assert log.recorded == 2
