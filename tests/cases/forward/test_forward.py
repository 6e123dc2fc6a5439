"""Plain forward passes in situations that broke other tools: inputs, exceptions, recursion, hooks of the user, training."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from inferspan import semconv
from tests.cases.forward.nets import HIDDEN, LAYERS, Block, Net, Outer, Recursive, fail, names
from tests.cases.telemetry import Telemetry


def test_keyword_inputs_are_described(telemetry: Telemetry) -> None:
    """A module that is called by keyword has its inputs' shapes, at the root and below."""
    telemetry.instrument(model := Net())
    model(hidden=HIDDEN)
    telemetry.check()
    assert {(span.attributes or {})[semconv.INPUT_SHAPES] for span in telemetry.spans()} == {("2x4",)}
    assert names(telemetry) == LAYERS


def test_error_of_a_submodule(telemetry: Telemetry) -> None:
    """The user's exception passes as the same object, and the spans of every module that it passed through say so."""
    telemetry.instrument(model := Net())
    error = ValueError("once")

    def throw() -> None:
        raise error

    model.layers[1].before = throw
    with pytest.raises(ValueError, match="once") as caught:
        model(hidden=HIDDEN)
    assert caught.value is error
    model.layers[1].before = None
    model(hidden=HIDDEN)
    telemetry.check()
    kinds = [(span.name, (span.attributes or {}).get(semconv.ERROR_TYPE)) for span in telemetry.spans()]
    assert kinds[:4] == [("forward Net", "ValueError"), ("layer 0", None), ("layer 0 linear", None), ("layer 1", "ValueError")]
    assert [error for _, error in kinds[4:]] == [None] * 5


def test_error_that_the_parent_recovers_from(telemetry: Telemetry) -> None:
    """A failure inside the model that never leaves it marks the module's span and not the request."""
    telemetry.instrument(model := Net(recover=True))
    model.layers[0].before = fail
    model(hidden=HIDDEN)
    telemetry.check()
    kinds = {span.name: (span.attributes or {}).get(semconv.ERROR_TYPE) for span in telemetry.spans()}
    # Registered hooks, which observe once something has been compiled in the process, cannot tell what it was.
    assert kinds.pop("layer 0") in ("ValueError", "_OTHER")
    assert set(kinds.values()) == {None}


def test_recursion(telemetry: Telemetry) -> None:
    """A model that calls itself is one request with the inner calls as module spans, each inside its caller's."""
    telemetry.instrument(model := Recursive())
    model(HIDDEN)
    telemetry.check()
    assert len(telemetry.roots()) == 1 and len(telemetry.forwards()) == 1
    assert len([name for name in names(telemetry) if name == "linear"]) == 3


def test_recursion_with_failure(telemetry: Telemetry) -> None:
    """An exception from the innermost call ends all of them, and the next call is a request of its own."""
    telemetry.instrument(model := Recursive())
    handle = model.linear.register_forward_hook(lambda *_: fail())
    with pytest.raises(ValueError, match="layer failed"):
        model(HIDDEN)
    handle.remove()
    model(HIDDEN)
    telemetry.check()
    assert [(span.attributes or {}).get(semconv.ERROR_TYPE) for span in telemetry.forwards()] == ["ValueError", None]


def test_models_in_models(telemetry: Telemetry) -> None:
    """Two instrumented models, one inside the other: the inner calls are nested requests of the outer's trace."""
    inner = Net()
    telemetry.instrument(inner)
    telemetry.instrument(outer := Outer(inner))
    outer(hidden=HIDDEN)
    inner(hidden=HIDDEN)
    telemetry.check()
    found = [(span.name, span.parent is None, bool((span.attributes or {}).get(semconv.NESTED))) for span in telemetry.forwards()]
    assert found == [
        ("forward Outer", True, False),
        ("forward Net", False, True),
        ("forward Net", False, True),
        ("forward Net", True, False),
    ]


