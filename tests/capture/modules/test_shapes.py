"""What is said of arguments and results, and what is not touched."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from inferspan.capture.modules.shapes import describe, describe_like

ONE = torch.ones(2, 3)
PAIR = ((2, 3), torch.float32)


class Explosive:
    """Raises at every look."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"somebody asked for {name}")

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("somebody iterated")

    def __bool__(self) -> bool:
        raise AssertionError("somebody asked for the truth")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("somebody compared")

    __hash__ = object.__hash__


def _plain(value: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [(tuple(shape), dtype) for shape, dtype in describe(value)]


def test_containers_in_order() -> None:
    """Tensors in tuples, lists and dicts are found in order, four levels deep."""
    value = (ONE, [ONE.int(), {"deep": ({"too deep": [ONE]},)}], {"key": ONE.half()}, None, 3, "text")
    assert _plain(value) == [PAIR, ((2, 3), torch.int32), ((2, 3), torch.float16)]
    assert _plain(ONE) == [PAIR] and _plain(torch.tensor(1.0)) == [((), torch.float32)]


def test_bounds() -> None:
    """At most eight tensors; cyclic and very deep containers end."""
    assert len(describe([ONE] * 100)) == 8
    cyclic: list[Any] = [ONE]
    cyclic.append(cyclic)
    deep: Any = ONE
    for _ in range(3000):
        deep = (deep,)
    assert len(describe(cyclic)) == 4 and describe(deep) == ()


def test_unknown_objects_are_left_alone() -> None:
    """Nothing but tensors and plain containers is looked into; a generator is not consumed."""
    generator = (part for part in [ONE])
    assert describe((Explosive(), generator, {"key": Explosive()}, ONE)) == ((ONE.shape, torch.float32),)
    assert next(generator) is ONE


def test_overridden_containers() -> None:
    """Overrides of container subclasses are not called."""

    class Loud(dict[str, Any]):
        def values(self) -> Any:
            raise AssertionError("somebody called an override")

        __iter__ = values

    class LoudTuple(tuple[Any, ...]):
        def __iter__(self) -> Any:
            raise AssertionError("somebody called an override")

    assert _plain(Loud(a=ONE)) == [PAIR] and _plain(LoudTuple((ONE,))) == [PAIR]


def test_odd_tensors() -> None:
    """Meta, sparse, quantised, 8-bit and complex tensors have shape and dtype; nested ones are left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.quantize_per_tensor(ONE, 0.1, 0, torch.qint8)
        nested = [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout) for layout in (torch.strided, torch.jagged)]
        sparse = ONE.to_sparse()
    odd = [ONE.to("meta"), sparse, quantized, ONE.to(torch.float8_e4m3fn), ONE.to(torch.complex64), ONE.bool()]
    assert [tuple(shape) for shape, _ in describe(odd)] == [(2, 3)] * 6
    assert describe(nested) == ()


def test_tensor_subclass_that_logs() -> None:
    """A subclass that is told of everything that is done with its tensors is not told of ours."""
    done = []

    class Logs(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            done.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    logs = torch.ones(2, 3).as_subclass(Logs)
    assert describe(logs) == describe((logs,)) == describe_like((), (logs,)) == ((torch.Size([2, 3]), torch.float32),)
    assert not done


def test_tensor_subclass_that_refuses() -> None:
    """A subclass whose shape cannot be read costs its own description only."""

    class Shy(Tensor):
        @property
        def shape(self) -> Any:  # type: ignore[override]
            raise RuntimeError("no shape")

    shy = torch.ones(2).as_subclass(Shy)
    assert _plain([shy, ONE]) == [PAIR]


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    NESTED: Tensor = torch.nested.nested_tensor([ONE, ONE])
_CALLS: list[tuple[Any, ...]] = [
    (),
    (ONE,),
    (ONE, ONE),
    (ONE, None, 3, True, "word"),
    (ONE.double(),),
    (torch.ones(2, 3),),
    (torch.nn.Parameter(ONE),),
    ((ONE, ONE), ONE),
    ((ONE, None), ONE),
    ((ONE, (ONE,)), ONE),
    ([ONE], ONE),
    ({"key": ONE}, ONE),
    (object(), ONE),
    (ONE, object()),
    (NESTED,),
    (ONE, NESTED),
    (ONE,) * 8,
    (ONE,) * 9,
    (None,) * 15 + (ONE,),
    (None,) * 16 + (ONE,),
    ((None,) * 16 + (ONE,),),
    ((),),
]


@pytest.mark.parametrize("value", _CALLS)
@pytest.mark.parametrize("earlier", _CALLS)
def test_what_an_earlier_call_was_like_changes_nothing(earlier: tuple[Any, ...], value: tuple[Any, ...]) -> None:
    """A description that is looked for by way of an earlier one is that which is found without."""
    assert describe_like(describe(earlier), value) == describe(value)
