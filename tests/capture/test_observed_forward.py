"""What stands in the place of a module's ``forward`` during a recorded pass changes nothing that a program can see."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import threading
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo  # so that it can tell when something is compiled
from torch import Tensor, nn

from inferspan import semconv
from inferspan.capture.observed_forward import OWNED
from tests.attached import attached
from tests.cases.telemetry import Telemetry

ONES = torch.ones(1, 2)


class Scaled(nn.Module):
    """Multiplies by a number that is no parameter."""

    def __init__(self, by: float = 2.0) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor, *, self_: float = 0.0, **more: Any) -> Tensor:
        """Scale and shift."""
        return x * self.by + self_ + sum(more.values())


class Holder(nn.Module):
    """Runs what it is told to in the middle of a pass."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.inside: Callable[[Any], Any] = lambda parts: None
        self.got: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.got = self.inside(self.parts)
        for part in self.parts:
            x = part(x)
        return x


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Other tests may have compiled something in this process, after which registered hooks do the work."""
    torch._dynamo.reset()


@pytest.fixture
def telemetry() -> Any:
    """Spans and metrics in memory."""
    found = Telemetry()
    yield found
    found.close()


def _run(telemetry: Telemetry, model: Holder, inside: Callable[[Any], Any]) -> Any:
    """Run one recorded pass with something in the middle; returns what that gave."""
    model.inside = inside
    with telemetry.instrument(model, modules="all"):
        model(ONES)
    assert set(attached(model.parts).values()) == {0}
    telemetry.check()
    return model.got


def test_looks_like_the_own_one(telemetry: Telemetry) -> None:
    """Signature, name, documentation and owner are those of the module's own forward."""
    plain = Scaled()
    model = Holder(Scaled())
    got = _run(
        telemetry,
        model,
        lambda parts: (
            "forward" in vars(parts[0]),
            inspect.signature(parts[0].forward),
            parts[0].forward.__name__,
            parts[0].forward.__doc__,
            parts[0].forward.__self__ is parts[0],
            parts[0].forward.__func__,
        ),
    )
    assert got == (True, inspect.signature(plain.forward), "forward", "Scale and shift.", True, Scaled.forward)


def test_arguments_pass_as_they_are(telemetry: Telemetry) -> None:
    """Positional and named arguments of any name reach the module."""
    part = Scaled()
    got = _run(telemetry, Holder(part), lambda parts: parts[0](ONES, self_=1.0, args=2.0, kwargs=3.0, module=4.0))
    assert torch.equal(got, ONES * 12)
    shapes = [(span.attributes or {}).get(semconv.INPUT_SHAPES) for span in telemetry.modules()]
    assert shapes == [("1x2",), ("1x2",)]


def test_direct_calls_are_seen(telemetry: Telemetry) -> None:
    """A program that calls forward() itself gets a span, which registered hooks would not give; once, not twice."""
    _run(telemetry, Holder(Scaled()), lambda parts: parts[0].forward(ONES))
    assert [span.name for span in telemetry.modules()] == ["layer 0"] * 2


@pytest.mark.parametrize("own", ["partial", "function"])
def test_own_forward_of_the_instance(telemetry: Telemetry, own: str) -> None:
    """A forward that somebody has put on the instance is observed, and is there afterwards, the same object."""
    part = Scaled()
    original = part.forward
    mine: Any = functools.partial(Scaled.forward, part) if own == "partial" else lambda x: original(x) + 1
    part.forward = mine  # type: ignore[method-assign]
    model = Holder(part)
    _run(telemetry, model, lambda parts: None)
    assert vars(part)["forward"] is mine
    assert len(telemetry.modules()) == 1
    twin = _run(telemetry, model, lambda parts: copy.copy(parts[0]))
    twin(ONES)
    assert vars(twin)["forward"] is mine and len(telemetry.modules()) == 2


def test_replaced_while_it_runs(telemetry: Telemetry) -> None:
    """A wrapper that another library puts around ours in the middle of a pass stays, and ours inside it goes silent."""
    part = Scaled()
    model = Holder(part)

    def wrap(parts: Any) -> None:
        inner = parts[0].forward
        parts[0].forward = lambda x: inner(x) + 1

    _run(telemetry, model, wrap)
    theirs = vars(part)["forward"]
    assert torch.equal(part(ONES), ONES * 3)
    before = len(telemetry.modules())
    _run(telemetry, model, lambda parts: None)
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
    _run(telemetry, model, inside)
    assert vars(own) == {"calls": 1}


def test_removed_while_it_runs(telemetry: Telemetry) -> None:
    """A program that deletes the instance's forward in the middle of a pass gets what the class has."""
    part = Scaled()
    model = Holder(part)
    part.forward = torch.relu  # type: ignore[method-assign, assignment]
    _run(telemetry, model, lambda parts: parts[0].__dict__.pop("forward") and None)
    assert "forward" not in vars(part) and torch.equal(part(ONES), ONES * 2)


