"""Plain forward passes in situations that broke other tools: inputs, exceptions, interrupts, recursion, copies, threads, training."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import multiprocessing
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from opentelemetry.sdk.trace import Span, SpanProcessor
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from inferspan import semconv
from inferspan.capture.forward import ForwardCall
from inferspan.capture.target import Target
from tests.attached import attached
from tests.cases import models
from tests.cases.telemetry import Telemetry


class Block(nn.Module):
    """A layer that may fail, interrupt, or call what it is told to."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.before: Callable[[], None] | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        if self.before is not None:
            self.before()
        return torch.relu(self.linear(hidden))


class Net(nn.Module):
    """Two layers that take their input by keyword only, and a parent that may recover from a failing one."""

    layers: Any

    def __init__(self, recover: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.recover = recover

    def forward(self, *, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            try:
                hidden = layer(hidden=hidden)
            except ValueError:
                if not self.recover:
                    raise
        return hidden


def _fail() -> None:
    raise ValueError("layer failed")


def _interrupt() -> None:
    raise KeyboardInterrupt


def _names(telemetry: Telemetry) -> list[str]:
    return [span.name for span in telemetry.modules()]


def _hooks_on(model: nn.Module) -> int:
    return sum(attached(model).values())


HIDDEN = torch.ones(2, 4)
LAYERS = ["layer 0", "layer 0 linear", "layer 1", "layer 1 linear"]


def test_keyword_inputs_are_described(telemetry: Telemetry) -> None:
    """A module that is called by keyword has its inputs' shapes, at the root and below."""
    telemetry.instrument(model := Net())
    model(hidden=HIDDEN)
    telemetry.check()
    assert {(span.attributes or {})[semconv.INPUT_SHAPES] for span in telemetry.spans()} == {("2x4",)}
    assert _names(telemetry) == LAYERS


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
    model.layers[0].before = _fail
    model(hidden=HIDDEN)
    telemetry.check()
    kinds = {span.name: (span.attributes or {}).get(semconv.ERROR_TYPE) for span in telemetry.spans()}
    # Registered hooks, which observe once something has been compiled in the process, cannot tell what it was.
    assert kinds.pop("layer 0") in ("ValueError", "_OTHER")
    assert set(kinds.values()) == {None}


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same thread", "other thread"])
@pytest.mark.parametrize("via", ["next call", "uninstrument"])
def test_interrupt_in_mid_forward(telemetry: Telemetry, elsewhere: bool, via: str) -> None:
    """Ctrl-C leaves nothing open: the next call of the thread or uninstrument() ends it as an error, and what follows starts clean."""
    handle = telemetry.instrument(model := Net())
    model.layers[1].before = _interrupt

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            model(hidden=HIDDEN)
        model.layers[1].before = None
        if via == "next call":
            model(hidden=HIDDEN)

    if elsewhere:
        thread = threading.Thread(target=interrupted)
        thread.start()
        thread.join()
    else:
        interrupted()
    model(hidden=HIDDEN)
    handle.uninstrument()
    model(hidden=HIDDEN)
    telemetry.check()
    failed = [(span.attributes or {}).get(semconv.ERROR_TYPE) is not None for span in telemetry.forwards()]
    assert failed == [True] + [False] * (2 if via == "next call" else 1)
    assert all(span.parent is None for span in telemetry.forwards())
    assert _hooks_on(model) == 0


def test_interrupts_do_not_pile_up(telemetry: Telemetry) -> None:
    """Many interrupted calls in a row each end when the next one starts."""
    handle = telemetry.instrument(model := Net())
    model.layers[0].before = _interrupt
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            model(hidden=HIDDEN)
    handle.uninstrument()
    telemetry.check()
    assert len(telemetry.forwards()) == 5 and all(span.parent is None for span in telemetry.forwards())


def test_interrupt_of_one_model_ends_at_the_call_of_another(telemetry: Telemetry) -> None:
    """A call left open by Ctrl-C does not become the parent of what another model does later on the thread."""
    first, second = Net(), models.llama()
    telemetry.instrument(first)
    telemetry.instrument(second)
    first.layers[0].before = _interrupt
    with pytest.raises(KeyboardInterrupt):
        first(hidden=HIDDEN)
    with torch.no_grad():
        second.generate(models.prompt(), max_new_tokens=2)
    first.layers[0].before = None
    first(hidden=HIDDEN)
    telemetry.close()
    telemetry.check()
    assert [span.parent for span in (*telemetry.forwards(), *telemetry.requests(nested=None))] == [None] * 3
    assert len(telemetry.requests()) == 1, "the generate() counts as nested in a call that is long gone"


class Recursive(nn.Module):
    """Calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, hidden: Tensor, depth: int = 2) -> Tensor:
        hidden = self.linear(hidden)
        return self(hidden, depth=depth - 1) if depth else hidden


def test_detached_at_the_very_start_of_a_forward(telemetry: Telemetry) -> None:
    """Where uninstrument() comes between the start of a request and its registration, the span ends all the same, as interrupted."""
    handle: Any = None

    class Detaches(SpanProcessor):
        def on_start(self, span: Span, parent_context: object = None) -> None:
            handle.uninstrument()

    telemetry.tracer_provider.add_span_processor(Detaches())
    handle = telemetry.instrument(model := Net())
    want = Net.forward(model, hidden=HIDDEN)
    assert torch.equal(model(hidden=HIDDEN), want)
    telemetry.check()
    assert [(span.name, (span.attributes or {}).get(semconv.ERROR_TYPE)) for span in telemetry.spans()] == [("forward Net", "_OTHER")]
    assert _hooks_on(model) == 0
    model(hidden=HIDDEN)
    assert len(telemetry.spans()) == 1


def test_recursion(telemetry: Telemetry) -> None:
    """A model that calls itself is one request with the inner calls as module spans, each inside its caller's."""
    telemetry.instrument(model := Recursive())
    model(HIDDEN)
    telemetry.check()
    assert len(telemetry.roots()) == 1 and len(telemetry.forwards()) == 1
    assert len([name for name in _names(telemetry) if name == "linear"]) == 3


def test_recursion_with_failure(telemetry: Telemetry) -> None:
    """An exception from the innermost call ends all of them, and the next call is a request of its own."""
    telemetry.instrument(model := Recursive())
    handle = model.linear.register_forward_hook(lambda *_: _fail())
    with pytest.raises(ValueError, match="layer failed"):
        model(HIDDEN)
    handle.remove()
    model(HIDDEN)
    telemetry.check()
    assert [(span.attributes or {}).get(semconv.ERROR_TYPE) for span in telemetry.forwards()] == ["ValueError", None]


class Outer(nn.Module):
    """Holds another model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *, hidden: Tensor) -> Tensor:
        return self.inner(hidden=hidden) + self.inner(hidden=hidden)


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
    hook = model.register_forward_pre_hook(lambda *_: _fail())
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
        _fail()
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


# ------------------------------------------------------------------------------------------------------- copies and other processes
COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


def _saved(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded: nn.Module = torch.load(buffer, weights_only=False)
    return loaded


@pytest.mark.parametrize("way", [*COPIES.values(), _saved], ids=[*COPIES, "torch.save"])
def test_copies_stand_alone(telemetry: Telemetry, way: Callable[[nn.Module], nn.Module]) -> None:
    """A copy computes with its own weights, emits nothing, and can be instrumented on its own while the original goes on."""
    model = models.llama()
    telemetry.instrument(model)
    ids = models.prompt()
    with torch.no_grad():
        model(ids)
        model.generate(ids, max_new_tokens=2)
        twin: Any = way(model)
        for parameter in twin.parameters():
            parameter.zero_()
        before = len(telemetry.spans())
        assert torch.count_nonzero(twin(ids).logits) == 0
        twin.generate(ids, max_new_tokens=2)
        assert len(telemetry.spans()) == before
        assert torch.count_nonzero(model(ids).logits) > 0
        handle = telemetry.instrument(twin)
        twin.generate(ids, max_new_tokens=2)
        handle.uninstrument()
    telemetry.check()
    assert len(telemetry.requests()) == 2


def test_copy_during_a_recorded_call(telemetry: Telemetry) -> None:
    """A copy made while our hooks are attached is silent and works."""
    twins: list[Any] = []
    telemetry.instrument(model := Net())
    model.layers[0].before = lambda: twins.append(copy.deepcopy(model)) if not twins else None
    model(hidden=HIDDEN)
    before = len(telemetry.spans())
    twins[0].layers[0].before = None
    twins[0](hidden=HIDDEN)
    telemetry.check()
    assert len(telemetry.spans()) == before


def test_shallow_copy(telemetry: Telemetry) -> None:
    """``copy.copy`` shares hooks with the original, and its calls do no harm."""
    telemetry.instrument(model := Net())
    twin = copy.copy(model)
    assert torch.equal(twin(hidden=HIDDEN), model(hidden=HIDDEN))
    telemetry.close()
    telemetry.check()
    assert _hooks_on(twin) == _hooks_on(model) == 0
    assert len(telemetry.forwards()) == 1


def _in_child(model: Any, queue: Any) -> None:
    with torch.no_grad():
        queue.put(float(model(models.prompt()).logits.sum()))


def test_spawned_process(telemetry: Telemetry) -> None:
    """An instrumented model is sent to a spawned process and computes the same there."""
    model = models.llama()
    telemetry.instrument(model)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_in_child, args=(model, queue))
    process.start()
    value = queue.get(timeout=120)
    process.join(60)
    with torch.no_grad():
        assert value == pytest.approx(float(model(models.prompt()).logits.sum()), rel=1e-4)
    assert process.exitcode == 0
    telemetry.check()


# --------------------------------------------------------------------------------------------------------------------------- threads
def test_replicas_in_threads(telemetry: Telemetry) -> None:
    """Replicas as DataParallel makes them share hook tables, run in other threads and are neither errors nor requests of the original."""
    telemetry.instrument(model := Net())

    def replicate(module: nn.Module) -> Any:
        replica: Any = module._replicate_for_data_parallel()
        replica._modules = {name: replicate(child) if child is not None else None for name, child in module._modules.items()}
        replica._parameters = dict(module._parameters)
        return replica

    results: list[Tensor] = []
    replicas = [replicate(model) for _ in range(3)]
    threads = [threading.Thread(target=lambda one=one: results.append(one(hidden=HIDDEN))) for one in replicas]
    for thread in threads:
        thread.start()
    want = model(hidden=HIDDEN)
    for thread in threads:
        thread.join()
    assert len(results) == 3 and all(torch.equal(result, want) for result in results)
    telemetry.close()
    telemetry.check()
    assert len(telemetry.forwards()) == 1


def test_two_threads_forward_and_generate(telemetry: Telemetry) -> None:
    """Plain forwards and generate() of one model in several threads: each is its own trace with its own modules."""
    model = models.llama()
    handle = telemetry.instrument(model)
    errors: list[BaseException] = []

    def work(generates: bool) -> None:
        try:
            with torch.no_grad():
                for _ in range(6):
                    if generates:
                        model.generate(models.prompt(), max_new_tokens=4, min_new_tokens=4)
                    else:
                        model(models.prompt())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index % 2 == 0,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handle.uninstrument()
    assert not errors
    telemetry.check()
    assert telemetry.usage() == [(6, 4)] * 12
    assert len(telemetry.roots()) == 24 and _hooks_on(model) == 0
    traces = {span.context.trace_id for span in telemetry.spans() if span.context}
    assert len(traces) == 24


def test_uninstrument_inside_a_forward_and_from_another_thread(telemetry: Telemetry) -> None:
    """Detaching while the model runs ends what is open, changes no result, and leaves no hook."""
    for elsewhere in (False, True):
        model = Net()
        want = model(hidden=HIDDEN)
        handle = telemetry.instrument(model)

        def detach(handle: Any = handle, elsewhere: bool = elsewhere) -> None:
            if elsewhere:
                thread = threading.Thread(target=handle.uninstrument)
                thread.start()
                thread.join()
            else:
                handle.uninstrument()

        model.layers[0].before = detach
        assert torch.equal(model(hidden=HIDDEN), want)
        model.layers[0].before = None
        assert torch.equal(model(hidden=HIDDEN), want)
        assert _hooks_on(model) == 0
        telemetry.instrument(model)
        model(hidden=HIDDEN)
    telemetry.check()
    assert [span.parent for span in telemetry.forwards()] == [None] * 4


def test_uninstrument_and_again_inside_a_forward(telemetry: Telemetry) -> None:
    """Detaching and instrumenting anew while the model runs, with the user's exception on top, hides nothing and leaks nothing."""
    model = Net()
    handles = [telemetry.instrument(model)]

    def swap() -> None:
        handles[-1].uninstrument()
        handles.append(telemetry.instrument(model))
        _fail()

    model.layers[0].before = swap
    for _ in range(3):
        with pytest.raises(ValueError, match="layer failed"):
            model(hidden=HIDDEN)
    handles[-1].uninstrument()
    telemetry.check()
    assert _hooks_on(model) == 0


# ------------------------------------------------------------------------------------------------------------------------- structure
def test_replaced_submodules(telemetry: Telemetry) -> None:
    """A swapped layer is seen from the next call on, and the detached one keeps nothing of ours, not even alive."""
    handle = telemetry.instrument(model := Net())
    model(hidden=HIDDEN)
    old = model.layers[0]
    model.layers[0] = Block()
    model(hidden=HIDDEN)
    assert _hooks_on(old) == 0
    reference = weakref.ref(old)
    del old
    assert reference() is None
    handle.uninstrument()
    telemetry.check()
    assert _names(telemetry) == LAYERS * 2


def test_appended_and_removed_layers(telemetry: Telemetry) -> None:
    """A layer list that grows or shrinks is followed from the next call on."""
    telemetry.instrument(model := Net())
    model.layers.append(Block())
    model(hidden=HIDDEN)
    assert _names(telemetry) == [*LAYERS, "layer 2", "layer 2 linear"]
    del model.layers[1:]
    model(hidden=HIDDEN)
    telemetry.check()
    assert _names(telemetry) == [*LAYERS, "layer 2", "layer 2 linear", *LAYERS[:2]]


def test_layer_swapped_inside_a_forward(telemetry: Telemetry) -> None:
    """A layer that replaces another while the model runs is no error, and neither keeps a hook."""
    handle = telemetry.instrument(model := Net())
    old = model.layers[1]

    def swap() -> None:
        model.layers[1] = Block()

    model.layers[0].before = swap
    model(hidden=HIDDEN)
    handle.uninstrument()
    telemetry.check()
    assert _hooks_on(model) == _hooks_on(old) == 0


def test_lazy_parametrized_and_shared_modules(telemetry: Telemetry) -> None:
    """Lazy layers, weight norm and one layer under two names work, and each object is hooked once."""
    shared = nn.Linear(4, 4)
    model = nn.Sequential(nn.LazyLinear(4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), shared, shared)
    telemetry.instrument(model, modules="all")
    model(HIDDEN)
    model(HIDDEN)
    telemetry.check()
    assert len([name for name in _names(telemetry) if name.startswith("layer 2")]) == 4
    assert not [name for name in _names(telemetry) if name.startswith("layer 3")]


def test_scripted_child_and_scripted_root(telemetry: Telemetry) -> None:
    """Scripted modules take no hooks: they are skipped, and a scripted root says that its passes are not seen."""
    scripted = _script(nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), scripted)
    telemetry.instrument(model, modules="all")
    model(HIDDEN)
    telemetry.check()
    assert _names(telemetry) == ["layer 0"]
    handle = telemetry.instrument(scripted)
    scripted(HIDDEN)
    handle.uninstrument()
    telemetry.check()


def _script(module: nn.Module) -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted: nn.Module = torch.jit.script(module)
    return scripted


def test_meta_and_quantized_modules(telemetry: Telemetry) -> None:
    """Weights that are on meta or packed are never read: shapes and dtypes come from what flows."""
    import warnings

    meta = nn.Sequential(nn.Linear(4, 4, device="meta"))
    telemetry.instrument(meta, modules="all")
    assert meta(torch.ones(2, 4, device="meta")).is_meta
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})
    telemetry.instrument(packed, modules="all", output_stats=True)
    packed(HIDDEN)
    telemetry.check()
    assert [(span.attributes or {}).get(semconv.OUTPUT_DTYPES) for span in telemetry.modules()] == [("float32",)] * 2


