"""Types of the C extension: wrong arguments raise, half-made objects do nothing, a second load changes nothing."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from time import perf_counter_ns
from types import SimpleNamespace

import pytest
from torch import nn

from inferspan.capture.device.events import EventPool
from inferspan.capture.modules import recorder
from tests.capture.modules.recorders import IN_C_CODE, C, Counted, answer_of, in_c, observe


@in_c
def test_half_made_objects_in_c(running: None) -> None:
    """What was deleted counts as ``None``, and what was not initialised does nothing."""
    module, engine = Counted(), object()
    observed, log = observe(IN_C_CODE, module, engine), C.CallLog()
    log.engine, recorder.current.call, log.calls_left = engine, log, 9
    del log.clock, log.output_stats
    assert observed(5) == 5
    assert log.recorded == 1
    assert log.clock is None
    del log.engine
    assert observed(5) == 5
    assert log.recorded == 1
    assert log.engine is None
    native = C.NativeEvents.__new__(C.NativeEvents)
    native.enabled = True
    pool = SimpleNamespace(native=native, record=lambda: 7, seconds=lambda begins, ends: [0.5 for _ in begins])
    clock = C.Boundaries((pool,), 1, 1, perf_counter_ns)
    clock.record()
    events = clock.cut()
    assert events.slots(0) == [7]
    assert events.seconds((pool,), 0, 0) == {-1: 0.5}
    unbound = "from inferspan.capture.modules import _recorder as C\ntry: C.ModuleCaller(type('', (), {'_modules': 1}), 1, 2)()\nexcept RuntimeError: pass"
    assert subprocess.run([sys.executable, "-c", unbound], check=False).returncode == 0


@in_c
def test_loaded_again(running: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in use goes on, whoever imports the extension once more, by the same name or another."""
    module, engine = Counted(), object()
    observed = observe(IN_C_CODE, module, engine)
    monkeypatch.delitem(sys.modules, C.__name__)
    again = importlib.import_module(C.__name__)
    loader = importlib.machinery.ExtensionFileLoader("other._recorder", C.__file__)
    other = importlib.util.module_from_spec(importlib.util.spec_from_loader("other._recorder", loader))  # type: ignore[arg-type]
    loader.exec_module(other)
    for found in (C, again, other):
        log = found.CallLog()
        log.engine, recorder.current.call, log.calls_left = engine, log, 9
        assert observed(5) == 5 and log.recorded == 1


@in_c
def test_bad_values_in_c() -> None:
    """What C code is given wrongly raises; it does not end the process."""
    for call in (
        lambda: C.ModuleCaller(),
        lambda: C.ModuleCaller(nn.Linear(1, 1)),
        lambda: C.ModuleCaller(object(), 1, 2),
        lambda: C.ModuleCaller.__new__(C.ModuleCaller)(),
        lambda: C.ModuleCaller(nn.Linear(1, 1), 1, 2)(),  # attached nowhere, and no ObservedCall
        lambda: C.ModuleCaller(nn.Linear(1, 1), 1, 2).__init__(nn.Linear(1, 1), 1, 2),
        lambda: C.CallLog().enter(1),
        lambda: C.CallLog().enter(1, 2, "late"),
        lambda: C.CallLog().leave(),
        lambda: C.CallLog().reach(),
        lambda: C.CallLog().begun_before("now"),
        lambda: C.NativeEvents(),
        lambda: C.NativeEvents([], [], None, None, None, 0, 0, 0, False),
        lambda: C.Boundaries(),
        lambda: C.Boundaries([1], 1, 1, None),
        lambda: C.Boundaries([EventPool(0, None)] * 9, 1, 1, None),  # type: ignore[arg-type]
        lambda: C.Boundaries((), 9, 9, None).enter(2**31 - 1, None, 5),
        lambda: C.Boundaries((), 9, 9, None).leave(-1, None, 5),
        lambda: C.bind(),
    ):
        assert answer_of(call) in (TypeError, ValueError, AttributeError, OverflowError), call
    events = C.Boundaries((), 1, 1, None).cut()
    assert answer_of(lambda: events.slots(0)) is IndexError
    assert answer_of(lambda: events.seconds((), 0, 0)) is ValueError
    assert answer_of(lambda: setattr(C.CallLog(), "calls_left", "much")) is TypeError
