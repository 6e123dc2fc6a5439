"""Gradients in graphs of every kind: checkpoints, autocast, compiled code, changes in place, views, frozen inputs, several outputs, DDP."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

from .nets import Net, train
from .test_gradients import IDS, _same, backwards, module_calls

REENTRANT = [pytest.param(True, id="reentrant"), pytest.param(False, id="not reentrant")]


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_checkpointed_blocks(telemetry: Telemetry, reentrant: bool) -> None:
    """What is recomputed opens no request; each module has its one span, as without checkpoints, and training stays the same."""
    plain = Net(blocks=3, reentrant=reentrant)
    model = copy.deepcopy(plain)
    handle = telemetry.instrument(model, gradients="all", modules="none")
    _same(train(model, IDS, 2), train(plain, IDS, 2))
    assert len(telemetry.forwards()) == 2
    assert len(backwards(telemetry)) == 2
    calls = Counter(module_calls(telemetry))
    assert set(calls) == {name for name, module in model.named_modules() if name and not isinstance(module, nn.ModuleList)}
    assert set(calls.values()) == {2}
    assert {row.calls for row in handle.gradients()} == {2}
    telemetry.check()


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_figures_do_not_depend_on_checkpoints(telemetry: Telemetry, reentrant: bool) -> None:
    """Without dropout they are the same, also where several backward passes go through the graph."""
    model = Net(blocks=2).eval()
    handle = telemetry.instrument(model, gradients="all")
    model(IDS).pow(2).sum().backward()
    expected = {row.module: (row.inputs, row.outputs) for row in handle.gradients()}
    model.reentrant = reentrant
    loss = model(IDS).pow(2).sum()
    for _ in range(2):
        loss.backward(retain_graph=True)
        found = {row.module: (row.last_inputs, row.last_outputs) for row in handle.gradients()}
        assert found == expected


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_a_model_that_is_checkpointed_as_a_whole(telemetry: Telemetry, reentrant: bool) -> None:
    """Its second run, in the backward pass, is no request."""
    plain = Net()
    model = copy.deepcopy(plain)
    telemetry.instrument(model, gradients="all", modules="none")

    def run(one: nn.Module) -> list[Tensor]:
        torch.manual_seed(3)
        given = torch.ones(2, 5, 5, requires_grad=True)
        result: Any = checkpoint(lambda value: one(IDS) * value, given, use_reentrant=reentrant)
        result.sum().backward()
        return [parameter.grad for parameter in one.parameters() if parameter.grad is not None]

    _same(run(model), run(plain))
    assert len(telemetry.forwards()) == 1
    assert len(backwards(telemetry)) == (0 if reentrant else 1)
    telemetry.check()


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_checkpoints_of_transformers(telemetry: Telemetry, reentrant: bool) -> None:
    """``gradient_checkpointing_enable()`` of a decoder."""
    model = models.llama()
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    telemetry.instrument(model, gradients="layers", modules="none")
    if reentrant:
        model.enable_input_require_grads()
    model(input_ids=models.prompt(), labels=models.prompt(), use_cache=False).loss.backward()
    assert Counter(module_calls(telemetry)) == Counter(
        f"model.layers.{layer}{part}" for layer in range(2) for part in ("", ".self_attn", ".mlp")
    )
    assert len(telemetry.forwards()) == 1
    telemetry.check()


def test_accumulation_under_autocast_with_a_scaler(telemetry: Telemetry) -> None:
    """bfloat16 activations, scaled losses, two backward passes for a step of the optimizer."""
    plain = Net()
    model = copy.deepcopy(plain)
    handle = telemetry.instrument(model, gradients="all")

    def run(one: nn.Module) -> list[Tensor]:
        torch.manual_seed(2)
        scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=1024.0), torch.optim.SGD(one.parameters(), lr=0.1)
        for _ in range(2):
            for _ in range(2):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = one(IDS).float().mean() / 2
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return [*one.parameters()]

    _same(run(model), run(plain))
    head = next(row for row in handle.gradients() if row.module == "head")
    assert head.outputs is not None
    assert head.outputs.max == pytest.approx(1024 / 50 / 2, rel=0.01)
    assert handle.gradients().backwards == 4
    telemetry.check()


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_compiled_autograd(telemetry: Telemetry) -> None:
    """Hooks do not run in a compiled backward pass: the results are the same, no graph breaks, and the request says so where it is known."""
    autograd: Any = pytest.importorskip("torch._dynamo.compiled_autograd")
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    given = torch.ones(3, 4)
    model(given).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    handle = telemetry.instrument(model, gradients="all", modules="none")
    loss = model(given).sum()
    torch._dynamo.utils.counters.clear()
    compiler = torch.compile(backend="eager", fullgraph=True)
    enable = getattr(autograd, "_enable", None) or autograd.enable  # the name until torch 2.5
    with enable(compiler):
        loss.backward()
        model(given)
    for mine, parameter in zip(expected, model.parameters(), strict=True):
        assert torch.allclose(mine, parameter.grad)  # type: ignore[arg-type]
    assert not torch._dynamo.utils.counters["graph_break"]
    assert backwards(telemetry) == []
    assert handle.gradients().forwards == 1
    before, inside = telemetry.forwards()
    assert semconv.UNOBSERVED not in (before.attributes or {})
    assert (inside.attributes or {})[semconv.UNOBSERVED] == "gradients: compiled autograd"
    torch._dynamo.reset()
    telemetry.check()


def test_compiled_models(telemetry: Telemetry) -> None:
    """Modules inside compiled code are not seen, and the request says so; the backward pass as a whole is."""
    torch._dynamo.reset()
    model = Net().eval()
    telemetry.instrument(model, gradients="all")
    model.compile(backend="aot_eager")
    model(IDS).sum().backward()
    (forward,) = telemetry.forwards()
    assert "gradients: compiled" in str((forward.attributes or {})[semconv.UNOBSERVED])
    assert len(backwards(telemetry)) == 1
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_compiled_parts(telemetry: Telemetry) -> None:
    """The modules around a compiled one have their gradients, which go through it, and the request says that some are not seen."""
    torch._dynamo.reset()
    model = Net().eval()
    model.layers[0] = torch.compile(model.layers[0], backend="aot_eager")  # type: ignore[assignment]
    telemetry.instrument(model, gradients=["re:layers.1$", "head"], modules="none")
    for _ in range(2):
        model(IDS).sum().backward()
    assert Counter(module_calls(telemetry)) == {"layers.1": 2, "head": 2}
    assert all("gradients: compiled" in str((span.attributes or {})[semconv.UNOBSERVED]) for span in telemetry.forwards())
    torch._dynamo.reset()


class _Function(nn.Module):
    """A module that is a function."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, hidden: Tensor) -> Any:
        return self.function(hidden)