# -------------------------------------------------------------------------------------------------------------------------- training
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


# ------------------------------------------------------------------------------------------------------------------------ what it costs
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


def test_interrupt_below_another_request(telemetry: Telemetry) -> None:
    """Ctrl-C in an instrumented part of a model that is generating ends both requests, the inner one inside the outer."""
    model = models.llama()
    telemetry.instrument(model)
    telemetry.instrument(model.model.layers[1])
    hook = model.model.layers[1].mlp.register_forward_pre_hook(lambda *_: _interrupt())
    with pytest.raises(KeyboardInterrupt), torch.no_grad():
        model.generate(models.prompt(), max_new_tokens=3)
    hook.remove()
    telemetry.check()
    with torch.no_grad():
        model.generate(models.prompt(), max_new_tokens=3)
    telemetry.check()
    assert len(telemetry.roots()) == 2


def test_request_inside_a_forward_that_was_detached(telemetry: Telemetry) -> None:
    """What runs inside a model after its uninstrument() has no parent in it, for that request has ended."""
    inner, model = Net(), Net()
    telemetry.instrument(inner)
    handle = telemetry.instrument(model)

    def detach() -> None:
        thread = threading.Thread(target=handle.uninstrument)
        thread.start()
        thread.join()
        inner(hidden=HIDDEN)

    model.layers[0].before = detach
    model(hidden=HIDDEN)
    telemetry.check()
    assert [span.parent for span in telemetry.forwards()] == [None, None]


