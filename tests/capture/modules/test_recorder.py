"""The recorder in C and its twin in Python do the same, whatever they are told, and hold nothing longer than it is needed."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.machinery
import importlib.util
import itertools
import logging
import os
import random
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from inferspan import extension, guard
from inferspan.capture.device import boundaries
from inferspan.capture.device import events as cuda_events
from inferspan.capture.modules import call_log as python_recorder
from inferspan.capture.modules import recorder, shapes
from inferspan.capture.modules.recorder import IN_C
from inferspan.records import ModuleCall
from tests.capture.device.fake_cuda import FakeCuda

NAMES = ("model", "model.layers.0", "model.layers.0.mlp", "head")
INFOS: Any = tuple(object() for _ in NAMES)
C: Any = extension.find().module


class Twin(NamedTuple):
    """One of the two recorders."""

    tape: Any
    caller: Any
    boundaries: Any


PYTHON = Twin(python_recorder.CallLog, python_recorder.ModuleCaller, boundaries.Boundaries)
TWINS = [pytest.param(PYTHON, id="Python")]
if IN_C:
    TWINS.append(pytest.param(Twin(C.CallLog, C.ModuleCaller, C.Boundaries), id="C"))
in_c = pytest.mark.skipif(not IN_C, reason="needs the C extension")


def _answer(function: Callable[[], Any]) -> Any:
    """What a call gives, or the class of what it raises."""
    try:
        return function()
    except Exception as error:
        return type(error)


# ------------------------------------------------------------------------------------------------------------------- tapes
def _told(tape: Any, seed: int) -> list[Any]:
    """Everything that a tape answers to 400 random calls, and what it looks like after each."""
    draw, seen, moment = random.Random(seed), [], 0
    for _ in range(400):
        moment += draw.randrange(1, 9)
        info, now = draw.choice(INFOS), moment
        shape = (draw.choice(((1, 2), (3,))), "float")
        calls: list[tuple[int, Callable[[], Any]]] = [
            (12, lambda info=info, now=now, shape=shape: tape.enter(info, (shape,), now)),  # type: ignore[misc]
            (10, lambda now=now, shape=shape: tape.leave(now, (shape,), None, draw.choice((None, 0, 7)))),  # type: ignore[misc]
            (2, lambda now=now: tape.leave(now, failure="ValueError")),  # type: ignore[misc]
            (3, lambda info=info, now=now: tape.reach(info, now)),  # type: ignore[misc]
            (1, lambda info=info, now=now: tape.reach(info, now, "OSError")),  # type: ignore[misc]
            (1, lambda now=now: tape.begun_before(now - draw.randrange(200))),  # type: ignore[misc]
            (1, lambda: [*tape.cut()]),
            (1, tape.discard),
        ]
        (call,) = draw.choices([call for _, call in calls], [weight for weight, _ in calls])
        seen.append((_answer(call), tape.room, tape.missed, tape.count, tape.open_calls, tape.recorded))
    return [*seen, [*tape.cut()]]


@in_c
@pytest.mark.parametrize("seed", range(20))
def test_same_tape(seed: int) -> None:
    """Entries, exits, failures and cuts in any order, unbalanced ones as well."""
    assert _told(C.CallLog(), seed) == _told(python_recorder.CallLog(), seed)


@pytest.mark.parametrize("twin", TWINS)
def test_rows(twin: Twin) -> None:
    """A pass is a flat sequence in the layout of ``ModuleCall``, in the order in which the calls ended; columns are lists."""
    tape = twin.tape()
    tape.room = 5
    assert [tape.enter(INFOS[0], ("in",), 10), tape.enter(INFOS[1], (), 2**40)] == [0, 1]
    tape.leave(2**40 + 7, ("out",), None, 3)
    tape.leave(2**62, failure="KeyError")
    assert (tape.room, tape.count, tape.recorded, tape.open_calls) == (3, 2, 2, 0)
    calls = tape.cut()
    inner = (1, 0, INFOS[1], 2**40, 2**40 + 7, (), ("out",), None, 3)
    outer = (0, -1, INFOS[0], 10, 2**62, ("in",), (), "KeyError", None)
    assert tuple(calls) == inner + outer and len(calls) == 18
    width = len(ModuleCall._fields)
    for place in range(width):
        assert calls[place::width] == [inner[place], outer[place]]
    assert calls[-1] is None and calls[17] is None and calls[::-1][-1] == 1 and calls[3:1] == []
    assert _answer(lambda: calls[18]) is _answer(lambda: calls[-19]) is IndexError
    assert tape.recorded == 0 and [*tape.cut()] == []


@pytest.mark.parametrize("twin", TWINS)
def test_adopted_tape(twin: Twin) -> None:
    """A copy goes its own way: calls that are open or have ended are in both, later ones in one."""
    tape, copy = twin.tape(), twin.tape()
    copy.enter(INFOS[3], (), 1)  # is forgotten
    tape.engine, tape.room = "engine", 9
    tape.enter(INFOS[0], ("in",), 1)
    tape.enter(INFOS[1], (), 2)
    tape.leave(3)
    copy.adopt(tape)
    assert (copy.room, copy.count, copy.engine, copy.open_calls, copy.recorded) == (7, 2, "engine", 1, 1)
    tape.leave(4, ("out",))
    copy.leave(5, failure="_OTHER")
    assert [*tape.cut()] == [1, 0, INFOS[1], 2, 3, (), (), None, None, 0, -1, INFOS[0], 1, 4, ("in",), ("out",), None, None]
    assert [*copy.cut()] == [1, 0, INFOS[1], 2, 3, (), (), None, None, 0, -1, INFOS[0], 1, 5, ("in",), (), "_OTHER", None]


@pytest.mark.parametrize("twin", TWINS)
def test_tape_of_bad_values(twin: Twin) -> None:
    """Whatever is wrong raises, and the tape goes on."""
    tape = twin.tape()
    assert _answer(lambda: tape.leave(1)) is IndexError
    assert tape.reach(INFOS[0], 1) == -1 and tape.open_calls == 0
    tape.enter(INFOS[0], (), 1)
    assert tape.reach(INFOS[1], 2) == -1 and tape.open_calls == 1
    tape.leave(2)
    assert [*tape.cut()][2] is INFOS[0]


@pytest.mark.parametrize("twin", TWINS)
def test_adopting_tape_is_whole(twin: Twin) -> None:
    """What runs when the old contents of a tape go finds the new ones, and what it writes stays."""
    tape, other, seen = twin.tape(), twin.tape(), []

    class Last:
        def __del__(self) -> None:
            seen.append((tape.engine, tape.open_calls, tape.recorded, tape.enter(INFOS[2], (), 7)))

    tape.enter(INFOS[0], (Last(),), 1)
    other.engine = "engine"
    other.enter(INFOS[1], (), 1)
    tape.adopt(other)
    assert seen == [("engine", 1, 0, 1)] and tape.open_calls == 2
    tape.adopt(tape)
    tape.leave(8)
    tape.leave(9)
    assert [*tape.cut()][2::9] == [INFOS[2], INFOS[1]]


class _Thing:
    """Something that can be looked for."""


@pytest.mark.parametrize("twin", TWINS)
def test_nothing_is_kept_by_a_tape(twin: Twin) -> None:
    """What was described goes with the pass, whether it was cut, discarded or never ended; a tape in a circle is collected."""
    things = [_Thing() for _ in range(6)]
    seen = [weakref.ref(thing) for thing in things]
    tape = twin.tape()
    for thing in things[:3]:
        tape.enter(INFOS[0], (thing,), 1)
    tape.leave(2, (things[3],))
    copy = twin.tape()
    copy.adopt(tape)
    calls = tape.cut()
    tape.discard()
    things[4].around = tape  # type: ignore[attr-defined]
    tape.engine, tape.clock = things[4], things[5]
    del things, thing
    assert all(reference() is not None for reference in seen)
    del calls
    assert seen[2]() is not None  # of the copy
    del copy
    assert [reference() is None for reference in seen] == [True] * 4 + [False] * 2
    del tape
    gc.collect()
    assert all(reference() is None for reference in seen)


# ------------------------------------------------------------------------------------------------------------ observed calls
class _Counted(nn.Module):
    """Returns what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: Callable[..., Any] = lambda *args, **kwargs: args[0] if args else None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Anything."""
        return self.answer(*args, **kwargs)


@pytest.fixture
def running() -> Iterator[None]:
    """Whatever a test makes the running request is none afterwards."""
    yield
    recorder.current.call = None


def _observed(twin: Twin, module: nn.Module, engine: object) -> Any:
    """What calls a module and records it, without what ``ObservedCall`` adds."""
    kind: Any = type("Observed", (twin.caller,), {"_instead": lambda self: None})
    observed = kind(module, INFOS[0], engine)
    module.__dict__["_compiled_call_impl"] = observed
    observed.attached = True
    return observed


def _values() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments of every form that a module may be called with; each tensor comes in two shapes and two types."""
    x, y, z = torch.ones(1, 2), torch.ones(3), torch.ones(1, 2, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "in prototype stage"
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    forms: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for one in (x, y, z):
        forms += [
            ((one,), {}), ((one, x), {}), ((), {"hidden": one}), ((one,), {"mask": x, "cache": None}), (((one, x),), {}), (([one],), {}),
            (({"a": one},), {}), ((None, one), {}), ((one, 3, "text", True, 0.5), {}), ((nn.Parameter(one),), {}), ((object(), one), {}),
            ((one,) * 20, {}), ((), {f"k{place}": one for place in range(20)}), ((one,) * 9, {"mask": y}), ((((one, x), y), z), {}),
        ]  # fmt: skip
    return [*forms, ((), {}), ((None,), {}), ((nested,), {}), ((x, nested), {}), (((nested,),), {}), ((tuple([x] * 20),), {})]


@pytest.mark.parametrize("twin", TWINS)
def test_shapes_of_everything(twin: Twin, running: None) -> None:
    """What goes in and comes out is described as ``shapes.describe`` does, after whatever the module was called with before."""
    module, engine = _Counted(), object()
    observed, tape = _observed(twin, module, engine), twin.tape()
    tape.engine, recorder.current.call = engine, tape
    forms = _values()
    draw = random.Random(0)
    for args, kwargs in [*forms, *draw.choices(forms, k=300)]:
        (given, _), more = draw.choice(forms), draw.choice((None, torch.ones(2), (torch.ones(1, 2), None), [torch.ones(3)]))
        module.answer = lambda *_, given=given, more=more, **__: given or more
        tape.room = 1
        output = observed(*args, **kwargs)
        assert output is (given or more) or output == given
        row = [*tape.cut()]
        assert row[5] == shapes.describe((*args[:8], *kwargs.values()) if kwargs else args), (args, kwargs)
        assert row[6] == shapes.describe(output), output
        assert row[3] <= row[4] and row[7:] == [None, None] and row[:3] == [row[0], -1, INFOS[0]]


@pytest.mark.parametrize("twin", TWINS)
def test_types_of_everything(twin: Twin, running: None) -> None:
    """Every type of tensor that this torch has, after every other."""
    tensors = []
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        with contextlib.suppress(RuntimeError, NotImplementedError, TypeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "is deprecated"
            tensors.append(torch.empty(4, dtype=dtype))
    assert len(tensors) > 20
    engine, tape = object(), twin.tape()
    tape.engine, recorder.current.call = engine, tape
    for first, second in itertools.permutations(tensors, 2):
        observed, tape.room = _observed(twin, _Counted(), engine), 4
        for tensor in (first, first, first, second):
            observed(tensor)
        recorder.bind()  # forgets how many could not be read
        assert [row[0][1] for row in tape.cut()[5::9]] == [first.dtype] * 3 + [second.dtype]


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, torch.OutOfMemoryError])
def test_failing_forward(twin: Twin, running: None, error: type[BaseException]) -> None:
    """The very exception passes through, and the call is recorded as failed, with those inside of it that it left open."""
    module, engine = _Counted(), object()
    observed, tape = _observed(twin, module, engine), twin.tape()
    tape.engine, recorder.current.call, tape.room = engine, tape, 3
    raised = error("theirs")

    def fail(*_: Any, **__: Any) -> None:
        tape.enter(INFOS[1], (), 1)
        raise raised

    module.answer = fail
    with pytest.raises(error) as caught:
        observed(torch.ones(2))
    assert caught.value is raised and raised.__context__ is None and raised.__cause__ is None
    name = {"OutOfMemoryError": "torch.OutOfMemoryError"}.get(error.__name__, error.__name__)
    rows = [*tape.cut()]
    assert rows[2] is INFOS[1] and rows[7] == "_OTHER" and rows[11] is INFOS[0] and rows[16] == name
    assert tape.open_calls == 0


