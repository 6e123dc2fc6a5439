"""Outputs that are kept until a pass ends: which are, that counts are exact whatever the model writes, what is kept alive and launched.

Host memory replaces a device here: what decides and counts asks for no other.
"""

from __future__ import annotations

import random
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from inferspan.capture.values import host
from inferspan.capture.values.deferred import LARGEST_KEPT, MOST_BYTES, MOST_KEPT, PROOF, DeferredCounts, Stability
from tests.capture.values.test_counts import DTYPES, LAYOUTS, NAN, Launches, spoilt


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Other tests of this process may have compiled something."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


class _Request:
    """One request of a model, and what has been left out of its counts."""

    def __init__(self, stability: Stability) -> None:
        self.left_out: Counter[str] = Counter()
        self.counts = DeferredCounts(stability, self.left_out)
        self.kinds: dict[Any, int] = {}

    def keep(self, module: str, note: Any, tensor: Tensor) -> bool:
        """Whether an output is kept."""
        return self.counts.keep(module, note, tensor, self.kinds.setdefault((tensor.shape, tensor.dtype), len(self.kinds)))

    def read(self) -> dict[Any, Any]:
        """Counts by note."""
        return dict(self.counts.read())


def proven(*modules: str) -> Stability:
    """A model that has had a request in which no output of these modules has changed."""
    stability = Stability()
    request = _Request(stability)
    for _ in range(PROOF):
        for module in modules:
            assert not request.keep(module, None, torch.ones(3))
    request.read()
    return stability


def begun(stability: Stability, *modules: str) -> _Request:
    """A request whose first outputs of these modules have been compared."""
    request = _Request(stability)
    for module in modules:
        assert not request.keep(module, None, torch.ones(3))
    request.counts.flush()
    return request


# ------------------------------------------------------------------------------------------------------------------ what is kept
def test_outputs_are_kept_from_the_second_request_on() -> None:
    """In the first one some are compared, and in each later one the first."""
    stability = Stability()
    kept = []
    for _ in range(3):
        request = _Request(stability)
        kept.append([request.keep("a", index, torch.ones(2, 3)) for index in range(PROOF + 2)])
        request.read()
    assert kept == [[False] * (PROOF + 2)] + [[False] + [True] * (PROOF + 1)] * 2


def test_a_request_that_is_not_read_proves_nothing() -> None:
    """Its comparisons are not known."""
    stability = Stability()
    request = _Request(stability)
    for _ in range(PROOF):
        request.keep("a", None, torch.ones(3))
    request.counts.flush()
    assert not stability.is_proven("a")


def _of_a_large_memory() -> Tensor:
    return torch.ones(LARGEST_KEPT)[:4]


def _without_memory() -> Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def _in_inference_mode() -> Tensor:
    with torch.inference_mode():
        return torch.ones(4)


def _with_gradients() -> Tensor:
    return torch.ones(4, requires_grad=True) * 2


@pytest.mark.parametrize("make", [_of_a_large_memory, _without_memory, _in_inference_mode, _with_gradients])
def test_some_outputs_are_never_kept(make: Callable[[], Tensor]) -> None:
    """Those that have no version, would keep something large alive, or have no values."""
    request = begun(proven("a"), "a")
    assert not request.keep("a", "odd", make())
    assert request.read() == {}
    assert request.left_out == {}


def test_nothing_is_kept_once_something_was_compiled() -> None:
    """Neither in a request that begins then, nor in one that runs, from its next pass on."""
    stability = proven("a")
    running = begun(stability, "a")
    assert running.keep("a", 0, torch.ones(3))
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    running.counts.flush()
    assert not running.keep("a", 1, torch.ones(3))
    assert running.read() == {0: (0, 0, 0)}
    later = _Request(stability)
    assert [later.keep("a", index, torch.ones(3)) for index in range(3)] == [False] * 3
    torch.compiler.reset()


# ----------------------------------------------------------------------------------------------------------------- exact counts
@pytest.mark.parametrize("seed", range(10))
def test_counts_are_those_of_the_host(seed: int) -> None:
    """Of random outputs of any shape, dtype and layout, over several passes."""
    chance, names = random.Random(seed), ["a", "b", "c"]
    request = begun(proven(*names), *names)
    expected: dict[Any, Any] = {}
    for number in range(200):
        tensor = spoilt((4, chance.choice([5, 30]), 7), chance.choice(DTYPES), chance.randrange(9))
        tensor = LAYOUTS[chance.choice(sorted(set(LAYOUTS) - {"with gradients"}))](tensor)
        assert request.keep(chance.choice(names), number, tensor)
        expected[number] = host.counts(tensor)
        if chance.random() < 0.05:
            request.counts.flush()
    assert request.read() == expected
    assert request.left_out == {}


def _fill(tensor: Tensor) -> None:
    tensor.fill_(NAN)


def _fill_a_view(tensor: Tensor) -> None:
    tensor.view(-1)[:1].fill_(NAN)


def _fill_detached(tensor: Tensor) -> None:
    tensor.detach()[0] = NAN


def _replace(tensor: Tensor) -> None:
    tensor.data = torch.full((2, 3), NAN)


def _free(tensor: Tensor) -> None:
    tensor.untyped_storage().resize_(0)


def _resize(tensor: Tensor) -> None:
    tensor.resize_(7)


