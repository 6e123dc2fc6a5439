"""Inputs and outputs of recorded calls are described as ``shapes.describe`` does, whatever the module was called with before."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import random
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from inferspan.capture.modules import recorder, shapes
from tests.capture.modules.recorders import IMPLEMENTATIONS, IN_C_CODE, INFOS, Counted, Implementation, described_by, in_c, observe, rows_of


@dataclass
class _State:
    """Not a container of Python, but looked into."""

    held: Any


class _Opaque:
    """Not looked into."""

    def __init__(self, held: Any) -> None:
        self.held = held


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
            ((one, _State(one)), {}), ((one, _State(None)), {}), ((one, _Opaque(one)), {}), ((one, SimpleNamespace(held=one)), {}),
            ((one,), {"state": _State(one)}), ((one, MappingProxyType({"a": one})), {}), ((one,), {"state": _Opaque(one)}),
            ((one,) * 20, {}), ((), {f"k{place}": one for place in range(20)}), ((one,) * 9, {"mask": y}), ((((one, x), y), z), {}),
        ]  # fmt: skip
    return [*forms, ((), {}), ((None,), {}), ((nested,), {}), ((x, nested), {}), (((nested,),), {}), ((tuple([x] * 20),), {})]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_shapes_of_everything(implementation: Implementation, running: None) -> None:
    """What goes in and comes out is described as ``shapes.describe`` does, after whatever the module was called with before."""
    module, engine = Counted(), object()
    observed, log = observe(implementation, module, engine), implementation.log()
    log.engine, recorder.current.call = engine, log
    forms, x = _values(), torch.ones(1, 2)
    ordered = OrderedDict(a=x, b=torch.ones(3))
    ordered.move_to_end("a")
    answers: list[Any] = [None, torch.ones(2), (x, None), [torch.ones(3)], ordered, {"a": x, "b": (x, x)}, {"a": x, "b": _State(x)}, {}]
    answers += [{"a": _Opaque(x), "c": x}, {place: x for place in range(20)}, {"a": {"b": x}}, {"a": torch.ones(3), "b": None}]
    draw = random.Random(0)
    for args, kwargs in [*forms, *draw.choices(forms, k=600)]:
        (given, _), more = draw.choice(forms), draw.choice(answers)
        module.answer = lambda *_, given=given, more=more, **__: given or more
        log.calls_left = 1
        output = observed(*args, **kwargs)
        assert output is (given or more) or output == given
        (row,) = rows_of(log)
        assert row[5] == shapes.describe((*args[:8], *kwargs.values()) if kwargs else args), (args, kwargs)
        assert row[6] == shapes.describe(output), output
        assert row[3] <= row[4]
        assert row[7:] == (None, None)
        assert row[1:3] == (-1, INFOS[0])


@in_c
@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch does not give sizes to C")
def test_new_sizes_are_described_once(running: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by each layer: Python takes 20 us for what a decoder layer gets."""
    asked: list[Any] = []

    def describe(value: Any) -> Any:
        asked.append(value)
        return shapes.describe(value)

    engine, log = object(), IN_C_CODE.log()
    log.engine, recorder.current.call = engine, log
    layers = [Counted() for _ in range(8)]
    for layer in layers:
        layer.answer = lambda hidden, **_: (hidden, None)
    with described_by(monkeypatch, describe):
        observers = [observe(IN_C_CODE, layer, engine) for layer in layers]
        for size in (5, 1, 7, 1):
            log.calls_left = len(layers)
            for observer in observers:
                observer(torch.ones(1, size), places=(torch.ones(size), torch.ones(size)), cache=_Opaque(None), mask=None)
            columns = log.cut().columns()
            assert {*columns.inputs} == {shapes.describe((torch.ones(1, size), torch.ones(size), torch.ones(size)))}
            assert {*columns.outputs} == {shapes.describe(torch.ones(1, size))}
    assert len(asked) == 6


@in_c
def test_kinds_of_arguments_are_not_kept_alive(running: None) -> None:
    """Nor is a class that is made at the place of a collected one taken for it."""
    engine, log = object(), IN_C_CODE.log()
    log.engine, recorder.current.call = engine, log
    observer, x = observe(IN_C_CODE, Counted(), engine), torch.ones(2)
    for turn in range(40):
        kind = _Opaque if turn % 2 else _State
        made: Any = type("Made", (), {}) if turn % 2 else dataclass(type("Made", (), {"__annotations__": {"held": Any}}))
        one = made() if turn % 2 else made(x)
        reference = weakref.ref(made)
        log.calls_left = 1
        observer(x, one)
        assert log.cut().columns().inputs == [shapes.describe((x, kind(x)))]
        del one, made
        gc.collect()
        assert reference() is None


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_types_of_everything(implementation: Implementation, running: None) -> None:
    """Every type of tensor that this torch has, after every other."""
    tensors = []
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        with contextlib.suppress(RuntimeError, NotImplementedError, TypeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "is deprecated"
            tensors.append(torch.empty(4, dtype=dtype))
    assert len(tensors) > 20
    engine, log = object(), implementation.log()
    log.engine, recorder.current.call = engine, log
    for first, second in itertools.permutations(tensors, 2):
        observed, log.calls_left = observe(implementation, Counted(), engine), 4
        for tensor in (first, first, first, second):
            observed(tensor)
        recorder.bind()  # forgets how many could not be read
        assert [inputs[0][1] for inputs in log.cut().columns().inputs] == [first.dtype] * 3 + [second.dtype]


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
    module, engine = Counted(), object()
    module.answer = lambda *_: None
    observed, log = observe(IN_C_CODE, module, engine), IN_C_CODE.log()
    log.engine, recorder.current.call, log.calls_left = engine, log, 99
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
    assert log.cut().columns().inputs == [(((size,), "float"),) for size in (2, 2, 2, 7, 7, 7, 7, 7, 7, 2, 7)]


@in_c
def test_readings_that_fail(running: None, readings: list[Callable[[], int]]) -> None:
    """They take torch a millisecond each: after some of them sizes are no longer read in this way, and are right all the same."""
    engine, log = object(), IN_C_CODE.log()
    log.engine, recorder.current.call = engine, log
    readings += [lambda: -1] * 200
    few, many = _Shaped(2), _Shaped(7)
    for _ in range(100):
        observed, log.calls_left = observe(IN_C_CODE, Counted(), engine), 4
        for tensor in (few, few, few, many):
            observed(tensor)
        assert [inputs[0][0] for inputs in log.cut().columns().inputs] == [(2,), (2,), (2,), (7,)]
    assert len(readings) == 200 - 32