@pytest.mark.parametrize("twin", TWINS)
def test_call_that_another_has_ended(twin: Twin, running: None) -> None:
    """Where the frame of a call has gone while it ran, one of the same module that is open ends in its place, as what it is."""
    module, engine = _Counted(), object()
    observed, tape = _observed(twin, module, engine), twin.tape()
    tape.engine, recorder.current.call, tape.room = engine, tape, 9
    x = torch.ones(2)
    module.answer = lambda *_: (tape.leave(5), tape.enter(INFOS[0], ("other",), 1), x)[2]
    observed(x)
    rows = [*tape.cut()]
    assert [rows[place] for place in (0, 5, 9, 10, 14, 15)] == [0, shapes.describe(x), 1, -1, ("other",), shapes.describe(x)]
    module.answer = lambda *_: (tape.discard(), x)[1]
    observed(x)
    assert (tape.open_calls, tape.recorded) == (0, 0)


@pytest.mark.parametrize("twin", TWINS)
def test_who_is_recorded(twin: Twin, running: None) -> None:
    """Only calls of the engine whose request runs on this thread, and only as long as there is room; the others are called through."""
    module, engine = _Counted(), object()
    observed, tape = _observed(twin, module, engine), twin.tape()
    x = torch.ones(2)
    assert observed(x) is x  # no request
    recorder.current.call = tape
    assert observed(x) is x and (tape.recorded, tape.missed) == (0, 0)  # of another engine
    tape.engine = engine
    assert observed(x) is x and (tape.recorded, tape.missed) == (0, 1)  # no room
    tape.room = 1
    assert observed(x) is x and observed(x) is x and (tape.recorded, tape.missed, tape.room) == (1, 2, 0)
    tape.room = 1
    thread = threading.Thread(target=observed, args=(x,))
    thread.start()
    thread.join()
    assert (tape.recorded, tape.room) == (1, 1)


