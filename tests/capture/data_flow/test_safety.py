"""Recording the data flow changes nothing of the program: outputs, randomness, exceptions, modes of torch, compilations, lifetimes."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import inferspan
from inferspan.capture.data_flow import hooks as flow_hooks
from inferspan.capture.data_flow.operations import Operations
from inferspan.capture.data_flow.tensors import Tensors
from inferspan.settings import SettingsError
from tests.cases import models as real
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached

from .models import Block, Stack, edges

X = torch.arange(12.0).view(3, 4)
_depth: Callable[[], int] = torch._C._len_torch_function_stack
SETTINGS = ["modules", "operations"]


@pytest.fixture(autouse=True)
def _no_mode_is_left() -> Iterator[None]:
    # After a compilation in the process operations are not followed.
    torch._dynamo.reset()
    yield
    assert _depth() == 0
    torch._dynamo.reset()


class _Random(nn.Module):
    """Draws numbers between and inside modules."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.drop = Block(), nn.Dropout(0.5)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.block(hidden + torch.rand_like(hidden))
        result: Tensor = nn.functional.dropout(hidden, 0.3, training=True) + torch.randn(4)
        return result


@pytest.mark.parametrize("setting", SETTINGS)
def test_outputs_and_random_stream_are_the_same(telemetry: Telemetry, setting: str) -> None:
    """To the last bit, also of the numbers drawn afterwards."""
    torch.manual_seed(0)
    model = _Random().eval()

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        with torch.no_grad():
            return [model(X), model(X * 3), torch.rand(4)]

    plain = run()
    telemetry.instrument(model, modules="all", data_flow=setting)
    assert all(torch.equal(one, other) for one, other in zip(plain, run(), strict=True))
    telemetry.check()


@pytest.mark.parametrize("setting", SETTINGS)
def test_generation_is_the_same(telemetry: Telemetry, setting: str) -> None:
    """Sampled tokens and logits of each step, to the last bit."""
    model = real.llama()

    def run() -> Any:
        torch.manual_seed(1)
        return model.generate(
            real.prompt(), max_new_tokens=6, do_sample=True, output_logits=True, return_dict_in_generate=True, use_cache=True
        )

    plain = run()
    telemetry.instrument(model, modules="all", data_flow=setting, every_step=True)
    seen = run()
    assert torch.equal(plain.sequences, seen.sequences)
    assert all(torch.equal(one, other) for one, other in zip(plain.logits, seen.logits, strict=True))
    telemetry.check()


@pytest.mark.parametrize("setting", SETTINGS)
def test_gradients_are_the_same(telemetry: Telemetry, setting: str) -> None:
    """Also where a model is trained."""
    torch.manual_seed(0)
    model = Stack().train()

    def run() -> list[Tensor]:
        model.zero_grad()
        model(X).sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    plain = run()
    handle = telemetry.instrument(model, modules="all", data_flow=setting, training=True)
    assert all(torch.equal(one, other) for one, other in zip(plain, run(), strict=True))
    assert len(handle.data_flow()) > 0


class _Failing(nn.Module):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.block, self.error = Block(), error
        self.fails = True

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.block(hidden) + 1
        if self.fails:
            raise self.error("stop")
        result: Tensor = self.block(hidden)
        return result


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("setting", SETTINGS)
def test_exceptions_pass(telemetry: Telemetry, setting: str, error: type[BaseException]) -> None:
    """The exception is the model's, no mode of ours stays on the thread, and the next pass is recorded."""
    model = _Failing(error)
    handle = telemetry.instrument(model, modules="all", data_flow=setting)
    with pytest.raises(error, match="stop"):
        model(X)
    assert _depth() == 0
    assert attached(model) == {"slot": 0, "hooks": 0, "left": 0}
    model.fails = False
    model(X)
    assert any(edge.startswith("block -> block.norm#2") for edge in edges(handle.data_flow())) == (setting == "operations")
    assert [one for one in handle.data_flow() if one.consumer == "block.norm"]