@pytest.mark.parametrize("change", [_fill, _fill_a_view, _fill_detached, _replace, _free, _resize])
def test_an_output_that_changes_is_not_counted(change: Callable[[Tensor], None]) -> None:
    """It is left out by reason, and outputs of its module are not kept any more; others of the same shape are counted."""
    stability = proven("a", "b")
    request = begun(stability, "a", "b")
    changed, others = torch.ones(2, 3), [spoilt((2, 3), torch.float32) for _ in range(3)]
    for index, other in enumerate(others):
        request.keep("b", index, other)
    assert request.keep("a", "changed", changed)
    change(changed)
    request.counts.flush()
    assert not request.keep("a", None, torch.ones(2, 3))
    expected: dict[Any, Any] = {index: host.counts(other) for index, other in enumerate(others)}
    assert request.read() == {"changed": None, **expected}
    assert request.left_out == {"changed in place": 1}
    assert not stability.is_proven("a")
    assert stability.is_proven("b")


def test_a_write_after_the_pass_is_not_seen() -> None:
    """By then outputs have been counted."""
    request = begun(proven("a"), "a")
    tensor = spoilt((2, 3), torch.float32)
    request.keep("a", "one", tensor)
    expected = host.counts(tensor)
    request.counts.flush()
    tensor.zero_()
    assert request.read() == {"one": expected}


def test_a_module_whose_outputs_change_without_a_version_is_never_kept() -> None:
    """The comparison shows it, even if only one output has changed."""
    stability = Stability()
    request = _Request(stability)
    outputs = [torch.ones(2, 3) for _ in range(PROOF)]
    for output in outputs:
        assert not request.keep("a", None, output)
    outputs[-1].data[0, 0] = 2.0
    request.read()
    assert not stability.is_proven("a")
    assert [_Request(stability).keep("a", None, torch.ones(2, 3)) for _ in range(3)] == [False] * 3


def test_the_comparison_is_one_of_bits() -> None:
    """NaN equals itself, and the two zeros differ."""
    for written, same in ((NAN, True), (-0.0, False)):
        stability = Stability()
        request = _Request(stability)
        for _ in range(PROOF):
            output = torch.tensor([NAN, 0.0])
            request.keep("a", None, output)
            output.data[0 if same else 1] = written
        request.read()
        assert stability.is_proven("a") == same


def test_a_module_that_has_begun_to_change_its_outputs_is_not_counted() -> None:
    """The request in which it does so compares one; the kept ones of the same request are left out, those of other modules are not."""
    stability = proven("a", "b")
    request = _Request(stability)
    first = torch.ones(3)
    request.keep("a", None, first)
    request.keep("b", None, torch.ones(3))
    first.data.zero_()
    assert request.keep("a", "a", torch.ones(3))
    assert request.keep("b", "b", torch.ones(3))
    assert request.read() == {"a": None, "b": (0, 0, 0)}
    assert request.left_out == {"changed in place": 1}
    assert not _Request(stability).keep("a", None, torch.ones(3))


# ---------------------------------------------------------------------------------------------------------------- what it costs
def test_what_is_kept_alive_is_bounded() -> None:
    """In bytes and in number, and nothing is after the pass."""
    for number, values in ((100, LARGEST_KEPT // 4), (2 * MOST_KEPT + 5, 1)):
        request, alive = begun(proven("a"), "a"), weakref.WeakSet[Tensor]()
        for note in range(number):
            output = torch.ones(values)
            alive.add(output)
            assert request.keep("a", note, output)
            del output
            assert len(alive) <= MOST_KEPT
            assert len(alive) * values * 4 <= MOST_BYTES
        request.counts.flush()
        assert len(alive) == 0
        assert len(request.read()) == number


def test_compared_outputs_are_bounded() -> None:
    """What is over the bound is compared in a later pass."""
    stability = Stability()
    request, alive = _Request(stability), weakref.WeakSet[Tensor]()
    for module in range(40):
        output = torch.ones(LARGEST_KEPT // 4)
        alive.add(output)
        request.keep(str(module), None, output)
    del output
    assert len(alive) * LARGEST_KEPT == MOST_BYTES
    request.counts.flush()
    assert len(alive) == 0


def test_a_pass_is_four_operations() -> None:
    """None at the call; one that joins outputs of one shape, and three that count."""
    request = begun(proven("a"), "a")
    outputs = [torch.ones(1, 1, 64) for _ in range(96)]
    request.keep("a", None, outputs[0])
    request.counts.flush()  # makes the limits of the dtype
    with Launches() as launches:
        for output in outputs:
            request.keep("a", None, output)
    assert launches.names == []
    # ``flush`` hides what it launches from modes.
    flush: Any = DeferredCounts.flush
    with Launches() as launches:
        flush.__wrapped__(request.counts)
    assert launches.names[0] in ("stack", "cat")
    assert [name for name in launches.names[1:] if name not in ("view", "_reshape_alias")] == ["bitwise_and_", "ge", "sum"]


def test_what_was_kept_can_be_dropped() -> None:
    """As at the end of a request that another thread has ended."""
    request = begun(proven("a"), "a")
    alive = weakref.WeakSet([output := torch.ones(3)])
    request.keep("a", None, output)
    del output
    request.counts.drop()
    assert len(alive) == 0
    assert request.read() == {}