@pytest.mark.parametrize("twin", TWINS)
def test_own_failures(twin: Twin, running: None, monkeypatch: pytest.MonkeyPatch, contained: list[guard.Swallowed]) -> None:
    """What fails while a call is recorded is contained, and counted; the module runs once, and its output comes back."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("ours")

    class Collector:
        append = fail

    module, engine = _Counted(), object()
    observed, tape = _observed(twin, module, engine), twin.tape()
    tape.engine, recorder.current.call, tape.room = engine, tape, 9
    calls: list[Any] = []

    def answer(*args: Any) -> Any:
        calls.append(args)
        return {"output": args[0]}

    module.answer = answer
    tape.output_stats = Collector()
    assert list(observed(torch.ones(2))) == ["output"]
    assert (tape.recorded, tape.open_calls, len(calls)) == (0, 0, 1)
    assert [error.kind for error in contained] == ["RuntimeError"]
    tape.output_stats = None
    contained.clear()
    with _describe(monkeypatch, fail):
        for place in range(2):
            assert list(observed(torch.ones(3, 3))) == ["output"]
            assert (tape.recorded, tape.open_calls, len(calls)) == (0, 0, 2 + place)
    assert {error.kind for error in contained} == {"RuntimeError"} and contained[0].place == "module call"
    contained.clear()
    observed(torch.ones(2))
    assert tape.recorded == 1


@pytest.mark.parametrize("twin", TWINS)
def test_own_failures_keep_nothing(twin: Twin, running: None, monkeypatch: pytest.MonkeyPatch, contained: list[guard.Swallowed]) -> None:
    """What a module took and gave goes at once, though an exception of ours has passed frames that had it; the collector need not come."""

    def fail_at(form: type) -> Callable[..., Any]:
        def fail(*given: Any) -> Any:
            if type(given[-1]) is form:
                raise RuntimeError("ours")
            return ()

        return fail

    module, engine = _Counted(), object()
    observed, tape = _observed(twin, module, engine), twin.tape()
    tape.engine, recorder.current.call, tape.room = engine, tape, 9
    module.answer = lambda *_: [torch.ones(2)]
    gc.collect()
    gc.disable()
    try:
        for form in (tuple, list):
            with _describe(monkeypatch, fail_at(form)):
                x = torch.ones(3)
                seen = [weakref.ref(x)]
                seen.append(weakref.ref(observed(x, 5)[0]))
                del x
                assert [reference() for reference in seen] == [None, None]
                assert len(contained) == 1
                contained.clear()
    finally:
        gc.enable()


@pytest.mark.parametrize("twin", TWINS)
def test_clock_that_fails_once(twin: Twin, running: None, contained: list[guard.Swallowed]) -> None:
    """Where a call begins on the device is not known then; that it was made, and did not fail, is."""
    module, engine = _Counted(), object()
    observed, tape = _observed(twin, module, engine), twin.tape()
    tape.engine, recorder.current.call, tape.room = engine, tape, 9
    answers: list[Any] = [3, 2, RuntimeError("the driver")]

    def record() -> Any:
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    pool = SimpleNamespace(fast=None, record=record, seconds=lambda begins, ends: [0.5 for _ in begins])
    tape.clock = clock = twin.boundaries((pool,), 0, 0, perf_counter_ns)
    x = torch.ones(2)
    assert observed(x) is x
    assert (tape.open_calls, answers) == (0, [3])
    row = [*tape.cut()]
    assert (row[0], row[5], row[6], row[7]) == (0, shapes.describe(x), shapes.describe(x), None)
    assert clock.cut().seconds((pool,), -1, -1) == {} and [error.kind for error in contained] == ["RuntimeError"]
    contained.clear()


@pytest.mark.parametrize("twin", TWINS)
def test_log_handler_that_raises(twin: Twin, running: None, monkeypatch: pytest.MonkeyPatch, contained: list[guard.Swallowed]) -> None:
    """Telling of a failure of ours may fail as well: the module's output comes back."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("the disk is full")

    module, engine = _Counted(), object()
    observed, tape = _observed(twin, module, engine), twin.tape()
    tape.engine, recorder.current.call, tape.room = engine, tape, 9
    monkeypatch.setattr(guard, "_logged", set())
    monkeypatch.setattr(logging.getLogger("inferspan"), "handle", fail)
    x = torch.ones(3, 3)
    with _describe(monkeypatch, fail):
        assert observed(x) is x
    assert [error.kind for error in contained] == ["OSError"]
    contained.clear()


