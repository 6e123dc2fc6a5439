"""Observed modules with a call, a forward or a dictionary of their own run what they would run unobserved."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # so that it can tell when something is compiled
from torch import Tensor, nn

from inferspan import semconv
from tests.capture.modules.observed import ONES, Holder, Scaled, run
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached

pytestmark = pytest.mark.usefixtures("nothing_compiled")



@pytest.mark.parametrize("own", ["partial", "function"])
def test_own_forward_of_the_instance(telemetry: Telemetry, own: str) -> None:
    """A forward that somebody has put on the instance is observed, and is there afterwards, the same object."""
    part = Scaled()
    original = part.forward
    mine: Any = functools.partial(Scaled.forward, part) if own == "partial" else lambda x: original(x) + 1
    part.forward = mine  # type: ignore[method-assign]
    model = Holder(part)
    run(telemetry, model, lambda parts: None)
    assert vars(part)["forward"] is mine
    assert len(telemetry.modules()) == 1
    twin = run(telemetry, model, lambda parts: copy.copy(parts[0]))
    twin(ONES)
    assert vars(twin)["forward"] is mine and len(telemetry.modules()) == 2


def test_replaced_while_it_runs(telemetry: Telemetry) -> None:
    """A wrapper that another library puts around forward in the middle of a pass stays, and is observed with what is inside of it."""
    part = Scaled()
    model = Holder(part)

    def wrap(parts: Any) -> None:
        inner = parts[0].forward
        parts[0].forward = lambda x: inner(x) + 1

    run(telemetry, model, wrap)
    theirs = vars(part)["forward"]
    assert torch.equal(part(ONES), ONES * 3)
    before = len(telemetry.modules())
    run(telemetry, model, lambda parts: None)
    assert vars(part)["forward"] is theirs
    assert len(telemetry.modules()) == before + 1


def test_attributes_are_set_on_the_own_one(telemetry: Telemetry) -> None:
    """A function keeps what is set on it in a pass, and loses what is deleted; a method refuses."""

    def own(x: Tensor) -> Tensor:
        own_forward: Any = model.parts[0].forward
        own_forward.calls = getattr(own_forward, "calls", 0) + 1
        own_forward.seen = True
        del own_forward.seen
        return x + 1

    def inside(parts: Any) -> None:
        with pytest.raises(AttributeError):
            parts[1].forward.calls = 1
        with pytest.raises(AttributeError):
            del parts[1].forward.calls

    part = Scaled()
    part.forward = own  # type: ignore[method-assign, assignment]
    model = Holder(part, Scaled())
    run(telemetry, model, inside)
    assert vars(own) == {"calls": 1}


def test_removed_while_it_runs(telemetry: Telemetry) -> None:
    """A program that deletes the instance's forward in the middle of a pass gets what the class has."""
    part = Scaled()
    model = Holder(part)
    part.forward = torch.relu  # type: ignore[method-assign, assignment]
    run(telemetry, model, lambda parts: parts[0].__dict__.pop("forward") and None)
    assert "forward" not in vars(part) and torch.equal(part(ONES), ONES * 2)


class PropertyForward(nn.Module):
    """Hands its forward out by a property, which comes before the instance's dictionary."""

    @property
    def forward(self) -> Any:
        return lambda x: x + 1

    @forward.setter
    def forward(self, value: Any) -> None:
        raise AttributeError("no")


class OwnLookup(nn.Module):
    """Looks every name up in its own way."""

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class OwnCall(Scaled):
    """Is called in its own way."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) + 1


class CallPastTheSlot(Scaled):
    """Is called in a way that does not look at the slot."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super()._call_impl(*args, **kwargs) + 1


