"""Changes of a model's structure between two requests: the extension and Python see the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from inferspan import semconv
from inferspan.capture.compile.state import SLOT
from inferspan.capture.modules import hooks, recorder
from inferspan.capture.modules.hooks import ModuleObservers
from inferspan.settings import Settings
from tests.cases.telemetry import Telemetry


class Block(nn.Module):
    """A module with a child; classes of tests are made of it, because they change ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, hidden: Any) -> Any:
        return self.linear(hidden)


def _add(model: Any) -> None:
    model.more = nn.Linear(2, 2)


def _remove(model: Any) -> None:
    del model[1]


def _replace(model: Any) -> None:
    model[0].linear = nn.Linear(2, 2)


def _reorder(model: Any) -> None:
    children = list(model[0]._modules.items())
    model[0]._modules.clear()
    model[0]._modules.update(reversed(children))


def _into_the_slot(model: Any) -> None:
    model[0].__dict__[SLOT] = lambda *given: given


def _compiled_forward(model: Any) -> None:
    model[0].forward = torch.compile(model[0].forward)


def _compiled_class(model: Any) -> None:
    type(model[0]).forward = torch.compile(type(model[0]).forward)


def _nothing(model: Any) -> None:
    model[0].linear.weight.data.zero_()


def _forward_of_the_instance(model: Any) -> None:
    inner = model[0].forward
    model[0].forward = lambda hidden: inner(hidden)


def _forward_of_the_class(model: Any) -> None:
    inner = type(model[0]).forward
    type(model[0]).forward = lambda self, hidden: inner(self, hidden)


def _model() -> Any:
    kind = type("Kind", (Block,), {"forward": Block.forward})
    model = nn.Sequential(kind(), nn.ReLU(), kind())
    model[0].after = nn.Identity()
    return model


@pytest.fixture(params=["extension", "python"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison by the extension, and without it."""
    if request.param == "python":
        monkeypatch.setattr(hooks, "same_structure", lambda *given: False)
    elif not recorder.IN_C:
        pytest.skip("no C extension")


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("change", [_add, _remove, _replace, _reorder, _into_the_slot, _compiled_forward, _compiled_class])
def test_changes(change: Callable[[Any], None]) -> None:
    """Modules that were added, taken out, replaced, put in another order or compiled are selected again."""
    model = _model()
    engine = ModuleObservers(model, Settings())
    engine.prepare()
    before = engine.structure
    change(model)
    engine.prepare()
    assert engine.structure == before + 1


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("change", [_nothing, _forward_of_the_instance, _forward_of_the_class])
def test_what_changes_no_structure(change: Callable[[Any], None]) -> None:
    """Other weights, and another ``forward`` that is not compiled."""
    model = _model()
    engine = ModuleObservers(model, Settings())
    before = engine.structure
    change(model)
    engine.prepare()
    assert engine.structure == before


@pytest.mark.usefixtures("either")
def test_a_compiled_function_at_the_place_of_another() -> None:
    """The class's ``forward`` is compared as an object: memory of one that is gone may be used again."""
    model = _model()
    kind: Any = type(model[0])
    for _ in range(20):
        kind.forward = lambda self, hidden: self.linear(hidden)
        engine = ModuleObservers(model, Settings())
        before = engine.structure
        kind.forward = Block.forward
        kind.forward = _like_compiled(Block.forward)
        engine.prepare()
        assert engine.structure == before + 1


def _like_compiled(function: Any) -> Any:
    """A function with what ``torch.compile`` puts on those that it returns."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    wrapper._torchdynamo_orig_callable = function  # type: ignore[attr-defined]
    return wrapper


class Interrupted:
    """A descriptor of ``forward`` in which Ctrl-C arrives when its class is asked for it."""

    def __init__(self) -> None:
        self.armed = False

    def __get__(self, module: Any, kind: Any) -> Any:
        if module is None and self.armed:
            raise KeyboardInterrupt
        return Block.forward if module is None else Block.forward.__get__(module, kind)


@pytest.mark.usefixtures("either")
def test_an_interrupt_passes() -> None:
    """Ctrl-C in the middle of the comparison is the program's."""
    descriptor = Interrupted()
    kind = type("Kind", (Block,), {"forward": descriptor})
    model: Any = kind()
    engine = ModuleObservers(model, Settings())
    descriptor.armed = True
    with pytest.raises(KeyboardInterrupt):
        engine.prepare()


def test_a_slot_that_the_program_takes_between_two_requests(telemetry: Telemetry) -> None:
    """It stays where it is, and the other modules are observed as before."""
    model = _model()
    telemetry.instrument(model, modules="all")
    model(torch.ones(1, 2))
    theirs = lambda hidden: hidden + 1  # noqa: E731
    model[1].__dict__[SLOT] = theirs
    model(torch.ones(1, 2))
    assert model[1].__dict__[SLOT] is theirs
    names = [span.name for span in telemetry.spans()]
    assert [names.count(f"layer {place}") for place in range(3)] == [2, 1, 2]


def test_a_hook_that_comes_between_two_requests(telemetry: Telemetry) -> None:
    """The second one sees the output that the hook returns, as if it had been there from the first."""
    model = _model()
    telemetry.instrument(model, modules="all")
    model(torch.ones(1, 2))
    model[1].register_forward_hook(lambda module, args, output: torch.cat([output, output]))
    model(torch.ones(1, 2))
    found = [dict(span.attributes or {}) for span in telemetry.spans() if span.name == "layer 1"]
    assert [attributes[semconv.OUTPUT_SHAPES] for attributes in found] == [("1x2",), ("2x2",)]


@pytest.mark.skipif(not recorder.IN_C, reason="no C extension")
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (recorder.attach_callers, ([()], {}, [])),
        (recorder.attach_callers, ((), {}, [])),
        (recorder.detach_callers, ((), {})),
        (recorder.same_structure, ([()], [], object)),
        (recorder.same_structure, ([], [()], object)),
        (recorder.same_structure, ([], [], None)),
    ],
)
def test_other_arguments(function: Any, arguments: tuple[Any, ...]) -> None:
    """Functions of the extension refuse what they are not made for."""
    with pytest.raises(TypeError):
        function(*arguments)


@pytest.mark.skipif(not recorder.IN_C, reason="no C extension")
def test_what_is_no_caller_is_left_on_the_list() -> None:
    """Python takes it off."""
    attached = [object()]
    recorder.detach_callers(attached, {})
    assert len(attached) == 1