@in_c
def test_limit_of_recursion(running: None, contained: list[guard.Swallowed]) -> None:
    """A module that comes as close to it as it can without us is not kept from that, though there is no room to describe what it takes."""
    module, engine = _Counted(), object()
    module.answer = lambda x, depth: module(x, depth - 1) if depth else x

    def deepest() -> int:
        depth = 0
        while True:
            try:
                # Another shape each time, which has to be described.
                module(torch.ones(1, 1 + depth % 2), depth)
            except RecursionError:
                return depth - 1
            depth += 1

    plain = deepest()
    observed, tape = _observed(Twin(C.CallLog, C.ModuleCaller, C.Boundaries), module, engine), C.CallLog()
    tape.engine, recorder.current.call, tape.room = engine, tape, 10**6
    assert observed.attached and deepest() >= plain
    contained.clear()


@pytest.mark.parametrize("twin", TWINS)
def test_arguments_that_change_while_they_are_read(twin: Twin, running: None) -> None:
    """A mode of the program's may be asked for a shape, and may do anything then."""
    module, engine = _Counted(), object()
    observed, tape = _observed(twin, module, engine), twin.tape()
    tape.engine, recorder.current.call, tape.room = engine, tape, 99
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
    assert tape.open_calls == 0


class _Seen(ctypes.Structure):
    """DLPack's ``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
    )  # fmt: skip


class _Shaped:
    """What stands for a tensor where a test reads the sizes itself."""

    def __init__(self, size: int) -> None:
        self.shape, self.dtype, self.sizes = (size,), "float", (ctypes.c_int64 * 1)(size)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], int]]]:
    """C code takes ``_Shaped`` for tensors; each reading of sizes takes the last of these, and answers as it does."""
    answers: list[Callable[[], int]] = []

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Seen))
    def view(tensor: Any, place: Any) -> int:
        answer = answers.pop()() if answers else 0
        place.contents.ndim, place.contents.shape = 1, ctypes.addressof(tensor.sizes)
        return answer

    class Interface(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32 * 2), ("others", ctypes.c_void_p * 4), ("view", type(view)), ("last", ctypes.c_void_p))

    interface = Interface((1, 3), (None,) * 4, view, None)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    capsule = new(ctypes.addressof(interface), b"dlpack_exchange_api", None)
    monkeypatch.setattr(_Shaped, "__dlpack_c_exchange_api__", capsule, raising=False)
    monkeypatch.setattr(recorder, "Tensor", _Shaped)
    monkeypatch.setattr(recorder, "describe", lambda value: ((value.shape, value.dtype),) if isinstance(value, _Shaped) else ())
    recorder.bind()
    yield answers
    monkeypatch.undo()
    recorder.bind()


@in_c
def test_reading_that_lets_others_in(running: None, readings: list[Callable[[], int]]) -> None:
    """Another call of the module while the sizes of a tensor are read, and a reading that fails without a word, change no description."""
    module, engine = _Counted(), object()
    module.answer = lambda *_: None
    observed, tape = _observed(Twin(C.CallLog, C.ModuleCaller, C.Boundaries), module, engine), C.CallLog()
    tape.engine, recorder.current.call, tape.room = engine, tape, 99
    few, many = _Shaped(2), _Shaped(7)
    for _ in range(3):
        observed(few)
    readings.append(lambda: 0 * len([observed(many) for _ in range(3)]))
    for _ in range(3):
        observed(many)
    readings.append(lambda: -1)
    observed(few)
    observed(many)
    assert not readings
    assert [*tape.cut()][5::9] == [(((size,), "float"),) for size in (2, 2, 2, 7, 7, 7, 7, 7, 7, 2, 7)]


@in_c
def test_readings_that_fail(running: None, readings: list[Callable[[], int]]) -> None:
    """They take torch a millisecond each: after some of them sizes are no longer read in this way, and are right all the same."""
    engine, tape = object(), C.CallLog()
    tape.engine, recorder.current.call = engine, tape
    readings += [lambda: -1] * 200
    few, many = _Shaped(2), _Shaped(7)
    for _ in range(100):
        observed, tape.room = _observed(Twin(C.CallLog, C.ModuleCaller, C.Boundaries), _Counted(), engine), 4
        for tensor in (few, few, few, many):
            observed(tensor)
        assert [row[0][0] for row in tape.cut()[5::9]] == [(2,), (2,), (2,), (7,)]
    assert len(readings) == 200 - 32


@pytest.mark.parametrize("twin", TWINS)
def test_interrupt_while_recording(twin: Twin, running: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is no failure of ours: it passes."""

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    module, engine = _Counted(), object()
    observed, tape = _observed(twin, module, engine), twin.tape()
    tape.engine, recorder.current.call, tape.room = engine, tape, 9
    with _describe(monkeypatch, interrupted), pytest.raises(KeyboardInterrupt):
        observed(torch.ones(3, 3))
    assert observed(torch.ones(3, 3)).shape == (3, 3)


