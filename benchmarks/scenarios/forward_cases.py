"""Plain forward passes."""

# ruff: noqa: D103 - the name of a scenario says what it is; a docstring is there where it does not
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import inferspan
from benchmarks.scenarios import models
from benchmarks.scenarios.models import prompt
from benchmarks.scenarios.registry import Table
from benchmarks.scenarios.run import Run

scenario = Table("forward")
HIDDEN = torch.ones(2, 4)


class Block(nn.Module):
    """A layer that may be told to do something first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.before: Callable[[], None] | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        if self.before is not None:
            self.before()
        return torch.relu(self.linear(hidden))


class Net(nn.Module):
    """Two layers that take their input by keyword only, and a parent that may recover from a failing one."""

    layers: Any

    def __init__(self, *, recover: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
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


@scenario
def forward_linear(run: Run) -> None:
    run.forward(run.watch(nn.Linear(4, 2)), HIDDEN)


@scenario
def forward_by_keyword(run: Run) -> None:
    model = run.watch(Net())
    for _ in range(3):
        run.forward(model, hidden=HIDDEN)


@scenario
def forward_all_modules(run: Run) -> None:
    run.forward(run.watch(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 2))), modules="all"), HIDDEN)


@scenario
def forward_many_passes(run: Run) -> None:
    """Passes of which some have module spans."""
    model = run.watch(Net(), module_metric=True)
    for _ in range(9):
        run.forward(model, hidden=HIDDEN)


@scenario
def forward_budget(run: Run) -> None:
    run.forward(run.watch(nn.Sequential(*(nn.Linear(4, 4) for _ in range(12))), modules="all", max_spans_per_trace=6), HIDDEN)


@scenario
def forward_of_a_language_model(run: Run) -> None:
    run.forward(run.watch(models.llama()), prompt(2))


@scenario
def forward_of_a_language_model_in_bfloat16(run: Run) -> None:
    run.forward(run.watch(models.llama().to(torch.bfloat16), modules="all"), prompt(2))


@scenario
def forward_of_an_encoder_decoder(run: Run) -> None:
    run.forward(run.watch(models.t5()), input_ids=prompt(2), decoder_input_ids=prompt(2, 3))


@scenario
def forward_embeddings(run: Run) -> None:
    run.forward(run.watch(models.llama().model, operation="embeddings"), prompt(2))


@scenario
def forward_output_statistics(run: Run) -> None:
    model = run.watch(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), modules="all", output_stats=True)
    run.forward(model, HIDDEN)
    run.forward(model, torch.full((2, 4), float("nan")))


@scenario
def forward_error(run: Run) -> None:
    model = run.watch(Net())
    model.layers[1].before = _fail
    run.forward(model, hidden=HIDDEN, raises=ValueError)
    model.layers[1].before = None
    run.forward(model, hidden=HIDDEN)


@scenario
def forward_error_recovered(run: Run) -> None:
    model = run.watch(Net(recover=True))
    model.layers[0].before = _fail
    run.forward(model, hidden=HIDDEN)


@scenario
def forward_error_kept(run: Run) -> None:
    model = run.watch(Net(), keep="errors")
    run.forward(model, hidden=HIDDEN)
    model.layers[1].before = _fail
    run.forward(model, hidden=HIDDEN, raises=ValueError)


@scenario
def forward_interrupted(run: Run) -> None:
    model = run.watch(Net())
    model.layers[1].before = _interrupt
    run.forward(model, hidden=HIDDEN, raises=KeyboardInterrupt)
    model.layers[1].before = None
    run.forward(model, hidden=HIDDEN)


@scenario
def forward_interrupted_and_detached(run: Run) -> None:
    model = run.watch(Net())
    model.layers[0].before = _interrupt
    run.forward(model, hidden=HIDDEN, raises=KeyboardInterrupt)
    run.handles[-1].uninstrument()


class Outer(nn.Module):
    """Holds another model, and calls it twice."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.last = nn.Linear(4, 4)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.last(self.inner(hidden=self.inner(hidden=hidden)))