def _unbind(hidden: Tensor) -> Tensor:
    hidden.mul_(2)
    first, second = hidden.chunk(2)
    return first * second


def _view(hidden: Tensor) -> Tensor:
    hidden[:, :2].mul_(3.0)
    return hidden.view(-1)


_PARTS: dict[str, Callable[[Tensor], Any]] = {
    "in place": lambda hidden: hidden.relu_(),
    "in place, then a part": _unbind,
    "a view in place": _view,
    "as it is": lambda hidden: hidden,
    "detached": lambda hidden: hidden.detach() + 1,
    "a constant": lambda hidden: torch.ones(2, 2),
    "expanded": lambda hidden: hidden.unsqueeze(0).expand(3, -1, -1),
    "no graph inside": torch.no_grad()(lambda hidden: hidden * 2),
}


@pytest.mark.parametrize("name", _PARTS)
def test_ways_to_use_an_input(telemetry: Telemetry, name: str) -> None:
    """Whatever a module does with its input, also what is done in place behind it: nothing raises, and gradients stay the same."""
    plain = nn.Sequential(nn.Linear(4, 4), _Function(_PARTS[name]), _Function(lambda hidden: hidden.mul(1.0)), nn.Identity())
    model = copy.deepcopy(plain)
    telemetry.instrument(model, gradients="all", modules="none")

    def run(one: Any) -> list[Tensor]:
        given = torch.arange(16.0).view(4, 4).requires_grad_()
        output = one(given)
        # A linear layer that is part of each graph.
        (output.add_(1).sum() + one[0](given).sum()).backward()
        assert given.grad is not None
        return [given.grad, *(parameter.grad for parameter in one.parameters())]

    _same(run(model), run(plain))
    telemetry.check()


def test_an_input_that_is_passed_on(telemetry: Telemetry) -> None:
    """The gradients of an identity's input and output are the same."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity(), nn.Linear(2, 2))
    handle = telemetry.instrument(model, gradients=["1"])
    model(torch.ones(1, 2)).sum().backward()
    row = handle.gradients()[1]
    assert row.inputs is not None
    assert row.inputs == row.outputs
    telemetry.check()


def test_an_input_that_is_a_leaf(telemetry: Telemetry) -> None:
    """Its gradient is seen, and has no hook of ours."""
    model = nn.Sequential(nn.Linear(4, 2))
    handle = telemetry.instrument(model, gradients="all")
    given = torch.ones(3, 4, requires_grad=True)
    model(given).sum().backward()
    assert given._backward_hooks is None
    row = handle.gradients()[1]
    assert row.inputs is not None
    assert given.grad is not None
    assert row.inputs.norm == pytest.approx(float(given.grad.norm()))
    telemetry.check()


def test_a_frozen_beginning(telemetry: Telemetry) -> None:
    """Modules whose inputs and parameters need no gradient have no backward call; the first that learns has no gradient of its input."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    handle = telemetry.instrument(model, gradients="all", modules="none")
    model(torch.ones(3, 4)).sum().backward()
    assert module_calls(telemetry) == ["2"]
    assert handle.gradients()[1].inputs is None
    telemetry.check()