class _describe:
    """Both recorders describe by another function for a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
        self._monkeypatch, self._function = monkeypatch, function

    def __enter__(self) -> None:
        for name in ("describe", "describe_like"):
            self._monkeypatch.setattr(python_recorder, name, self._function)
        self._monkeypatch.setattr(recorder, "describe", self._function)
        recorder.bind()

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.undo()
        recorder.bind()


@pytest.mark.parametrize("twin", TWINS)
def test_nothing_is_kept_by_a_call(twin: Twin, running: None) -> None:
    """Neither inputs and outputs, nor the module once it is gone, nor what a call has raised."""
    module, engine = _Counted(), _Thing()
    observed, tape = _observed(twin, module, engine), twin.tape()
    tape.engine, recorder.current.call, tape.room = engine, tape, 99

    def fail(*_: Any) -> None:
        raise ValueError("theirs")

    x = torch.ones(2)
    seen: list[Any] = [weakref.ref(x), weakref.ref(module), weakref.ref(engine)]
    gc.collect()  # what other tests have left refers to the same facts
    counts = [sys.getrefcount(one) for one in (x, module, engine, fail, INFOS[0], tape)]
    observed(x)
    module.answer = fail
    for _ in range(3):
        with pytest.raises(ValueError, match="theirs"):
            observed(x)
    tape.discard()
    module.answer = _Counted().answer
    assert [sys.getrefcount(one) for one in (x, module, engine, fail, INFOS[0], tape)] == counts
    del x, module, engine, observed, tape
    recorder.current.call = None
    gc.collect()
    assert [reference() for reference in seen] == [None] * 3


# ----------------------------------------------------------------------------------------------------------------- boundaries
class _Clock:
    """A host clock that goes as it is told to."""

    now = 1_000_000

    def __call__(self) -> int:
        """Nanoseconds."""
        return self.now


def _timed(twin: Twin, seed: int, devices: int, *, pointers: bool) -> list[Any]:
    """Everything that comes of 300 random boundaries: events recorded, times read, what is still referred to."""
    draw, clock, fake = random.Random(seed), _Clock(), FakeCuda(devices, pointers=pointers)
    cuda = fake.torch_cuda()
    pools = tuple(cuda_events.DriverEvents(index, cuda, fake) for index in range(devices))
    marks = twin.boundaries(pools, 3_000, 40_000, clock)
    tensors: list[Any] = [torch.ones(1) for _ in range(4)] + [None, 5, (torch.ones(1), 2), ()]
    seen: list[Any] = []
    opened: list[tuple[int, bool]] = []
    number = 0
    for _ in range(300):
        clock.now += draw.choice((0, 500, 2_999, 3_000, 20_000, 60_000))
        fake.work[draw.randrange(devices)] += draw.random()
        fake.current_stream[0] = draw.choice((0, 0, 7))
        fake.capturing = {7} if draw.random() < 0.1 else set()
        inner, passed, now = draw.random() < 0.5, draw.choice(tensors), draw.choice((0, clock.now))
        action = draw.random()
        if action < 0.45:
            marks.enter(number, passed, now, inner=inner)
            opened.append((number, inner))
            number += 1
        elif action < 0.9 and opened:
            which, inner = opened.pop()
            marks.leave(which, passed, now, inner=inner)
        elif action < 0.92:
            tensors[draw.randrange(4)] = torch.ones(1)
        elif action < 0.95:
            marks.record()
        elif action < 0.97 and marks.last >= 0:
            fake.capturing = set()
            begin, ends = draw.choice((-1, 0)), marks.last
            cut = marks.cut()
            fake.reached = [draw.choice((0.0, 1e9)) for _ in range(devices)] if draw.random() < 0.3 else None
            with pools[0].reading():
                times = cut.seconds(pools, begin, ends)
            seen.append((times, cut.count, [cut.lane(device) for device in range(devices)]))
            for device, pool in enumerate(pools):
                pool.release(cut.lane(device))
            number = 0
            opened.clear()
        seen.append((marks.last, marks.recorded, fake.calls["cuEventRecord"], len(fake.recorded)))
    seen.append([sys.getrefcount(tensor) for tensor in tensors[:4]])
    seen.append([sorted(pool.free) for pool in pools])
    assert not fake.faults
    return seen


@in_c
@pytest.mark.parametrize("pointers", [False, True], ids=["functions", "addresses"])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_same_boundaries(seed: int, devices: int, pointers: bool) -> None:
    """Which boundaries get an event, on which stream, and what lies between them."""
    twin = Twin(C.CallLog, C.ModuleCaller, C.Boundaries)
    expected = _timed(PYTHON, seed, devices, pointers=False)
    assert _timed(twin, seed, devices, pointers=pointers) == expected


@pytest.mark.parametrize("twin", TWINS)
def test_clock_of_a_call(twin: Twin, running: None) -> None:
    """An observed call tells the clock of its request where it begins and ends, and what it takes and gives."""
    fake = FakeCuda(pointers=True)
    cuda = fake.torch_cuda()
    pools = (cuda_events.DriverEvents(0, cuda, fake),)
    clock = twin.boundaries(pools, 0, 10**12, perf_counter_ns)
    outer, inner, engine = _Counted(), _Counted(), object()
    inner_observed, tape = _observed(twin, inner, engine), twin.tape()
    outer.inner = inner
    outer.answer = lambda x: (fake.work.__setitem__(0, fake.work[0] + 2), inner_observed(x), fake.work.__setitem__(0, fake.work[0] + 1))[1]
    inner.answer = lambda x: (fake.work.__setitem__(0, fake.work[0] + 4), x + 1)[1]
    outer_observed = _observed(twin, outer, engine)
    tape.engine, recorder.current.call, tape.room, tape.clock = engine, tape, 9, clock
    outer_observed(torch.ones(2))
    marks = clock.cut()
    with pools[0].reading():
        times = marks.seconds(pools, -1, -1)
    # The inner one takes what the outer one took, and the outer one returns what it gave: two boundaries in all, and the work of the
    # outer one counts for what comes after them.
    assert {number: round(value * 1e3, 6) for number, value in times.items()} == {0: 6, 1: 6}
    assert fake.calls["cuEventRecord"] == marks.count == 2
    assert [*tape.cut()][::9] == [1, 0]


@pytest.mark.parametrize("twin", TWINS)
def test_clock_that_ends_while_it_records(twin: Twin) -> None:
    """Another thread may end the request while the driver is asked, and no event is left then."""
    fake = FakeCuda(pointers=True)

    def stream(index: int) -> int:
        clock.forget()
        pool.free.clear()
        return 0

    pool = cuda_events.DriverEvents(0, fake.torch_cuda()._replace(stream=stream), fake)
    clock = twin.boundaries((pool,), 0, 0, perf_counter_ns)
    pool.reserve()
    clock.enter(0, torch.ones(1))
    clock.leave(0, torch.ones(1))
    clock.record()
    assert fake.calls["cuEventRecord"] <= 1 and not fake.faults


def test_events_recorded_while_others_are_made() -> None:
    """The same, while a pool makes events: it does not wait for itself, and no slot is given twice."""
    fake: Any = FakeCuda()
    pool = cuda_events.DriverEvents(0, fake.torch_cuda(), fake)
    create = fake.cuEventCreate
    taken: list[int] = []

    def record_meanwhile(*arguments: Any) -> Any:
        fake.cuEventCreate = create
        taken.append(pool.record())
        return create(*arguments)

    fake.cuEventCreate = record_meanwhile
    thread = threading.Thread(target=lambda: taken.append(pool.record()), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert len(taken) == len(set(taken)) == 2 and min(taken) >= 0
    assert sorted([*taken, *pool.free]) == [*range(len(pool.events))] and not fake.faults


@pytest.mark.parametrize("twin", TWINS)
def test_clock_told_by_a_finalizer(twin: Twin) -> None:
    """The garbage collector may run anything while a boundary is noted, other boundaries of the same request included."""
    clock = twin.boundaries((), 10**12, 10**12, perf_counter_ns)
    count = 0

    class Nested:
        def __init__(self) -> None:
            self.circle = self

        def __del__(self) -> None:
            nonlocal count
            count += 1
            clock.enter(2 * count, torch.ones(1))

    threshold = gc.get_threshold()
    clock.enter(0)  # the others come in pairs, and now each place where there is no more room is in the middle of one
    try:
        for place in range(2000):
            gc.set_threshold(0)
            Nested()
            passed = torch.ones(1)
            gc.set_threshold(1)
            clock.enter(2 * place + 1, passed)  # makes a weak reference
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert count == 2000
    for place in range(4001):
        clock.leave(place)


@in_c
def test_half_made_objects_in_c(running: None) -> None:
    """What was deleted counts as ``None``, and what was not initialised does nothing."""
    module, engine = _Counted(), object()
    observed, tape = _observed(Twin(C.CallLog, C.ModuleCaller, C.Boundaries), module, engine), C.CallLog()
    tape.engine, recorder.current.call, tape.room = engine, tape, 9
    del tape.clock, tape.output_stats
    assert observed(5) == 5 and tape.recorded == 1 and tape.clock is None
    del tape.engine
    copy = C.CallLog()
    copy.adopt(tape)
    assert observed(5) == 5 and (copy.recorded, tape.recorded, copy.engine) == (1, 1, None)
    events = C.Events.__new__(C.Events)
    events.enabled = True
    pool = SimpleNamespace(fast=events, record=lambda: 7, seconds=lambda begins, ends: [0.5 for _ in begins])
    clock = C.Boundaries((pool,), 1, 1, perf_counter_ns)
    clock.record()
    marks = clock.cut()
    assert marks.lane(0) == [7] and marks.seconds((pool,), 0, 0) == {-1: 0.5}
    unbound = "from inferspan.capture.modules import _recorder as C\ntry: C.ModuleCaller(type('', (), {'_modules': 1}), 1, 2)()\nexcept RuntimeError: pass"
    assert subprocess.run([sys.executable, "-c", unbound], check=False).returncode == 0


@in_c
def test_loaded_again(running: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in use goes on, whoever imports the extension once more, by the same name or another."""
    module, engine = _Counted(), object()
    observed = _observed(Twin(C.CallLog, C.ModuleCaller, C.Boundaries), module, engine)
    monkeypatch.delitem(sys.modules, C.__name__)
    again = importlib.import_module(C.__name__)
    loader = importlib.machinery.ExtensionFileLoader("other._recorder", C.__file__)
    other = importlib.util.module_from_spec(importlib.util.spec_from_loader("other._recorder", loader))  # type: ignore[arg-type]
    loader.exec_module(other)
    for found in (C, again, other):
        tape = found.CallLog()
        tape.engine, recorder.current.call, tape.room = engine, tape, 9
        assert observed(5) == 5 and tape.recorded == 1


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
        lambda: C.CallLog().adopt(5),
        lambda: C.CallLog().begun_before("now"),
        lambda: C.Events(),
        lambda: C.Events([], [], None, None, None, 0, 0, 0, False),
        lambda: C.Boundaries(),
        lambda: C.Boundaries([1], 1, 1, None),
        lambda: C.Boundaries([cuda_events.EventPool(0, None)] * 9, 1, 1, None),  # type: ignore[arg-type]
        lambda: C.Boundaries((), 9, 9, None).enter(2**31 - 1, None, 5),
        lambda: C.Boundaries((), 9, 9, None).leave(-1, None, 5),
        lambda: C.bind(),
    ):
        assert _answer(call) in (TypeError, ValueError, AttributeError, OverflowError), call
    marks = C.Boundaries((), 1, 1, None).cut()
    assert (_answer(lambda: marks.lane(0)), _answer(lambda: marks.seconds((), 0, 0))) == (IndexError, ValueError)
    assert _answer(lambda: setattr(C.CallLog(), "room", "much")) is TypeError