@pytest.mark.parametrize("how", ["copy", "dictionary", "replica"])
def test_shallow_copies_run_by_themselves(telemetry: Telemetry, how: str) -> None:
    """A copy of the module's dictionary, as copy.copy() or DataParallel make it, runs with its own attributes, and keeps nothing of ours."""

    def clone(parts: Any) -> tuple[Any, Tensor, Tensor, Tensor]:
        part = parts[0]
        if how == "copy":
            twin = copy.copy(part)
        elif how == "replica":
            twin = part._replicate_for_data_parallel()
        else:
            twin = Scaled.__new__(Scaled)
            twin.__dict__ = dict(part.__dict__)
        twin.by = 5.0
        first, own, second = twin(ONES), part(ONES), twin(ONES)
        return twin, first, own, second

    model = Holder(Scaled())
    twin, first, own, second = _run(telemetry, model, clone)
    assert [torch.equal(one, ONES * by) for one, by in ((first, 5), (own, 2), (second, 5))] == [True] * 3
    assert "forward" not in vars(twin) and OWNED not in vars(twin)
    # Both calls of the module itself, and none of a copy, which is no part of the model.
    assert len(telemetry.modules()) == 2


def test_shallow_copy_with_hooks_of_its_own(telemetry: Telemetry) -> None:
    """A copy that has got a hook, so that torch takes its slow path, still runs by itself."""

    def clone(parts: Any) -> Tensor:
        twin = copy.copy(parts[0])
        twin._forward_hooks = twin._forward_hooks.copy()
        twin.register_forward_hook(lambda *_: None)
        twin.by = 5.0
        return twin(ONES)

    assert torch.equal(_run(telemetry, Holder(Scaled()), clone), ONES * 5)


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


@pytest.mark.parametrize("make", [PropertyForward, OwnLookup, functools.partial(nn.LazyLinear, 2)])
def test_where_forward_is_found_elsewhere(telemetry: Telemetry, make: Callable[[], nn.Module]) -> None:
    """Where the dictionary's forward would not be what runs, registered hooks observe the module."""
    model = Holder(make(), Scaled())
    assert _run(telemetry, model, attached) == {"forward": 1, "hooks": 1, "left": 0}
    assert len(telemetry.modules()) == 2


def test_hooks_of_the_user_are_seen(telemetry: Telemetry) -> None:
    """A module with somebody's hooks on it is observed by hooks: what those return is its output, and what they raise its failure."""
    part = Scaled()
    model = Holder(part)
    part.register_forward_hook(lambda module, given, output: output[:, :1])
    _run(telemetry, model, lambda parts: None)
    assert [(span.attributes or {})[semconv.OUTPUT_SHAPES] for span in telemetry.modules()] == [("1x1",)]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_failures_are_told_by_their_type(telemetry: Telemetry, error: type[BaseException]) -> None:
    """Whatever passes through a module stands on its span, and reaches the caller as it is."""
    raised = error("it")

    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise raised

    class Recovers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Fails()

        def forward(self, x: Tensor) -> Tensor:
            try:
                self.inner(x)
            except BaseException as caught:
                return x if caught is raised else torch.zeros(0)
            return torch.zeros(0)

    model = Holder(Recovers())
    _run(telemetry, model, lambda parts: None)
    assert torch.equal(model(ONES), ONES)
    assert {(span.attributes or {}).get(semconv.ERROR_TYPE) for span in telemetry.modules()} == {None, error.__name__}


def test_the_fast_path_of_torch_stays(telemetry: Telemetry) -> None:
    """An encoder of torch that takes its fused path without hooks takes it observed as well, and gives the same bits."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False).eval()
    x = torch.randn(1, 3, 8)

    def fused() -> tuple[Tensor, bool]:
        with torch.inference_mode(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            y = encoder(x)
        return y, any(event.key == "aten::_transformer_encoder_layer_fwd" for event in profile.key_averages())

    plain, path = fused()
    with telemetry.instrument(encoder, modules="all"):
        observed = fused()
    assert path and observed[1] and torch.equal(plain, observed[0])
    assert [span.name for span in telemetry.modules()] == ["layer 0", "layer 1"]


def test_other_threads_pass_through(telemetry: Telemetry) -> None:
    """A thread without a request of its own runs the same modules unseen while another one's pass is recorded."""
    part = Scaled()
    model = Holder(part)

    def elsewhere(parts: Any) -> Tensor:
        found: list[Tensor] = []
        thread = threading.Thread(target=lambda: found.append(parts[0](ONES)))
        thread.start()
        thread.join()
        return found[0]

    assert torch.equal(_run(telemetry, model, elsewhere), ONES * 2)
    assert len(telemetry.modules()) == 1


