"""Ways of compiling a small model, each a function of the model and a backend that returns what is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo as dynamo
from torch import Tensor, nn

__all__ = ["FORMS", "Net"]


class Block(nn.Module):
    """What a layer is."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(8, 8)
        self.mlp: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.mlp(self.attention(hidden))


class Net(nn.Module):
    """Two layers, always of the same weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 4)

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


class Around(nn.Module):
    """Runs the module inside it through a compiled function of its own."""

    def __init__(self, inner: nn.Module, backend: Any) -> None:
        super().__init__()
        self.inner = inner
        self.run = torch.compile(lambda hidden: inner(hidden) * 1, backend=backend)

    def forward(self, hidden: Tensor) -> Any:
        return self.run(hidden)


def whole(model: Any, backend: Any, **options: Any) -> Any:
    return torch.compile(model, backend=backend, **options)


def one_graph(model: Any, backend: Any) -> Any:
    return whole(model, backend, fullgraph=True)


def dynamic(model: Any, backend: Any) -> Any:
    return whole(model, backend, dynamic=True)


def disabled(model: Any, backend: Any) -> Any:
    return whole(model, backend, disable=True)


def in_place(model: Any, backend: Any) -> Any:
    model.compile(backend=backend)
    return model


def own_forward(model: Any, backend: Any) -> Any:
    model.forward = torch.compile(model.forward, backend=backend)
    return model


def layers_in_place(model: Any, backend: Any) -> Any:
    for layer in model.layers:
        layer.compile(backend=backend)
    return model


def layers_replaced(model: Any, backend: Any) -> Any:
    for index, layer in enumerate(model.layers):
        model.layers[index] = torch.compile(layer, backend=backend)
    return model


def layers_forward(model: Any, backend: Any) -> Any:
    for layer in model.layers:
        layer.forward = torch.compile(layer.forward, backend=backend)
    return model


def one_layer(model: Any, backend: Any) -> Any:
    model.layers[1] = torch.compile(model.layers[1], backend=backend)
    return model


def classes(model: Any, backend: Any) -> Any:
    """``@torch.compile`` on the ``forward`` of the model's class."""
    forward: Any = torch.compile(Net.forward, backend=backend)
    model.__class__ = type("Decorated", (Net,), {"forward": forward})
    return model


def layer_classes(model: Any, backend: Any) -> Any:
    """The same for the layers."""
    forward: Any = torch.compile(Block.forward, backend=backend)
    for layer in model.layers:
        layer.__class__ = type("Decorated", (Block,), {"forward": forward})
    return model


def method(model: Any, backend: Any) -> Any:
    """``@torch.compile`` on a method that ``forward`` calls."""

    class Decorated(Block):
        @torch.compile(backend=backend)
        def inner(self, hidden: Tensor) -> Any:
            return self.mlp(self.attention(hidden))

        def forward(self, hidden: Tensor) -> Any:
            return hidden + self.inner(hidden)

    for layer in model.layers:
        layer.__class__ = Decorated
    return model


def closures(model: Any, backend: Any) -> Any:
    for layer in model.layers:
        layer.mlp = Around(layer.mlp, backend)
    return model


def hooked_closures(model: Any, backend: Any) -> Any:
    """Modules with hooks of the user's in compiled functions."""
    for layer in model.layers:
        layer.mlp.register_forward_hook(lambda *_: None)
    return closures(model, backend)


def hooked(model: Any, backend: Any) -> Any:
    model.register_forward_hook(lambda *_: None)
    model.layers[0].register_forward_hook(lambda *_: None)
    return whole(model, backend)


def loss(model: Any, backend: Any) -> Any:
    return torch.compile(lambda hidden: model(hidden).sum(), backend=backend)


def loss_in_place(model: Any, backend: Any) -> Any:
    """A compiled function around a model that is compiled in place."""
    return loss(in_place(model, backend), backend)


def part(model: Any, backend: Any) -> Any:
    return torch.compile(lambda hidden: model.layers[0](hidden), backend=backend)


def breaks(model: Any, backend: Any) -> Any:
    """A graph that breaks in each layer."""

    class Broken(Block):
        def forward(self, hidden: Tensor) -> Any:
            between = self.attention(hidden)
            dynamo.graph_break()
            return hidden + self.mlp(between)

    for layer in model.layers:
        layer.__class__ = Broken
    return whole(model, backend)


def broken_closures(model: Any, backend: Any) -> Any:
    """The same inside a compiled function that the model calls."""
    breaks(model, backend)
    model.layers[1] = Around(model.layers[1], backend)
    return model


def without_a_part(model: Any, backend: Any) -> Any:
    model.layers[1].forward = torch.compiler.disable(model.layers[1].forward)
    return whole(model, backend)


def in_place_without_a_part(model: Any, backend: Any) -> Any:
    model.layers[1].forward = torch.compiler.disable(model.layers[1].forward)
    return in_place(model, backend)


WHOLE, PARTS = "modules: compiled", "modules: compiled in parts"
FORMS: dict[Callable[[Any, Any], Any], str | None] = {
    whole: WHOLE,
    one_graph: WHOLE,
    dynamic: WHOLE,
    hooked: WHOLE,
    breaks: WHOLE,
    without_a_part: WHOLE,
    in_place: WHOLE,
    in_place_without_a_part: WHOLE,
    own_forward: WHOLE,
    classes: WHOLE,
    layers_in_place: PARTS,
    layers_replaced: PARTS,
    layers_forward: PARTS,
    layer_classes: PARTS,
    one_layer: PARTS,
    method: PARTS,
    closures: PARTS,
    hooked_closures: PARTS,
    broken_closures: PARTS,
    disabled: None,
    loss: "",
    loss_in_place: "",
    part: "",
}
"""Each form, and what ``inferspan.unobserved`` says of it: nothing where all is seen, and an empty string where no request is seen."""