def test_tensor_is_the_plain_one() -> None:
    """Subclasses are asked for nothing: what they answer may be code of theirs."""

    class Loud(Tensor):
        @property
        def shape(self) -> Any:  # type: ignore[override]
            raise AssertionError("asked")

    for param in TWINS:
        twin: Any = param.values[0]
        module, engine = _Counted(), object()
        observed, tape = _observed(twin, module, engine), twin.tape()
        tape.engine, recorder.current.call, tape.room = engine, tape, 9
        try:
            loud = torch.ones(2).as_subclass(Loud)
            assert observed(loud) is loud and observed((loud, 1)) is not None
        finally:
            recorder.current.call = None
        assert tape.recorded == 2


@pytest.mark.parametrize("broken", ["a file without bind", "another _call_impl", "another __call__"])
def test_what_is_not_as_expected_is_left_alone(broken: str) -> None:
    """An extension that is not what it says, and a torch whose calls somebody has replaced, cost a program nothing but speed."""
    code = f"""
    import sys, types
    import torch
    from torch import nn

    class Theirs:
        def __init__(self, function):
            self.function = function

        def __get__(self, module, kind):
            return self if module is None else lambda *args, **kwargs: self.function(module, *args, **kwargs)

    broken = {broken!r}
    if broken == "a file without bind":
        sys.modules["inferspan.capture.modules._recorder"] = types.ModuleType("inferspan.capture.modules._recorder")
        sys.modules["inferspan.capture.modules._recorder"].ABI = {extension.ABI}
    elif broken == "another _call_impl":
        nn.Module._call_impl = Theirs(nn.Module._call_impl)
    else:
        nn.Module.__call__ = Theirs(nn.Module.__call__)
    import inferspan
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    expected = model(torch.ones(1, 2))
    with inferspan.instrument(model, tracer_provider=provider, modules="all", nvml=False, host=False):
        found = model(torch.ones(1, 2))
    inferspan.flush()
    print(torch.equal(found, expected), sorted(span.name for span in exporter.get_finished_spans()))
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True ['forward Sequential', 'layer 0', 'layer 1']"
