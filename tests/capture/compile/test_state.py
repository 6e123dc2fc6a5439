"""torch.compile in every form and order: the same graphs, guards, breaks and recompilations as without us, and the same numbers."""

from __future__ import annotations

import functools
import gc
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch._dynamo as dynamo
import torch._dynamo.callback as callbacks
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Decision, Sampler, SamplingResult
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics

from inferspan import semconv
from inferspan.capture.compile.state import has_compiled, ignores_slots, is_compiling
from tests.capture.compile.compiled_forms import FORMS, Net, closures, hooked_closures, in_place, loss, method, own_forward, whole
from tests.cases.telemetry import Telemetry

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:torch._dynamo"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # Dynamo looks at the gradients of whatever is in its graph.
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]
DETAIL: dict[str, Any] = {"modules": "all", "output_stats": True}
ROWS = (3, 3, 5, 5, 7)
"""Batches of the calls of a program: the second size is a recompilation, which the third size needs no more."""


@pytest.fixture(autouse=True)
def clean_dynamo() -> Iterator[None]:
    """Each test compiles from nothing."""
    _reset()
    yield
    _reset()


def _reset() -> None:
    dynamo.reset()
    counters.clear()
    clear_compilation_metrics()


class Work(NamedTuple):
    """What the compiler has done."""

    frames: int
    operations: int
    graphs: int
    breaks: dict[str, int]
    compilations: list[tuple[Any, ...]]
    """Of each frame: name, number of its version, operations, inputs, guards, failure and the reason for compiling it again."""


def _work(counter: Any) -> Work:
    frames = [
        (
            *(
                getattr(one, name, None)
                for name in ("co_name", "cache_size", "graph_op_count", "graph_input_count", "guard_count", "fail_type")
            ),
            re.sub(r"0x\w+|\d{4,}", "N", str(getattr(one, "recompile_reason", None))),
        )
        for one in get_compilation_metrics()
    ]
    return Work(counter.frame_count, counter.op_count, counters["stats"]["unique_graphs"], dict(counters["graph_break"]), frames)


class Alternating(Sampler):
    """Records every other request."""

    def __init__(self) -> None:
        self._count = 0

    def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
        self._count += 1
        return SamplingResult(Decision.RECORD_AND_SAMPLE if self._count % 2 else Decision.DROP)

    def get_description(self) -> str:
        return "alternating"


class Way(NamedTuple):
    """When a model is instrumented, and how."""

    at: dict[int, str]
    """What is done before compiling (0), after it (1) and after the n-th call (n + 1)."""
    sampler: Callable[[], Sampler] = lambda: ALWAYS_ON
    settings: dict[str, Any] = DETAIL


WAYS = {
    "before": Way({0: "on"}, settings={}),
    "alternating": Way({0: "on", 1: "refresh"}, Alternating),
    "unsampled and late": Way({2: "on"}, lambda: ALWAYS_OFF),
    "late, off and on": Way({2: "on", 4: "off", 5: "on"}),
    "twice": Way({1: "on", 2: "on", 3: "off"}),
}


def _program(form: Callable[[Any, Any], Any], act: Callable[[str | int, Any], object], *, train: bool) -> tuple[Work, list[Tensor]]:
    """A user's program: a model, compiled, called five times."""
    counter, model = CompileCounter(), Net()
    act(0, model)
    compiled = form(model, counter)
    act(1, model)
    results = []
    for index, rows in enumerate(ROWS):
        hidden = torch.arange(rows * 8.0).reshape(rows, 8) / 10
        with torch.set_grad_enabled(train):
            output = compiled(hidden)
        results.append(output.detach())
        if train:
            model.zero_grad()
            output.sum().backward()
            results += [one.grad.clone() for one in model.parameters() if one.grad is not None]
        act(index + 2, model)
    work = _work(counter)
    return work, results