def test_several_inputs_and_outputs(telemetry: Telemetry) -> None:
    """Figures are of all of them together: an LSTM, and a module with named arguments that returns a mapping."""

    class Pair(nn.Module):
        def forward(self, *, left: Tensor, right: Tensor) -> dict[str, Tensor]:
            return {"sum": left + right, "product": left * right}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 4, batch_first=True)
            self.pair = Pair()

        def forward(self, given: Tensor) -> Tensor:
            output, (hidden, cell) = self.lstm(given)
            pair = self.pair(left=output[:, -1], right=hidden[0])
            return (pair["sum"] + pair["product"] + cell[0]).sum()

    model = Model()
    handle = telemetry.instrument(model, gradients="all")
    model(torch.randn(2, 5, 3, requires_grad=True)).backward()
    rows = {row.module: row for row in handle.gradients()}
    assert rows["pair"].outputs is not None
    assert rows["pair"].inputs is not None
    assert rows["lstm"].outputs is not None
    assert rows["lstm"].inputs is not None
    assert (rows["pair"].outputs.elements, rows["pair"].inputs.elements) == (16, 16)
    assert (rows["lstm"].outputs.elements, rows["lstm"].inputs.elements) == (40 + 8 + 8, 30)
    telemetry.check()


@pytest.mark.parametrize("uses", [1, 2, 3])
def test_an_input_that_a_module_uses_several_times(telemetry: Telemetry, uses: int) -> None:
    """Its gradient is the sum."""
    model = nn.Sequential(nn.Linear(3, 3), _Function(lambda hidden: sum(hidden * (use + 1) for use in range(uses))))
    handle = telemetry.instrument(model, gradients=["1"])
    model(torch.ones(2, 3)).sum().backward()
    row = handle.gradients()[1]
    assert row.inputs is not None
    assert row.inputs.max == sum(range(uses + 1))
    assert row.inputs.elements == 6
    telemetry.check()


def test_hooks_of_the_program(telemetry: Telemetry) -> None:
    """A gradient that a hook of the program replaces is the one that is seen, and its hooks see what they saw before."""
    below, above = nn.Linear(2, 2), nn.Linear(2, 2)
    model = nn.Sequential(below, above)
    seen: list[Any] = []
    above.register_full_backward_hook(lambda module, given, taken: seen.append(taken))
    handle = telemetry.instrument(model, gradients=["0"])
    below.register_forward_hook(lambda module, args, output: output.register_hook(lambda gradient: gradient * 100) and None)
    model(torch.ones(1, 2)).sum().backward()
    row = handle.gradients()[1]
    assert row.outputs is not None
    assert row.outputs.max is not None
    assert row.outputs.norm == pytest.approx(100 * float(above.weight.detach().sum(0).norm()), rel=1e-4)
    assert torch.equal(seen[0][0], torch.ones(1, 2))
    telemetry.check()


def test_threads_that_train_at_once(telemetry: Telemetry) -> None:
    """Each backward pass is under its own forward pass."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    telemetry.instrument(model, gradients="all", modules="none")
    barrier = threading.Barrier(3)

    def work() -> None:
        barrier.wait()
        for _ in range(5):
            torch.autograd.grad(model(torch.ones(2, 4)).sum(), list(model.parameters()))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    above = Counter(span.parent.span_id for span in backwards(telemetry) if span.parent is not None)
    assert above == {span.context.span_id: 1 for span in telemetry.forwards() if span.context is not None}
    assert len(above) == 15
    assert Counter(module_calls(telemetry)) == {"0": 15, "1": 15, "2": 15}
    telemetry.check()


def test_distributed_data_parallel(telemetry: Telemetry) -> None:
    """Inside of DDP the model has the same gradients, and its spans."""
    from torch.nn.parallel import DistributedDataParallel

    store: Any = vars(torch.distributed)["HashStore"]()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        plain = Net()
        model = copy.deepcopy(plain)
        telemetry.instrument(model, gradients="layers", modules="none")
        _same(train(DistributedDataParallel(model), IDS, 2), train(plain, IDS, 2))
        assert len(backwards(telemetry)) == 2
        assert Counter(module_calls(telemetry))["layers.0"] == 2
        telemetry.check()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_device(telemetry: Telemetry) -> None:
    """Neither the forward nor the backward pass, also on a stream of the program; the results are the same."""
    plain = Net().cuda()
    model = copy.deepcopy(plain)
    ids = IDS.cuda()
    handle = telemetry.instrument(model, gradients="all", modules="none", logits=False, device_time=False)
    train(model, ids, 1)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream):
            for _ in range(3):
                model(ids).sum().backward()
        model(ids).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    head = next(row for row in handle.gradients() if row.module == "head")
    assert head.calls == 5
    assert head.outputs is not None
    assert head.outputs.mean == 1.0
    _same(train(copy.deepcopy(plain), ids, 2), train(plain, ids, 2))
    telemetry.check()
