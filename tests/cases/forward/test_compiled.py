"""torch.compile in every form and order: the same graphs, breaks and recompilations as without us, and the same numbers."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch._dynamo as dynamo
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

from inferspan import semconv
from tests.cases import models
from tests.cases.forward.nets import HIDDEN, Net, hooks_on
from tests.cases.telemetry import Telemetry

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:torch._dynamo"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

EXACTLY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 4, "min_new_tokens": 4}


@pytest.fixture(autouse=True)
def clean_dynamo() -> Iterator[None]:
    """Each test compiles from nothing."""
    dynamo.reset()
    counters.clear()
    yield
    dynamo.reset()
    counters.clear()


class Work(NamedTuple):
    """What the compiler has done so far."""

    frames: int
    operations: int
    graphs: int
    breaks: dict[str, int]


def _work(counter: Any) -> Work:
    return Work(counter.frame_count, counter.op_count, counters["stats"]["unique_graphs"], dict(counters["graph_break"]))


def _whole(model: Any, backend: Any) -> Any:
    return torch.compile(model, backend=backend)


def _in_place(model: Any, backend: Any) -> Any:
    model.compile(backend=backend)
    return model


def _forward(model: Any, backend: Any) -> Any:
    model.forward = torch.compile(model.forward, backend=backend)
    return model


def _layers_in_place(model: Any, backend: Any) -> Any:
    for layer in model.model.layers:
        layer.compile(backend=backend)
    return model


def _layers_replaced(model: Any, backend: Any) -> Any:
    for index, layer in enumerate(model.model.layers):
        model.model.layers[index] = torch.compile(layer, backend=backend)
    return model


def _one_graph(model: Any, backend: Any) -> Any:
    return torch.compile(model, backend=backend, fullgraph=True)


FORMS = [_whole, _in_place, _forward, _layers_in_place, _layers_replaced, _one_graph]


def _passes(model: Any) -> list[Any]:
    with torch.no_grad():
        return [model(models.prompt(1, 6)).logits for _ in range(3)]


def _tokens(model: Any) -> list[Any]:
    with torch.no_grad():
        return [model.generate(models.prompt(1, 6), **EXACTLY)]


def _same(got: list[Any], want: list[Any]) -> bool:
    return all(torch.allclose(one, other) for one, other in zip(got, want, strict=True))


def _model() -> Any:
    return models.llama(num_hidden_layers=1)


def _or_skip(run: Callable[[], list[Any]]) -> list[Any]:
    """What ``run`` returns; the test is skipped if this torch cannot compile this transformers without us either."""
    try:
        return run()
    except dynamo.exc.Unsupported as error:
        pytest.skip(f"Dynamo cannot compile it: {str(error).splitlines()[0][:60]}")


@functools.cache
def _bare(form: Callable[[Any, Any], Any], use: Callable[[Any], list[Any]]) -> tuple[Work, list[Any]]:
    """What the compiler does without us, and the results."""
    counter = CompileCounter()
    results = _or_skip(lambda: use(form(_model(), counter)))
    work = _work(counter)
    dynamo.reset()
    counters.clear()
    return work, results


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("use", [_passes, _tokens])
@pytest.mark.parametrize("order", ["before", "after", "inside"])
def test_same_work_for_the_compiler(
    telemetry: Telemetry, form: Callable[[Any, Any], Any], use: Callable[[Any], list[Any]], order: str
) -> None:
    """Instrumented before or after compiling, or inside of what was compiled: graphs, breaks, operations and results are the same."""
    expected, want = _bare(form, use)
    counter, model = CompileCounter(), _model()
    if order == "before":
        telemetry.instrument(model)
    compiled = form(model, counter)
    if order != "before":
        telemetry.instrument(compiled if order == "after" else model)
    got = use(compiled)
    assert _work(counter) == expected
    assert _same(got, want)
    telemetry.close()
    again = use(compiled)
    assert _same(again, want)
    telemetry.check()
    if use is _tokens:
        assert telemetry.usage() == [(6, 4)]
        assert len(telemetry.steps()) == 4
    elif order == "after":
        assert len(telemetry.forwards()) == 3 and len(telemetry.roots()) == 3
    assert not model._forward_hooks and not model._forward_pre_hooks
    assert sum(len(one._forward_hooks) for one in model.modules()) == 0
    assert type(model.__dict__.get("_compiled_call_impl")).__name__ != "CompiledCall"


def test_compiled_between_calls(telemetry: Telemetry) -> None:
    """A model that is compiled in place between two calls goes on being seen, and says that its modules are not."""
    model, counter = _model(), CompileCounter()
    telemetry.instrument(model)
    before = _passes(model)
    model.compile(backend=counter)
    assert _same(_passes(model), before)
    assert counter.frame_count > 0
    telemetry.check()
    unobserved = [(span.attributes or {}).get(semconv.UNOBSERVED) for span in telemetry.forwards()]
    assert unobserved == [None] * 3 + ["modules: compiled"] * 3
    warm = [(span.attributes or {}).get(semconv.MODEL_COMPILE_MODE) for span in telemetry.forwards()]
    assert warm == ["none"] * 3 + ["default"] * 3


def test_detached_by_another_thread_while_a_pass_compiles(telemetry: Telemetry) -> None:
    """The pass, whose hooks are off at that moment, ends on its own thread without an error, and leaves no hook."""
    detached: list[bool] = []

    def backend(graph: Any, inputs: Any) -> Any:
        thread = threading.Thread(target=handle.uninstrument)
        thread.start()
        thread.join()
        detached.append(True)
        return graph.forward

    model = Net()
    handle = telemetry.instrument(model)
    model.layers[0].before = lambda: torch.compile(lambda hidden: hidden + 1, backend=backend)(HIDDEN)
    model(hidden=HIDDEN)
    assert detached == [True]
    assert hooks_on(model) == 0
    telemetry.check()
    assert [span.status.is_ok for span in telemetry.forwards()] == [True]
    model.layers[0].before = None
    model(hidden=HIDDEN)
    assert len(telemetry.forwards()) == 1


def test_layers_compiled_between_requests(telemetry: Telemetry) -> None:
    """Layers compiled one by one between two requests are not hooked any more, and the request says so."""
    bare, counter = CompileCounter(), CompileCounter()
    want = _tokens(_layers_in_place(_model(), bare))
    expected = _work(bare)
    dynamo.reset()
    counters.clear()
    model = _model()
    telemetry.instrument(model)
    _tokens(model)
    _layers_in_place(model, counter)
    assert _same(_tokens(model), want) and _work(counter) == expected
    telemetry.check()
    assert [(span.attributes or {}).get(semconv.UNOBSERVED) for span in telemetry.requests()] == [None, "modules: compiled in parts"]


def test_no_recompilation_when_detail_comes_and_goes(telemetry: Telemetry) -> None:
    """Recorded and unrecorded steps, threads and requests alternate without a single further compilation."""
    model, counter = _model(), CompileCounter()
    _layers_in_place(model, counter)
    with torch.no_grad():
        for width in (6, 6, 7, 9):
            model.generate(models.prompt(1, width), **EXACTLY)
    settled = counter.frame_count
    handle = telemetry.instrument(model, every_step=True, modules="all", output_stats=True)
    with torch.no_grad():
        for width in (6, 7, 9):
            model.generate(models.prompt(1, width), **EXACTLY)
    handle.uninstrument()
    with torch.no_grad():
        model.generate(models.prompt(1, 6), **EXACTLY)
    telemetry.check()
    assert counter.frame_count == settled


@pytest.mark.parametrize("chunk", [None, 3])
def test_compiled_decode_of_transformers(telemetry: Telemetry, chunk: int | None) -> None:
    """With a static cache, transformers compiles the decode pass itself: one graph as without us, all counts and latencies there."""
    from transformers import CompileConfig

    def run(model: Any, counter: Any) -> list[Any]:
        config: Any = CompileConfig(backend=lambda graph, inputs, **_: counter(graph, inputs), fullgraph=True, dynamic=False)
        config._compile_all_devices = True
        options = {**EXACTLY, "cache_implementation": "static", "compile_config": config, "prefill_chunk_size": chunk}
        with torch.no_grad():
            return [model.generate(models.prompt(1, 6), **options) for _ in range(2)]

    bare = CompileCounter()
    want = _or_skip(lambda: run(_model(), bare))
    expected = _work(bare)
    dynamo.reset()
    counters.clear()
    counter, model = CompileCounter(), _model()
    telemetry.instrument(model)
    got = run(model, counter)
    assert _same(got, want) and _work(counter) == expected and counter.frame_count > 0
    telemetry.check()
    assert telemetry.usage() == [(6, 4)] * 2
    for span in telemetry.requests():
        attributes = span.attributes or {}
        unseen = "modules of decode steps: compiled" if chunk is None else "modules: compiled"
        assert {semconv.TTFT, semconv.TPOT} <= set(attributes) and attributes[semconv.UNOBSERVED] == unseen
    assert bool(telemetry.modules()) is (chunk is None)
    assert [bool((span.attributes or {}).get(semconv.WARMUP)) for span in telemetry.requests()] == [True, False]
    with torch.no_grad():
        model(models.prompt(1, 6))
    telemetry.check()
    assert len(telemetry.forwards()) == 1, "the root hooks did not come back"


def test_tracing_and_export(telemetry: Telemetry) -> None:
    """Traced, exported, FX and functional forms of an instrumented model hold nothing of ours and are no requests."""
    import warnings

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return self.layers(hidden)

    model, hidden = Net(), torch.ones(2, 4)
    want = model(hidden)
    telemetry.instrument(model, modules="all", output_stats=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, hidden)
    exported = torch.export.export(model, (hidden,)).module()
    symbolic = torch.fx.symbolic_trace(model)
    functional = torch.func.functional_call(model, dict(model.named_parameters()), (hidden,))
    mapped = torch.func.vmap(lambda row: model(row))(hidden)
    before = len(telemetry.spans())
    for result in (traced(hidden), exported(hidden), symbolic(hidden), functional, mapped):
        assert torch.allclose(result, want)
    telemetry.check()
    assert before == len(telemetry.spans())
    assert "inferspan" not in symbolic.code and "inferspan" not in exported.code