@functools.cache
def _bare(form: Callable[[Any, Any], Any], train: bool) -> tuple[Work, list[Tensor]]:
    _reset()
    found = _program(form, lambda *_: None, train=train)
    _reset()
    return found


def _observed(form: Callable[[Any, Any], Any], way: Way, *, train: bool) -> tuple[Work, list[Tensor], Telemetry]:
    telemetry = Telemetry(way.sampler())
    handles: list[Any] = []
    models: list[Any] = []

    def act(moment: str | int, model: Any) -> None:
        models[:] = [model]
        what = way.at.get(int(moment))
        if what == "on":
            handles.append(telemetry.instrument(model, **way.settings))
        elif what == "off":
            handles.pop().uninstrument()
        elif what == "refresh":
            handles[-1].refresh()

    work, results = _program(form, act, train=train)
    telemetry.check()
    telemetry.close()
    hooks = [one for module in models[0].modules() for one in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())]
    assert not any(type(one).__module__.startswith("inferspan") for one in hooks)
    gc.collect()  # models of other tests of this process, which are watched until they are collected
    assert not [one for one in callbacks.callback_handler.start_callbacks if one.__module__.startswith("inferspan")]
    return work, results, telemetry


def _assert_same(form: Callable[[Any, Any], Any], way: Way, *, train: bool) -> Telemetry:
    expected, want = _bare(form, train)
    work, got, telemetry = _observed(form, way, train=train)
    assert work == expected
    assert len(got) == len(want) and all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    return telemetry


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
def test_same_work(form: Callable[[Any, Any], Any], way: str) -> None:
    """However a model is compiled and whenever it is instrumented, the compiler does what it does without us, guard for guard."""
    telemetry = _assert_same(form, WAYS[way], train=False)
    said = {(span.attributes or {}).get(semconv.UNOBSERVED) for span in telemetry.forwards()}
    if not ignores_slots():
        # Up to torch 2.4 compiled code guards on the slot, so that a model is hooked that is instrumented later.
        said = {one and str(one).removesuffix("; context: hooks") for one in said}
    # Its modules with hooks of the program are selected where all modules are.
    expected = f"{FORMS[form]}; modules: with your hooks" if form is hooked_closures and WAYS[way].settings else FORMS[form]
    assert said == (set() if expected == "" or way.startswith("unsampled") else {expected})


@pytest.mark.parametrize("form", [whole, in_place, own_forward, method, closures, loss])
def test_same_work_in_training(form: Callable[[Any, Any], Any]) -> None:
    """With a backward pass too, and the gradients are the same."""
    _assert_same(form, WAYS["alternating"], train=True)


@pytest.mark.parametrize("stance", ["force_eager", "eager_on_recompile", "fail_on_recompile"])
@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="torch has no stances")
def test_stances(stance: Any) -> None:
    """A stance of the compiler's is kept: nothing is compiled or fails because of us."""

    def form(model: Any, backend: Any) -> Any:
        compiled = whole(model, backend)
        with torch.no_grad():
            compiled(torch.ones(3, 8))
            compiled(torch.ones(5, 8))

        def call(hidden: Tensor) -> Any:
            with torch.compiler.set_stance(stance):
                return compiled(hidden)

        return call

    for way in ("alternating", "late, off and on"):
        _reset()
        _assert_same(form, WAYS[way], train=False)


def test_another_thread_compiles(request: pytest.FixtureRequest) -> None:
    """What one thread compiles does not hide the requests of another, nor leave them open."""
    telemetry = Telemetry()
    request.addfinalizer(telemetry.close)
    seen: list[bool] = []
    inside, finished = threading.Event(), threading.Event()

    def backend(graph: Any, _: Any) -> Any:
        seen.append(is_compiling())
        inside.set()
        finished.wait(30)
        return graph

    compiled = torch.compile(nn.Linear(2, 2), backend=backend)
    thread = threading.Thread(target=lambda: compiled(torch.ones(1, 2)))
    model = Net()
    telemetry.instrument(model)
    with torch.no_grad():
        thread.start()
        assert inside.wait(30)
        seen.append(is_compiling())
        handle = telemetry.instrument(Net())
        handle.uninstrument()
        finished.set()
        thread.join()
        model(torch.ones(3, 8))
    telemetry.check()
    # An older torch does not say to a backend that it compiles.
    assert seen == [hasattr(torch.compiler, "is_exporting"), False]
    assert len(telemetry.forwards()) == 1