@pytest.mark.parametrize("order", ["before", "after"])
def test_hooks_of_the_user_that_raise(telemetry: Telemetry, order: str) -> None:
    """A raising hook of the user behaves as without us, whichever was registered first, and its call ends as an error."""
    model = Net()

    def spoil(*_: Any) -> None:
        raise LookupError("hook")

    def put() -> list[Any]:
        return [
            model.register_forward_pre_hook(lambda *_: seen.append("pre")),
            model.register_forward_hook(spoil),
            model.register_forward_hook(lambda *_: seen.append("always"), always_call=True),
        ]

    seen: list[str] = []
    if order == "before":
        put()
    telemetry.instrument(model)
    if order == "after":
        put()
    for _ in range(2):
        with pytest.raises(LookupError, match="hook"):
            model(hidden=HIDDEN)
    telemetry.close()
    telemetry.check()
    assert seen == ["pre", "always"] * 2
    # A hook that runs after ours fails a call that we have seen return.
    assert len(telemetry.forwards()) == 2
    if order == "before":
        assert {(span.attributes or {}).get(semconv.ERROR_TYPE) for span in telemetry.forwards()} == {"LookupError"}


def test_pre_hook_of_the_user_that_raises(telemetry: Telemetry) -> None:
    """A pre-hook that raises after ours leaves nothing open."""
    model = Net()
    telemetry.instrument(model)
    hook = model.register_forward_pre_hook(lambda *_: fail())
    with pytest.raises(ValueError, match="layer failed"):
        model(hidden=HIDDEN)
    hook.remove()
    model(hidden=HIDDEN)
    telemetry.close()
    telemetry.check()
    assert len(telemetry.forwards()) == 2 and all(span.parent is None for span in telemetry.forwards())


def test_root_that_returns_nothing(telemetry: Telemetry) -> None:
    """None is a result like any other, also inside an except block of the caller."""

    class Silent(nn.Module):
        def forward(self, hidden: Tensor) -> None:
            return None

    telemetry.instrument(model := Silent())
    assert model(HIDDEN) is None
    try:
        fail()
    except ValueError:
        assert model(HIDDEN) is None
    telemetry.check()
    assert [(span.attributes or {}).get(semconv.ERROR_TYPE) for span in telemetry.forwards()] == [None, None]


def test_direct_forward_is_no_error(telemetry: Telemetry) -> None:
    """``model.forward()`` bypasses every hook and computes as ever."""
    telemetry.instrument(model := Net())
    assert torch.equal(model.forward(hidden=HIDDEN), Net.forward(model, hidden=HIDDEN))
    telemetry.check()
    assert telemetry.spans() == []


def test_generator_result_is_not_consumed(telemetry: Telemetry) -> None:
    """A module that returns a generator hands the very object to its caller, unread."""

    class Lazy(nn.Module):
        def forward(self, hidden: Tensor) -> Iterator[Tensor]:
            return (hidden + number for number in range(3))

    telemetry.instrument(model := Lazy())
    assert len(list(model(HIDDEN))) == 3
    telemetry.check()


class Trained(nn.Module):
    """A model that checkpoints its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = checkpoint(self.layers[0], hidden, use_reentrant=False)
        result: Tensor = self.layers[1](hidden)
        return result


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_training_is_bit_identical(telemetry: Telemetry, autocast: bool) -> None:
    """A training step with checkpointing has the same gradients to the bit, and the recomputation in backward is no request."""
    model = Trained()

    def step() -> list[Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(HIDDEN).float().square().sum()
        loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    want = step()
    handle = telemetry.instrument(model, modules="all", output_stats=True)
    got = step()
    handle.uninstrument()
    telemetry.check()
    assert len(want) == 4 and all(torch.equal(one, other) for one, other in zip(want, got, strict=True))
    assert len(telemetry.roots()) == 1


def test_nothing_is_kept_alive(telemetry: Telemetry) -> None:
    """Inputs, outputs, exceptions and the model itself die when the program drops them, without the cyclic collector."""
    gc.collect()
    gc.disable()
    try:
        model = Net()
        handle = telemetry.instrument(model, output_stats=True)
        hidden = HIDDEN.clone()
        output = model(hidden=hidden)
        seen = [weakref.ref(hidden), weakref.ref(output)]
        del hidden, output
        assert [one() for one in seen] == [None, None]
        bad = torch.ones(2, 5)
        with contextlib.suppress(RuntimeError):
            model(hidden=bad)
        reference = weakref.ref(bad)
        del bad
        assert reference() is None
        alive = weakref.ref(model)
        del model
        assert alive() is None
        handle.uninstrument()
    finally:
        gc.enable()
    telemetry.check()