class _Logging(TorchFunctionMode):
    """A mode of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class _WithModes(nn.Module):
    """Enters modes of its own, in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.mode = _Logging()

    def forward(self, hidden: Tensor) -> Tensor:
        with self.mode:
            hidden = self.block(hidden)
            with torch.device("cpu"):
                hidden = hidden + torch.ones(4)
                hidden = self.block(hidden)
        result: Tensor = hidden * 2
        return result


def test_modes_of_the_program_see_the_same(telemetry: Telemetry) -> None:
    """A mode that the model enters in its pass sees the functions that it saw before, and ends as before."""
    model = _WithModes().eval()
    handle = telemetry.instrument(model, modules="all")
    with torch.no_grad():
        model(X)
    plain, model.mode.seen = model.mode.seen, []
    handle.set(data_flow="operations")
    with torch.no_grad():
        model(X)
    assert model.mode.seen == plain
    assert "block -> block.norm#2 [add]" in edges(handle.data_flow())


@pytest.mark.parametrize("place", ["around", "default"])
def test_modes_around_a_pass(telemetry: Telemetry, place: str) -> None:
    """The mode of a default device stays the lowest, so that torch can end it."""
    model = Stack(1).eval()
    handle = telemetry.instrument(model, modules="all", data_flow="operations")
    if place == "default":
        torch.set_default_device("cpu")
        try:
            model(X)
        finally:
            torch.set_default_device(None)
    else:
        with torch.device("cpu"), _Logging(), torch.inference_mode():
            model(X)
    assert "embed -> (blocks.0) [add]!" in edges(handle.data_flow())


@pytest.mark.parametrize("around", [False, True])
def test_a_pass_whose_begin_is_not_seen(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, around: bool) -> None:
    """Where the model itself takes no hooks, operations are followed from its first module on, unless a mode is active there."""
    model = _WithModes().eval() if around else Stack(1).eval()
    monkeypatch.setattr(flow_hooks, "may_hook", lambda module: module is not model)
    handle = telemetry.instrument(model, modules="all", data_flow="operations")
    model(X)
    flow = handle.data_flow()
    assert _depth() == 0
    assert any(edge.via == ("add",) for edge in flow) is not around
    assert flow.notes == (("operations were not followed: a mode of the program is active",) if around else ())


def test_a_mode_leaves_from_between_others() -> None:
    """Wherever it lies, the others keep their order."""
    first, second, own = _Logging(), _Logging(), Operations(Tensors())
    with first:
        own.put()
        with second:
            stack = [torch._C._get_function_stack_at(place) for place in range(_depth())]
            assert stack == [own, first, second]
            assert own.take_off()
            assert [torch._C._get_function_stack_at(place) for place in range(_depth())] == [first, second]
            assert not own.take_off()


def test_nothing_is_kept_alive(telemetry: Telemetry) -> None:
    """Neither a tensor nor its memory, once the program has dropped it; also with the handle and its edges at hand."""
    kept: list[weakref.ref[Any]] = []

    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, hidden: Tensor) -> Tensor:
            inner = self.block(hidden)
            view = inner[:2]
            kept.extend((weakref.ref(inner), weakref.ref(view), weakref.ref(inner.untyped_storage())))
            result: Tensor = view + 1
            return result

    model = Drops()
    handle = telemetry.instrument(model, modules="all", data_flow="operations")
    gc.disable()
    try:
        with torch.no_grad():
            kept.append(weakref.ref(model(X)))
        assert [reference() for reference in kept] == [None] * 4
    finally:
        gc.enable()
    assert len(handle.data_flow()) > 0


def test_only_recorded_passes_have_hooks(telemetry: Telemetry) -> None:
    """Outside of passes nothing is on the model, and copies and pickles of it are clean."""
    inside: list[dict[str, int]] = []

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, hidden: Tensor) -> Tensor:
            inside.append(attached(self))
            copied = copy.deepcopy(self.block)
            inside.append(attached(copied))
            result: Tensor = self.block(hidden)
            return result

    model = Looks()
    telemetry.instrument(model, modules="all", data_flow="operations")
    model(X)
    assert inside[0]["hooks"] == 4
    assert inside[1]["hooks"] == 0
    assert attached(model) == {"slot": 0, "hooks": 0, "left": 0}
    assert pickle.loads(pickle.dumps(model.block))(X).shape == X.shape


