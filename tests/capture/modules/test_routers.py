"""Routers of every model of transformers with experts: what a span says equals what the experts were given, and the router's own layer.

The loads are counted in the arguments of the experts; where these are not told, they are chosen anew of the logits, and for experts with a
capacity counted in the weights of the tokens. The logits are those of the router's linear layer in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inferspan import semconv
from tests.cases import models
from tests.cases.experts import CAPACITY, KINDS, TOP, experts, given
from tests.cases.telemetry import Telemetry

NAMES = ("gate", "router")
WITH_CAPACITY = ("NllbMoe", "SwitchTransformers")


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """The truth is taken by hooks, and modules with hooks of a program are not observed once something was compiled in the process."""
    torch._dynamo.reset()


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Everything that inferspan emits during the test."""
    listener = Telemetry()
    yield listener
    listener.close()


class Truth:
    """What happens at the routers of a model from now on, in order of their calls."""

    def __init__(self, model: nn.Module, kind: str) -> None:
        self.logits: list[Tensor] = []
        self.loads: list[list[int]] = []
        self.dropped: list[int] = []
        self._kind = kind
        self._layer: Tensor | None = None
        for path, module in model.named_modules():
            parent = model.get_submodule(path.rpartition(".")[0]) if path else model
            if path.rpartition(".")[2] in NAMES and ("experts" in parent._modules or kind == "JetMoe"):
                module.register_forward_hook(self._routed, with_kwargs=True)
                for layer in module.modules():
                    if isinstance(layer, nn.Linear) and layer is not module:
                        layer.register_forward_hook(self._computed)
                if isinstance(parent._modules.get("experts"), nn.Module):
                    parent.experts.register_forward_hook(self._served, with_kwargs=True)  # type: ignore[union-attr]

    def _computed(self, layer: nn.Module, args: Any, output: Tensor) -> None:
        self._layer = output.detach().double()

    def _routed(self, router: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        weight: Any = getattr(router, "weight", None)
        hidden = args[0].double() if args else kwargs["hidden_states"].double()
        if self._kind == "Inkling":  # the last rows of its layer are those of experts that every token goes to
            logits = nn.functional.linear(hidden, weight.double())[..., : output[0].shape[-1]]
        elif weight is not None:
            bias: Any = getattr(router, "bias", None)
            logits = nn.functional.linear(hidden, weight.double(), None if bias is None else bias.double())
        elif self._layer is not None:
            logits = self._layer
        else:  # its layer is not called, but its weight used
            (weight,) = (one.weight.double() for one in router.modules() if isinstance(one, nn.Linear))
            logits = nn.functional.linear(hidden, weight)
        self.logits.append(logits.reshape(-1, logits.shape[-1]).detach())
        if self._kind in ("JetMoe", "Llama4"):
            self._take(self.logits[-1].topk(TOP, -1).indices)
        elif self._kind == "SwitchTransformers":
            taken = nn.functional.one_hot(logits.argmax(-1), logits.shape[-1])
            self._weigh(taken * (taken.cumsum(-2) <= CAPACITY))
        elif self._kind == "NllbMoe":
            self._weigh(output[1])

    def _weigh(self, weights: Tensor) -> None:
        taken = weights.reshape(-1, weights.shape[-1]) > 0
        self.loads.append(taken.sum(0).tolist())
        self.dropped.append(int((taken.sum(-1) == 0).sum()))

    def _served(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._kind in ("Llama4", *WITH_CAPACITY):
            return
        (indices,) = (one for one in (*args, *kwargs.values()) if isinstance(one, Tensor) and not one.is_floating_point())
        self._take(indices)

    def _take(self, indices: Tensor) -> None:
        self.loads.append(torch.bincount(indices.reshape(-1), minlength=self.logits[-1].shape[-1]).tolist())

    def entropies(self) -> list[float]:
        """Mean entropy of each call."""
        return [float(torch.special.entr(logits.softmax(-1)).sum(-1).mean()) for logits in self.logits]


def _routers(telemetry: Telemetry) -> list[dict[str, Any]]:
    return [attributes for span in telemetry.modules() if semconv.EXPERTS_IMBALANCE in (attributes := dict(span.attributes or {}))]


def _ask(model: Any) -> Tensor:
    torch.manual_seed(0)
    result: Tensor = model.generate(given(), max_new_tokens=2, min_new_tokens=2, do_sample=False)
    return result


@pytest.mark.skipif(version("transformers").startswith("4."), reason="what the experts were given is read from blocks of transformers 5")
@pytest.mark.parametrize("kind", KINDS)
def test_every_model(telemetry: Telemetry, kind: str) -> None:
    """Each call of a router has the tokens of each expert, imbalance and entropy; nothing is said to be unknown."""
    model = experts(kind)
    telemetry.instrument(model, routing=True, every_step=True)
    truth = Truth(model, kind)
    _ask(model)
    telemetry.check()
    found = _routers(telemetry)
    assert len(found) == len(truth.logits) > 0
    width = truth.logits[0].shape[-1]
    if width <= 256:
        assert [one[semconv.EXPERTS_LOAD] for one in found] == [tuple(load) for load in truth.loads]
    assert [one[semconv.EXPERTS_IMBALANCE] for one in found] == pytest.approx([max(load) * width / sum(load) for load in truth.loads])
    assert [one[semconv.EXPERTS_ENTROPY] for one in found] == pytest.approx(truth.entropies(), rel=1e-4)
    assert [one[semconv.EXPERTS_DROPPED] for one in found if kind in WITH_CAPACITY] == truth.dropped
    (request,) = telemetry.requests()
    assert "experts" not in str((request.attributes or {}).get(semconv.UNOBSERVED, ""))


class Block(nn.Module):
    """Experts behind a plain linear layer, as in transformers 4, each called with its tokens."""

    def __init__(self, *, correction: bool = False, top_k: int | None = TOP) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        if top_k is not None:
            self.top_k = top_k
        self.register_buffer("expert_bias", torch.arange(4.0) if correction else None)
        self.loads: list[int] = []

    def forward(self, hidden: Tensor) -> Tensor:
        """Rows of hidden states."""
        scores = self.gate(hidden).sigmoid()
        chosen = (scores if self.expert_bias is None else scores + self.expert_bias).topk(TOP, -1).indices
        taken = nn.functional.one_hot(chosen, 4).sum(-2).bool()
        self.loads = taken.sum(0).tolist()
        return torch.stack([expert(hidden) * taken[:, [number]] for number, expert in enumerate(self.experts)]).sum(0)


class Stack(nn.Module):
    """One block in a list of layers."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList([block])

    def forward(self, hidden: Tensor) -> Tensor:
        """Rows of hidden states."""
        result: Tensor = self.layers[0](hidden)
        return result


def _called(telemetry: Telemetry, block: nn.Module) -> dict[str, Any]:
    model = Stack(block).eval()
    telemetry.instrument(model, routing=True)
    with torch.no_grad():
        model(torch.randn(10, 8, generator=torch.Generator().manual_seed(0)))
    telemetry.check()
    (request,) = (span for span in telemetry.spans() if span.parent is None)
    return dict(request.attributes or {})


def test_a_plain_linear_layer(telemetry: Telemetry) -> None:
    """Where a block takes the experts of the largest logits, a linear layer is as good as a router."""
    block = Block()
    request = _called(telemetry, block)
    assert [one[semconv.EXPERTS_LOAD] for one in _routers(telemetry)] == [tuple(block.loads)]
    assert semconv.UNOBSERVED not in request


@pytest.mark.parametrize("unknown", [{"correction": True}, {"top_k": None}], ids=["corrected", "number not known"])
def test_a_linear_layer_that_is_not_all(telemetry: Telemetry, unknown: dict[str, Any]) -> None:
    """Where the block may choose others than the largest, no choice is made up, and the request says that there is none."""
    request = _called(telemetry, Block(**unknown))
    assert _routers(telemetry) == []
    assert request[semconv.UNOBSERVED] == "experts: choice not known"


@pytest.mark.skipif(version("transformers").startswith("4."), reason="Doge with experts raises in transformers 4")
def test_experts_without_a_router_that_is_known(telemetry: Telemetry) -> None:
    """Doge finds its experts by product keys: the request says that the choice is not known."""
    model = experts("Doge", is_moe=True, num_experts=16)
    telemetry.instrument(model, routing=True, every_step=True)
    _ask(model)
    telemetry.check()
    assert _routers(telemetry) == []
    (request,) = telemetry.requests()
    assert (request.attributes or {})[semconv.UNOBSERVED] == "experts: choice not known"


def test_a_model_without_experts(telemetry: Telemetry) -> None:
    """With ``routing`` set for all models, one without experts says nothing of them."""
    model = models.llama()
    telemetry.instrument(model, routing=True)
    _ask(model)
    (request,) = telemetry.requests()
    assert semconv.UNOBSERVED not in (request.attributes or {})