def test_a_request_that_began_before(request: pytest.FixtureRequest) -> None:
    """A forward pass during which another thread begins to compile ends as usual."""
    telemetry = Telemetry()
    request.addfinalizer(telemetry.close)
    inside, finished = threading.Event(), threading.Event()

    def backend(graph: Any, _: Any) -> Any:
        inside.set()
        finished.wait(30)
        return graph

    compiled = torch.compile(nn.Linear(2, 2), backend=backend)
    thread = threading.Thread(target=lambda: compiled(torch.ones(1, 2)))

    class Starting(Net):
        def forward(self, hidden: Tensor) -> Tensor:
            thread.start()
            assert inside.wait(30)
            return super().forward(hidden)

    model = Starting()
    telemetry.instrument(model)
    with torch.no_grad():
        model(torch.ones(3, 8))
    finished.set()
    thread.join()
    telemetry.check()
    (span,) = telemetry.forwards()
    assert span.status.is_ok or span.status.is_unset


def test_the_first_compilation_is_noticed() -> None:
    """Whether Dynamo has guards anywhere is known from its own list."""
    assert not has_compiled()
    torch.compile(lambda value: value + 1, backend="eager")(torch.ones(1))
    assert has_compiled()


def _names(graph: str) -> str:
    """Without places in files, and the numbers by which torch.jit tells classes of one name."""
    return re.sub(r"/\S+|___torch_mangle_\d+\.", "", graph)


def _exported(model: nn.Module, hidden: Tensor) -> str:
    program = torch.export.export(model, (hidden,))
    return f"{program.graph}\n{program.module()(hidden).tolist()}"


def _traced(model: nn.Module, hidden: Tensor) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return str(torch.jit.trace(model, hidden, check_trace=False).graph)


def _symbolic(model: nn.Module, hidden: Tensor) -> str:
    return str(torch.fx.symbolic_trace(model).graph)


def _make_fx(model: nn.Module, hidden: Tensor) -> str:
    from torch.fx.experimental.proxy_tensor import make_fx

    return str(make_fx(model)(hidden).graph)


def _strict(model: nn.Module, hidden: Tensor) -> str:
    return str(torch.export.export(model, (hidden,), strict=True).graph)


@pytest.mark.parametrize("transform", [_exported, _strict, _traced, _symbolic, _make_fx])
def test_graphs_of_other_kinds(transform: Callable[[nn.Module, Tensor], str]) -> None:
    """Exported, traced and symbolic graphs of an instrumented model are those of the plain one, and no request is recorded."""
    hidden = torch.ones(3, 8)
    want = transform(Net(), hidden)
    telemetry = Telemetry()
    model = Net()
    telemetry.instrument(model, **DETAIL)
    got = transform(model, hidden)
    telemetry.check()
    spans = telemetry.forwards()
    telemetry.close()
    assert _names(got) == _names(want)
    assert not spans


def _with_backward(model: Any, backend: Any) -> Any:
    compiled = whole(model, backend)

    @torch.enable_grad()
    def call(hidden: Tensor) -> Any:
        with dynamo.compiled_autograd._enable(torch.compile(backend=backend)):
            output = compiled(hidden)
            output.sum().backward()
        return output

    return call


@pytest.mark.skipif(not hasattr(dynamo.compiled_autograd, "_enable"), reason="torch compiles no backward passes")
def test_compiled_autograd() -> None:
    """A backward pass that is compiled as well finds nothing of ours."""
    _assert_same(_with_backward, WAYS["alternating"], train=False)
