"""What stands in the place of a module's compiled call during a recorded pass changes nothing that a program can see."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import io
import linecache
import pickle
import re
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo  # so that it can tell when something is compiled
from torch import Tensor, nn

from inferspan import semconv
from inferspan.capture.compile.state import SLOT
from inferspan.capture.modules import hooks as module_hooks
from inferspan.capture.modules import observer as observed_call
from inferspan.capture.modules.observer import ObservedCall
from inferspan.capture.modules.recorder import FRAMES, IN_C
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


def test_forward_is_the_own_one(telemetry: Telemetry) -> None:
    """In the middle of a pass a module's forward is what it always is; one key of its dictionary is ours, and its name is torch's."""
    model = Holder(Scaled())
    before = set(vars(model.parts[0]))
    got = _run(telemetry, model, lambda parts: (parts[0].forward == Scaled.forward.__get__(parts[0]), set(vars(parts[0]))))
    assert got == (True, before | {SLOT})
    assert set(vars(model.parts[0])) == before


def test_frames_of_a_call(telemetry: Telemetry) -> None:
    """A module runs below no more Python frames than without us, of torch's or ours; C code adds none, and takes the place of one."""

    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            frame: Any = inspect.currentframe()
            names = []
            while frame.f_code.co_name != "forward" or frame.f_locals.get("self") is self:
                names.append(frame.f_code.co_name)
                frame = frame.f_back
            found.append(names)
            return x

    found: list[list[str]] = []
    model = Holder(Counts())
    model(ONES)
    _run(telemetry, model, lambda parts: None)
    plain, observed = found
    assert plain == ["forward", "_call_impl", "_wrapped_call_impl"]
    assert observed == ["forward", *([] if IN_C else ["__call__"]), "_wrapped_call_impl"]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_ordinary_call_is_known_by_counting(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Frames are looked at only where the counts of references say that somebody has a copy; that would be half of the cost of a call."""
    looked: list[Any] = []
    original = ObservedCall._instead

    def look(self: Any, *frames: int) -> Any:
        looked.append(self)
        return original(self, *(one + 1 for one in frames or (FRAMES,)))

    monkeypatch.setattr(ObservedCall, "_instead", look)
    inner = Holder(Scaled(), nn.Linear(2, 2))
    model = Holder(inner, Scaled())
    inner.inside = lambda parts: parts[0](ONES, self_=1.0) + parts[1](input=ONES)
    barrier = threading.Barrier(threads)
    model.inside = lambda parts: barrier.wait(20)
    with telemetry.instrument(model, modules="all"):
        running = [threading.Thread(target=model, args=(ONES,)) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    assert len(telemetry.modules()) == 6 * threads
    # Python code cannot count who is inside of a call at the same time.
    assert not looked or (threads > 1 and not IN_C)


def test_arguments_pass_as_they_are(telemetry: Telemetry) -> None:
    """Positional and named arguments of any name reach the module."""
    part = Scaled()
    got = _run(telemetry, Holder(part), lambda parts: parts[0](ONES, self_=1.0, args=2.0, kwargs=3.0, module=4.0))
    assert torch.equal(got, ONES * 12)
    shapes = [(span.attributes or {}).get(semconv.INPUT_SHAPES) for span in telemetry.modules()]
    assert shapes == [("1x2",), ("1x2",)]


def test_direct_calls_are_none(telemetry: Telemetry) -> None:
    """A program that calls forward() itself gets no span for it, as no hook would run."""
    _run(telemetry, Holder(Scaled()), lambda parts: parts[0].forward(ONES))
    assert [span.name for span in telemetry.modules()] == ["layer 0"]


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
    """A wrapper that another library puts around forward in the middle of a pass stays, and is observed with what is inside of it."""
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


@pytest.mark.parametrize("how", ["copy", "dictionary", "same dictionary", "replica", "hooks of its own"])
def test_shallow_copies_run_by_themselves(telemetry: Telemetry, how: str) -> None:
    """A copy of the module's dictionary, as copy.copy() or DataParallel make it, runs as what it is, and keeps nothing of ours."""

    class Twin(Scaled):
        def forward(self, x: Tensor, *, self_: float = 0.0, **more: Any) -> Tensor:
            return x * 5

    def clone(parts: Any) -> tuple[Any, Tensor, Tensor, Tensor]:
        part = parts[0]
        if how == "copy":
            twin = copy.copy(part)
        elif how == "replica":
            twin = part._replicate_for_data_parallel()
        elif how == "hooks of its own":
            twin = Scaled()
            twin.__dict__.update({key: value for key, value in vars(part).items() if not key.endswith("_hooks")})
        else:
            twin = Twin.__new__(Twin)
            twin.__dict__ = part.__dict__ if how == "same dictionary" else dict(part.__dict__)
        if how != "same dictionary":
            twin.by = 5.0
        first, own, second = twin(ONES), part(ONES), twin(ONES)
        return twin, first, own, second

    model = Holder(Scaled())
    twin, first, own, second = _run(telemetry, model, clone)
    assert [torch.equal(one, ONES * by) for one, by in ((first, 5), (own, 2), (second, 5))] == [True] * 3
    assert set(vars(twin)) - {"_is_replica"} == set(vars(Scaled()))
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


@pytest.mark.parametrize("named", [{}, {"self_": 1.0}])
def test_copies_cost_nothing_where_there_are_none(telemetry: Telemetry, named: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary call, the first as the thousandth, looks for no module that has got a copy."""
    looked = []
    monkeypatch.setattr(ObservedCall, "_instead", lambda self: looked.append(self))

    def inside(parts: Any) -> None:
        for _ in range(1000):
            parts[0](ONES, **named)

    _run(telemetry, Holder(Scaled()), inside)
    assert not looked


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
        (OwnCall, 1),
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
    assert _run(telemetry, model, attached) == {"slot": 2 - hooks, "hooks": hooks, "left": 0}
    assert torch.equal(model(ONES), expected)
    assert len(telemetry.modules()) == 2


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

    answer, gradient = _run(telemetry, Holder(part), inside)
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

    assert torch.equal(_run(telemetry, Holder(part), inside), ONES * 3)
    assert len(telemetry.modules()) == 2


@pytest.mark.parametrize("by", ["slot", "hooks"])
def test_script_and_trace_in_the_middle_of_a_pass(telemetry: Telemetry, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchScript makes of an observed module what it makes of a plain one."""
    if by == "hooks":
        monkeypatch.setattr(module_hooks, "can_observe", lambda module: False)

    def inside(parts: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # TorchScript refuses a module with a hook that it cannot script, whoever it is from.
            made = [torch.jit.trace(parts[0], ONES), *([torch.jit.script(parts[0])] if by == "slot" else [])]
        return [(one(ONES).tolist(), re.sub(r"___torch_mangle_\d+\.", "", str(one.graph))) for one in made]

    torch.manual_seed(0)
    # What has no annotations of its own has those of nn.Module, the slot's among them.
    part = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Sequential(nn.ReLU()))
    plain = inside([part])
    model = Holder(part)
    observed = _run(telemetry, model, inside)
    assert observed == plain


@pytest.mark.parametrize("make", [torch.jit.script, lambda part: torch.jit.trace(part, ONES)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_parts_of_torchscript(telemetry: Telemetry, make: Callable[[nn.Module], Any]) -> None:
    """A part that TorchScript runs is one call, and what is inside of it none."""
    model = Holder(make(nn.Sequential(Scaled().eval(), nn.ReLU()) if make is not torch.jit.script else nn.Sequential(nn.ReLU())), Scaled())
    expected = model(ONES)
    _run(telemetry, model, lambda parts: None)
    assert torch.equal(model(ONES), expected) and "layer 1" in [span.name for span in telemetry.modules()]


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "save"])
def test_whole_copies(telemetry: Telemetry, how: str) -> None:
    """A copy that is made in the middle of a pass is a plain module."""

    def clone(parts: Any) -> Any:
        if how == "deepcopy":
            return copy.deepcopy(parts[0])
        if how == "pickle":
            return pickle.loads(pickle.dumps(parts[0]))
        file = io.BytesIO()
        torch.save(parts[0], file)
        file.seek(0)
        return torch.load(file, weights_only=False)

    twin = _run(telemetry, Holder(nn.Linear(2, 2)), clone)
    assert set(vars(twin)) == set(vars(nn.Linear(2, 2))) and twin(ONES).shape == (1, 2)


def test_compiled_in_the_middle_of_a_pass(telemetry: Telemetry) -> None:
    """What ``module.compile()`` puts into the slot stays there."""
    part = Scaled()
    model = Holder(part)
    _run(telemetry, model, lambda parts: parts[0].compile(backend="eager"))
    assert vars(part)[SLOT] is not None and type(vars(part)[SLOT]).__name__ == "function"
    assert torch.equal(model(ONES), ONES * 2)


def test_hooks_of_the_user_are_seen(telemetry: Telemetry) -> None:
    """A module with somebody's hooks on it is observed by hooks: what those return is its output, and what they raise its failure."""
    part = Scaled()
    model = Holder(part)
    part.register_forward_hook(lambda module, given, output: output[:, :1])
    _run(telemetry, model, lambda parts: None)
    assert [(span.attributes or {})[semconv.OUTPUT_SHAPES] for span in telemetry.modules()] == [("1x1",)]


def _interrupted_at(number: int, model: nn.Module) -> bool:
    """Run a pass with Ctrl-C before a line of what attaches and detaches, counted through the pass; whether there are as many lines."""
    left = number

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # Python asks for signals between calls, and not where a block begins or ends.
        if event == "line" and not text.startswith(("with ", "try:", "finally:")):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return line

    def call(frame: FrameType, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename in (module_hooks.__file__, observed_call.__file__) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        model(ONES)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("by", ["slot", "hooks"])
def test_interrupts_while_it_is_attached(telemetry: Telemetry, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C wherever modules are given observers or lose them: the next pass runs, and all comes off in the end."""
    if by == "hooks":
        monkeypatch.setattr(module_hooks, "can_observe", lambda module: False)
    number = 0
    interrupted = True
    while interrupted:
        number += 1
        model = Holder(Scaled(), nn.Sequential(Scaled()))
        with telemetry.instrument(model, modules="all"):
            interrupted = _interrupted_at(number, model)
            assert torch.equal(model(ONES), ONES * 4)
        assert set(attached(model).values()) == {0}, number
    assert number > 50


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


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
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
            nothing = {"slot": 0, "hooks": 0, "left": 0}
            assert kinds == [{**nothing, "slot": 1}, *[{**nothing, "hooks": 1}] * 3]
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
    assert all(SLOT not in vars(one) for one in model.modules())


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


@pytest.mark.parametrize("then", ["call", "compile", "record"])
def test_put_back_after_the_pass(telemetry: Telemetry, then: str) -> None:
    """A patch of the slot that begins in a pass and ends after it puts ours back: it works as the module does, and goes when it is called."""
    part = Scaled()
    model = Holder(part)
    patch = mock.patch.object(part, SLOT, side_effect=lambda x: x * 5)
    _run(telemetry, model, lambda parts: patch.start() and None)
    patch.stop()
    assert SLOT in vars(part)
    model.inside = lambda parts: None
    if then == "compile":
        assert torch.equal(torch.compile(model, fullgraph=True, backend="eager")(ONES), ONES * 2)
        model(ONES)
    if then == "record":
        before = len(telemetry.modules())
        _run(telemetry, model, lambda parts: None)
        assert len(telemetry.modules()) == before + 1
    else:
        assert torch.equal(part(ONES), ONES * 2)
    assert SLOT not in vars(part)