@pytest.mark.parametrize("place", ["inside", "before", "submodule"])
def test_compiled_code(telemetry: Telemetry, place: str) -> None:
    """Operations are not followed while something is compiled or after it; the handle says so, and nothing is compiled again."""
    torch._dynamo.reset()
    counts: list[Any] = []

    def counting(graph: Any, example: Any) -> Any:
        counts.append(graph)
        return graph.forward

    compiled = torch.compile(lambda tensor: tensor * 2 + 1, backend=counting)

    class Compiles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.block = nn.Linear(4, 4), Block()

        def forward(self, hidden: Tensor) -> Tensor:
            result: Tensor = self.block(compiled(self.one(hidden)))
            return result

    model = Compiles().eval()
    if place == "before":
        with torch.no_grad():
            model(X)
    if place == "submodule":
        model.block.compile(backend=counting)
    with torch.no_grad():
        model(X)
        plain, before = model(X), len(counts)
        torch._dynamo.reset() if place == "inside" else None
        counts.clear()
        handle = telemetry.instrument(model, modules="all", data_flow="operations")
        seen = [model(X) for _ in range(3)]
        flow = handle.data_flow()
        handle.uninstrument()
        again = model(X)
    assert all(torch.equal(plain, one) for one in (*seen, again))
    assert len(counts) == (before if place == "inside" else 0)
    assert any("operations were not followed" in note for note in flow.notes)
    (*_, forward) = telemetry.forwards()
    assert "data flow: operations" in str((forward.attributes or {})["inferspan.unobserved"])
    torch._dynamo.reset()