def test_nothing_is_kept(telemetry: Telemetry) -> None:
    """A module dies when the program drops it, without the cyclic collector, also if its pass was recorded."""
    model = Holder(Scaled(), Scaled())
    with telemetry.instrument(model, modules="all"):
        model(ONES)
        gone = weakref.ref(model.parts[0])
        gc.disable()
        try:
            del model.parts[0]
            assert gone() is None
        finally:
            gc.enable()


def test_traced_by_dynamo_in_the_middle_of_a_pass(telemetry: Telemetry) -> None:
    """A function that is compiled in the middle of an observed pass makes as many graphs and breaks as without us; all calls are seen."""

    def graphs(instrumented: bool) -> tuple[int, int, list[Tensor]]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = Holder(Scaled(3.0))
        compiled = torch.compile(lambda part, x: part(x) + 1, backend="eager")
        found: list[Tensor] = []
        handle = telemetry.instrument(model, modules="all") if instrumented else None
        kinds = []

        def inside(parts: Any) -> None:
            kinds.append(attached(parts))
            found.append(compiled(parts[0], ONES))
            kinds.append(attached(parts))

        model.inside = inside
        for _ in range(2):
            model(ONES)
        if handle is not None:
            handle.uninstrument()
            nothing = {"forward": 0, "hooks": 0, "left": 0}
            assert kinds == [{**nothing, "forward": 1}, *[{**nothing, "hooks": 1}] * 3]
        model(ONES)
        counters = torch._dynamo.utils.counters
        return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()), found

    plain, observed = graphs(False), graphs(True)
    assert plain[:2] == observed[:2] == (1, 0)
    assert all(torch.equal(one, other) for one, other in zip(plain[2], observed[2], strict=True))
    assert len(telemetry.modules()) == 2
    assert [(span.attributes or {}).get(semconv.UNOBSERVED) for span in telemetry.forwards()] == ["modules: compiled in parts"] * 2


@pytest.mark.parametrize("first", [0, 1])
def test_a_model_inside_a_model(telemetry: Telemetry, first: int) -> None:
    """Where a model and a part of it are instrumented, each module has one span, of the innermost; and whoever goes first, all comes off."""
    inner = Holder(Scaled())
    model = Holder(inner, Scaled())
    handles = [telemetry.instrument(model, modules="all"), telemetry.instrument(inner, modules="all")]
    inner.inside = lambda parts: handles[first].uninstrument()
    model(ONES)
    telemetry.check()
    handles[1 - first].uninstrument()
    assert set(attached(model).values()) == {0}
    assert all("forward" not in vars(one) for one in model.modules())


def test_each_module_has_one_span(telemetry: Telemetry) -> None:
    """Modules of a model inside a model stand under the inner request and nowhere else; its own call is that request."""
    inner = Holder(Scaled())
    model = Holder(inner, Scaled())
    with telemetry.instrument(model, modules="all"), telemetry.instrument(inner, modules="all"):
        model(ONES)
    telemetry.check()
    assert sorted(span.name for span in telemetry.spans()) == ["forward Holder", "forward Holder", "layer 0", "layer 1"]


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


def test_taken_for_a_pattern(telemetry: Telemetry) -> None:
    """A wrapper that looks like our stand-in, as libraries make them with functools, carries nothing of ours and can be copied."""
    part = Scaled()
    model = Holder(part)

    def inside(parts: Any) -> Any:
        inner = parts[0].forward
        parts[0].forward = functools.update_wrapper(functools.partial(lambda x: inner(x) + 1), inner)
        return vars(inner), inner == Scaled.forward.__get__(part), hash(inner) == hash(Scaled.forward.__get__(part))

    assert _run(telemetry, model, inside) == ({}, True, True)
    theirs = vars(part)["forward"]
    assert set(vars(theirs)) == {"__module__", "__name__", "__qualname__", "__doc__", "__annotations__", "__wrapped__"}
    assert torch.equal(copy.deepcopy(part)(ONES), ONES * 3)


@pytest.mark.parametrize("then", ["call", "compile", "record"])
def test_put_back_after_the_pass(telemetry: Telemetry, then: str) -> None:
    """A patch of forward that begins in a pass and ends after it puts ours back: it works as the module does, and goes when it is called."""

    class Before(Scaled):
        pass

    part = Before()
    model = Holder(part)
    patch = mock.patch.object(part, "forward", side_effect=lambda x: x * 5)
    _run(telemetry, model, lambda parts: patch.start() and None)
    patch.stop()
    assert "forward" in vars(part)
    model.inside = lambda parts: None
    if then == "compile":
        assert torch.equal(torch.compile(model, fullgraph=True, backend="eager")(ONES), ONES * 2)
    if then == "record":
        _run(telemetry, model, lambda parts: None)
    else:
        Before.forward = lambda _, x: x * 7  # type: ignore[method-assign, assignment, misc]
        assert torch.equal(part(ONES), ONES * 7)
    assert "forward" not in vars(part)