@pytest.mark.parametrize("where", ["root", "layer"])
def test_uninstrument_in_an_always_called_hook(telemetry: Telemetry, where: str) -> None:
    """Detaching while torch goes through the hooks of a failed call does not replace the user's exception."""
    model = Net()
    handle = telemetry.instrument(model)
    target = model if where == "root" else model.layers[1]

    def detach(*_: Any) -> None:
        handle.uninstrument()

    mine = [target.register_forward_hook(detach, always_call=True), target.register_forward_hook(lambda *_: None, always_call=True)]
    model.layers[1].before = _fail
    with pytest.raises(ValueError, match="layer failed"):
        model(hidden=HIDDEN)
    model.layers[1].before = None
    for hook in mine:
        hook.remove()
    model(hidden=HIDDEN)
    assert _hooks_on(model) == 0
    telemetry.check()
    assert len(telemetry.forwards()) == 1
    telemetry.instrument(model)
    model(hidden=HIDDEN)
    telemetry.check()
    assert len(telemetry.forwards()) == 2


@pytest.mark.parametrize("place", ["new_device_clock", "closed"])
def test_interrupts_inside_our_own_code(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Ctrl-C that arrives while we open or end a request passes, leaves nothing on a module, and the next call is clean."""
    model = Net()
    telemetry.instrument(model)

    def interrupt(*_: Any) -> Any:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Target, place, interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(hidden=HIDDEN)
    assert _hooks_on(model.layers) == 0
    model(hidden=HIDDEN)
    telemetry.check()
    assert len(telemetry.forwards()) == 2


class TestThreads:
    """Passes that are not what they look like, because other threads or other callers are in them."""

    def test_a_packed_row_is_nobodys_request(self, telemetry: Telemetry) -> None:
        """A pass with the arguments of continuous batching gives no span, the next ordinary one does."""

        class Packed(nn.Linear):
            def forward(self, hidden: Tensor, cu_seq_lens_q: Any = None, read_index: Any = None) -> Tensor:
                return super().forward(hidden)

        model, hidden = Packed(4, 4), torch.zeros(1, 4)
        with telemetry.instrument(model):
            model(hidden, cu_seq_lens_q=torch.tensor([0, 1]), read_index=[torch.tensor([0])])
            assert telemetry.spans() == []
            model(hidden)
        assert [span.name for span in telemetry.spans()] == ["forward Packed"]

    def test_two_threads_cannot_end_one_call_twice(self, telemetry: Telemetry) -> None:
        """uninstrument() in the moment in which a call ends itself leaves one ended span and no complaint."""
        for _ in range(30):
            model = nn.Linear(4, 4)
            handle = telemetry.instrument(model)
            running, stop = threading.Event(), threading.Event()

            def work(model: nn.Module = model, running: threading.Event = running, stop: threading.Event = stop) -> None:
                while not stop.is_set():
                    model(torch.zeros(1, 4))
                    running.set()

            thread = threading.Thread(target=work)
            thread.start()
            assert running.wait(30)
            handle.uninstrument()
            stop.set()
            thread.join(30)
        telemetry.check()

    def test_a_pass_goes_on_while_another_thread_ends_it(self, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a running pass calls in the very moment in which uninstrument() ends it moves no other call out of its place."""
        model = Net()
        handle = telemetry.instrument(model)
        inside, go, further, done = (threading.Event() for _ in range(4))

        def stop_at(reached: threading.Event, leave: threading.Event) -> Callable[[], None]:
            def before() -> None:
                reached.set()
                assert leave.wait(30)

            return before

        model.layers[0].before, model.layers[1].before = stop_at(inside, go), stop_at(further, done)
        close_modules = ForwardCall.close_modules

        def late(call: ForwardCall, *args: Any) -> None:
            go.set()
            assert further.wait(30)
            close_modules(call, *args)

        monkeypatch.setattr(ForwardCall, "close_modules", late)
        thread = threading.Thread(target=lambda: model(hidden=HIDDEN))
        thread.start()
        assert inside.wait(30)
        handle.uninstrument()
        done.set()
        thread.join(30)
        telemetry.check()
        assert {span.name for span in telemetry.spans()} == {"forward Net", "layer 0"}