@scenario
def forward_model_in_a_model(run: Run) -> None:
    inner = run.watch(Net())
    run.forward(run.watch(Outer(inner), modules="all"), HIDDEN)


class Recursive(nn.Module):
    """Calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, hidden: Tensor, depth: int = 2) -> Tensor:
        hidden = self.linear(hidden)
        return self(hidden, depth - 1) if depth else hidden


@scenario
def forward_recursive(run: Run) -> None:
    run.forward(run.watch(Recursive(), modules="all"), HIDDEN)


@dataclass
class Odd:
    """An output of a kind of its own."""

    first: Tensor
    rest: list[Any]


class OddOutputs(nn.Module):
    """Returns what tracers do not expect."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.part = nn.Identity()

    def forward(self, hidden: Tensor, *rest: Any, **more: Any) -> Any:
        kinds = {"none": None, "text": "done", "dict": {"a": hidden, "b": [hidden, (hidden,)]}, "class": Odd(hidden, [hidden])}
        return self.part(kinds[self.kind])


@scenario
def forward_odd_outputs(run: Run) -> None:
    for kind in ("none", "text", "dict", "class"):
        run.forward(run.watch(OddOutputs(kind), modules="all"), HIDDEN, [HIDDEN, {"x": HIDDEN}], flag=True)


@scenario
def forward_in_training(run: Run) -> None:
    model = run.watch(nn.Sequential(Block(), nn.Dropout(0.5), Block()), modules="all").train()
    loss = model(HIDDEN).sum()
    loss.backward()
    run.outcomes.append(round(float(sum(one.grad.abs().sum() for one in model.parameters())), 4))


class Checkpointed(nn.Module):
    """Computes its layer again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Block()

    def forward(self, hidden: Tensor) -> Any:
        return checkpoint(self.layer, hidden, use_reentrant=False)


@scenario
def forward_checkpointed(run: Run) -> None:
    model = run.watch(Checkpointed(), modules="all")
    model(HIDDEN.clone().requires_grad_()).sum().backward()


@scenario
def forward_shared_module(run: Run) -> None:
    shared = nn.Linear(4, 4)
    run.forward(run.watch(nn.Sequential(shared, nn.ReLU(), shared), modules="all"), HIDDEN)


@scenario
def forward_hooks_of_the_program(run: Run) -> None:
    model = Net()
    model.layers[0].register_forward_hook(lambda module, args, output: output * 2)
    model.layers[1].register_forward_pre_hook(lambda module, args: None)
    run.forward(run.watch(model), hidden=HIDDEN)


@scenario
def forward_called_directly(run: Run) -> None:
    """``model.forward()`` goes past the call."""
    model = run.watch(Net())
    with torch.no_grad():
        run.attempt(lambda: model.forward(hidden=HIDDEN))


@scenario
def forward_traced(run: Run) -> None:
    model = run.watch(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    run.attempt(lambda: torch.jit.trace(model, HIDDEN)(HIDDEN))


@scenario
def forward_transformed(run: Run) -> None:
    model = run.watch(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    run.attempt(lambda: torch.func.vmap(model)(HIDDEN).detach())


@scenario
def forward_on_meta(run: Run) -> None:
    run.forward(run.watch(nn.Sequential(nn.Linear(4, 4, device="meta"), nn.ReLU()), modules="all"), torch.ones(2, 4, device="meta"))


@scenario
def forward_of_nothing(run: Run) -> None:
    run.forward(run.watch(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), modules="all"), torch.empty(0, 4))
    run.forward(run.watch(models.llama()), torch.empty(0, 3, dtype=torch.long), raises=RuntimeError)


@scenario
def forward_context_and_names(run: Run) -> None:
    model = run.watch(Net(), model_name="org/net", span_kind="server", module_span_name="path", mark=True)
    with inferspan.context(user_id="u-1"):
        run.forward(model, hidden=HIDDEN)


@scenario
def forward_under_autocast(run: Run) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run.forward(run.watch(Net()), hidden=HIDDEN)