class CallOfTheBase(Scaled):
    """Names its base, which need not be the next one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return nn.Module.__call__(self, *args, **kwargs) + 1


def _one_more(call: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(call)(lambda *args, **kwargs: call(*args, **kwargs) + 1)


class DecoratedCall(Scaled):
    """Is called by what a decorator has made."""

    @_one_more
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class CheckpointedCall(OwnCall):
    """Is called as layers of transformers until 5.17 are, on top of another method that is like this one."""

    checkpointing = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.checkpointing and self.training:
            return functools.partial(super().__call__, **kwargs)(*args)
        return super().__call__(*args, **kwargs)


class OwnImplementation(Scaled):
    """Has its own way of what calls run."""

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        return super()._call_impl(*args, **kwargs) + 1


class OwnSlot(Scaled):
    """Has something of its own in the place of a compiled call."""

    def _compiled_call_impl(self, *args: Any, **kwargs: Any) -> Any:
        return self._call_impl(*args, **kwargs) + 1


class PropertySlot(Scaled):
    """Has a property there, which comes before what its dictionary holds."""

    @property
    def _compiled_call_impl(self) -> None:  # type: ignore[override]
        return None


class CopiedDictionary(Scaled):
    """Shows a copy of its dictionary."""

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return dict(vars(nn.Module)["__dict__"].__get__(self))


@pytest.mark.parametrize(
    ("make", "hooks"),
    [
        (PropertyForward, 0),
        (OwnImplementation, 0),
        (OwnCall, 0),
        (CheckpointedCall, 0),
        (CallPastTheSlot, 1),
        (CallOfTheBase, 1),
        (DecoratedCall, 1),
        (OwnLookup, 1),
        (OwnSlot, 1),
        (PropertySlot, 1),
        (CopiedDictionary, 1),
        (functools.partial(nn.LazyLinear, 2), 1),
    ],
)
def test_unusual_modules(telemetry: Telemetry, make: Callable[[], nn.Module], hooks: int) -> None:
    """What runs is what would run; where the slot might not be looked at, registered hooks observe the module."""
    torch.manual_seed(0)
    model = Holder(make(), Scaled())
    expected = model(ONES)
    torch.manual_seed(0)
    model = Holder(make(), Scaled())
    assert run(telemetry, model, attached) == {"slot": 2 - hooks, "hooks": hooks, "left": 0}
    assert torch.equal(model(ONES), expected)
    assert len(telemetry.modules()) == 2


@pytest.mark.parametrize("kind", [OwnCall, CheckpointedCall])
def test_what_a_call_of_its_own_changes_is_not_the_output_of_the_module(telemetry: Telemetry, kind: type[Scaled]) -> None:
    """A hook would see what torch's call returns, and so does the slot: the batch that the method adds stands nowhere."""

    class Doubled(kind):  # type: ignore[misc, valid-type]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return torch.cat([super().__call__(*args, **kwargs)] * 2)

    assert run(telemetry, Holder(Doubled()), attached) == {"slot": 1, "hooks": 0, "left": 0}
    (module,) = telemetry.modules()
    assert (module.attributes or {})[semconv.OUTPUT_SHAPES] == ("1x2",)


def test_a_copy_with_a_call_of_its_own_is_not_taken_for_the_observed_module(telemetry: Telemetry) -> None:
    """In the middle of a pass it runs, and is not recorded."""

    def inside(parts: Any) -> Any:
        twin = OwnCall.__new__(OwnCall)
        twin.__dict__.update(parts[0].__dict__)
        twin.by = 5.0
        return twin(ONES)

    assert torch.equal(run(telemetry, Holder(OwnCall()), inside), ONES * 6)
    assert len(telemetry.modules()) == 1


@pytest.mark.parametrize("where", ["module", "every module", "backward", "every backward"])
def test_hooks_that_come_in_the_middle(telemetry: Telemetry, where: str) -> None:
    """A hook that the program registers in a pass runs from then on, on the observed module, and what it returns counts."""
    part = Scaled()
    seen: list[Any] = []

    def hook(module: Any, *given: Any) -> Any:
        seen.append(module)
        return given[-1] * 10 if "backward" not in where else None

    def inside(parts: Any) -> Any:
        found = {
            "module": part.register_forward_hook,
            "every module": nn.modules.module.register_module_forward_hook,
            "backward": part.register_full_backward_hook,
            "every backward": nn.modules.module.register_module_full_backward_hook,
        }
        register: Any = found[where]
        handle = register(hook)
        x = torch.ones(1, 2, requires_grad=True)
        answer = part(x)
        answer.sum().backward()
        handle.remove()
        return answer.detach(), x.grad

    answer, gradient = run(telemetry, Holder(part), inside)
    times = 1 if "backward" in where else 10
    assert torch.equal(answer, ONES * 2 * times) and torch.equal(gradient, ONES * 2 * times)
    assert seen == [part] and len(telemetry.modules()) == 2


@pytest.mark.parametrize("place", ["class", "instance", "torch"])
def test_implementations_that_are_replaced(telemetry: Telemetry, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that puts its own ``_call_impl`` somewhere in the middle of a pass is not cut short."""
    part = Scaled()
    original = nn.Module._call_impl

    def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs) + (1 if self is part else 0)

    def inside(parts: Any) -> Any:
        with monkeypatch.context() as patch:
            if place == "instance":
                patch.setattr(part, "_call_impl", functools.partial(theirs, part))
            else:
                patch.setattr(Scaled if place == "class" else nn.Module, "_call_impl", theirs, raising=place != "class")
            return part(ONES)

    assert torch.equal(run(telemetry, Holder(part), inside), ONES * 3)
    assert len(telemetry.modules()) == 2


@pytest.mark.parametrize("change", ["forward of the class", "class of the module"])
def test_follows_the_class(telemetry: Telemetry, change: str) -> None:
    """A pass goes on with what the class of a module becomes in the middle of it, as a lookup of forward would, and is recorded."""

    class Before(Scaled):
        pass

    class Tripled(Scaled):
        def forward(self, x: Tensor, *, self_: float = 0.0, **more: Any) -> Tensor:
            return x * 3

    model = Holder(Before(), Before())

    def inside(parts: Any) -> None:
        parts[0](ONES)
        if change == "forward of the class":
            Before.forward = Tripled.forward  # type: ignore[method-assign, assignment]
        else:
            parts[0].__class__ = Tripled

    model.inside = inside
    with telemetry.instrument(model, modules="all"):
        found = model(ONES)
    assert torch.equal(found, ONES * (9 if change == "forward of the class" else 6))
    assert len(telemetry.modules()) == 3
    telemetry.check()