def test_fused_modules(telemetry: Telemetry) -> None:
    """Torch takes the fused path of an encoder layer only without a mode, so operations are not followed there."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    given = torch.randn(2, 3, 8)
    with torch.no_grad():
        plain = model(given)
        handle = telemetry.instrument(model, modules="all", data_flow="operations")
        assert torch.equal(model(given), plain)
    assert "torch runs TransformerEncoder as one operation" in " ".join(handle.data_flow().notes) or not handle.data_flow().modules


def test_threads(telemetry: Telemetry) -> None:
    """Requests on several threads have a flow each, and no mode on another's thread."""
    model = Stack().eval()
    handle = telemetry.instrument(model, modules="all", data_flow="operations")
    found: list[tuple[set[str], int]] = []
    lock = threading.Lock()

    def work() -> None:
        for _ in range(5):
            with torch.no_grad():
                model(torch.randn(3, 4))
            with lock:
                found.append((edges(handle.data_flow()), _depth()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert {depth for _, depth in found} == {0}
    assert all(one == found[0][0] for one, _ in found)
    telemetry.check()


def test_switched_at_run_time(telemetry: Telemetry) -> None:
    """``handle.set()`` switches it, and the notes say why there is none."""
    model = Stack()
    handle = telemetry.instrument(model, modules="all")
    assert handle.data_flow().notes == ("the setting data_flow is none",)
    handle.set(data_flow="operations")
    assert handle.data_flow().notes == ("no request has been recorded with its modules so far",)
    model(X)
    assert "embed -> (blocks.0) [add]!" in edges(handle.data_flow())
    assert "step 7 was not recorded" in handle.data_flow(step=7).notes[0]
    handle.set(data_flow="none", modules="none")
    model(X)
    assert attached(model) == {"slot": 0, "hooks": 0, "left": 0}
    with pytest.raises(SettingsError, match="data_flow"):
        handle.set(data_flow="all")
    handle.uninstrument()
    assert handle.data_flow().notes == ("nothing is instrumented",)


def test_an_error_of_ours_is_contained(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, contained: list[Any]
) -> None:
    """It costs edges, is logged once, and the model goes on."""
    model = Stack()
    expected = model(X)
    monkeypatch.setattr(Tensors, "union", lambda *_: 1 / 0)
    monkeypatch.setattr(Tensors, "add", lambda *_: 1 / 0)
    telemetry.instrument(model, modules="all", data_flow="operations")
    with caplog.at_level(logging.WARNING, logger="inferspan"):
        assert torch.equal(model(X), expected)
        assert torch.equal(model(X), expected)
    assert {one.place for one in contained} == {"data flow"}
    contained.clear()
    telemetry._complaints.lines.clear()


def test_outside_of_a_request_there_is_none() -> None:
    """Without telemetry the handle has an empty flow."""
    handle = inferspan.instrument(Stack(), enabled=False, data_flow="operations")
    assert len(handle.data_flow()) == 0


class _Logged(Tensor):
    """A subclass that sees each of its functions."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        return hidden * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


@torch.jit.script
def _scripted(hidden: Tensor) -> Tensor:
    return hidden.relu() + 1


_USES: dict[str, Callable[[Tensor], Tensor]] = {
    "vmap": lambda hidden: torch.vmap(lambda row: row.sin() * row.sum())(hidden),
    "gradient of a function": lambda hidden: torch.func.grad(lambda one: (one**2).sum())(hidden),
    "autograd function": lambda hidden: _Twice.apply(hidden),
    "script": lambda hidden: _scripted(hidden),
    "copies": lambda hidden: copy.deepcopy(hidden.detach()) + pickle.loads(pickle.dumps(hidden.detach())),
    "subclass": lambda hidden: (hidden.as_subclass(_Logged) * 2 + 1).as_subclass(Tensor),
    "out": lambda hidden: torch.add(hidden.detach(), 1, out=torch.empty(3, 4)),
    "data": lambda hidden: hidden.detach().data.T.contiguous().T,
    "numbers": lambda hidden: hidden * hidden.detach().sum().item() + float(hidden.detach().max()) + len(hidden) + hidden.shape[0],
    "numpy": lambda hidden: torch.from_numpy(hidden.detach().numpy() + 1),
    "loop": lambda hidden: torch.stack([row * 2 for row in hidden]),
    "mask": lambda hidden: hidden.masked_fill(hidden > 0, 1.0)[hidden.argsort(0)[0]][:3],
    "attention": lambda hidden: nn.functional.scaled_dot_product_attention(hidden[None, None], hidden[None, None], hidden[None, None])[0, 0],
    "checkpoint": lambda hidden: torch.utils.checkpoint.checkpoint(torch.tanh, hidden, use_reentrant=False),
}


class _Uses(nn.Module):
    def __init__(self, use: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.use = nn.Linear(4, 4), nn.Linear(4, 4), use

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.last(self.use(self.first(hidden)))
        return result


_UNSEEN = {"autograd function", "numpy", "copies", "vmap", "gradient of a function", "script", "subclass"}
"""What happens below the functions of torch in Python, or copies values through another object."""


@pytest.mark.parametrize("name", _USES)
@pytest.mark.parametrize("grad", [True, False])
def test_uses_of_torch_are_the_same(telemetry: Telemetry, name: str, grad: bool) -> None:
    """Whatever is between two modules: values, and the functions that a subclass sees, are those without inferspan."""
    torch.manual_seed(0)
    model = _Uses(_USES[name]).eval()
    with torch.set_grad_enabled(grad):
        plain = model(X)
        functions = list(_Logged.seen)
        _Logged.seen.clear()
        handle = telemetry.instrument(model, modules="all", data_flow="operations")
        seen = model(X)
        assert _Logged.seen == functions
        _Logged.seen.clear()
    assert torch.equal(plain, seen)
    found = {edge.producer for edge in handle.data_flow() if edge.consumer == "last"}
    if name not in _UNSEEN:
        assert found == {"first"}
    telemetry.check()
