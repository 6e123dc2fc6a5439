"""Where a model is, found without the generators of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from inferspan.capture.device.place import PlaceOfModel, first_parameter, model_device


class Listed(nn.Module):
    """Keeps its model where torch does not find it, and says so by ``parameters()``."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [nn.Linear(2, 2)]

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Those of its model."""
        return self.kept[0].parameters(recurse)


def _shared() -> Any:
    """Thirty levels without parameters that each hold the next one twice."""
    module: nn.Module = nn.Sequential(nn.Identity(), nn.Identity())
    for _ in range(30):
        module = nn.Sequential(module, module)
    return nn.Sequential(module, nn.Linear(3, 2))


def _circle() -> Any:
    one, other = nn.Sequential(nn.Identity()), nn.Sequential(nn.Identity())
    one.other, other.one = other, one
    return one


def _emptied() -> Any:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    model[0].weight = model[0].bias = None
    model.register_module("none", None)
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(2, 2), lambda: nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), nn.ReLU, Listed, _shared, _circle, _emptied,
        lambda: nn.LazyLinear(3), lambda: torch.jit.script(nn.Sequential(nn.ReLU(), nn.Linear(2, 2))),
    ],
    ids=["layer", "inside", "none", "overridden", "shared", "circle", "emptied", "lazy", "scripted"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_first_parameter(make: Callable[[], Any]) -> None:
    """It is that of ``parameters()``, however the model holds it."""
    model = make()
    found, wanted = first_parameter(model), next(model.parameters(), None)
    if wanted is None:
        assert found is None
        return
    assert found is wanted or (found.data_ptr(), found.shape) == (wanted.data_ptr(), wanted.shape)


def test_the_place_follows_the_parameter() -> None:
    """Device and dtype are those of now, although the structure is the same."""
    model, place = nn.Sequential(nn.Linear(2, 3), nn.ReLU()), PlaceOfModel()
    assert place.read(model, 0) == (torch.device("cpu"), "float32", (3, 2))
    model.to(device="meta", dtype=torch.bfloat16)
    assert place.read(model, 0) == (torch.device("meta"), "bfloat16", (3, 2))


def test_a_parameter_that_is_taken_out() -> None:
    """The next one stands for the model."""
    model, place = nn.Linear(2, 3), PlaceOfModel()
    place.read(model, 0)
    model.weight = None  # type: ignore[assignment]
    assert place.read(model, 0).shape == (3,)


def test_integers_before_weights() -> None:
    """The dtype is that of the first weights of floating point, the device that of the first ones."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.float16))
    for name in ("weight", "bias"):
        setattr(model[0], name, nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False))
    assert [PlaceOfModel().read(model, 0).dtype for _ in range(2)] == ["float16"] * 2


def test_a_hook_of_accelerate() -> None:
    """Weights that a hook moves are where the hook runs them, also if it came later."""
    model, place = nn.Sequential(nn.Linear(2, 2)), PlaceOfModel()
    place.read(model, 0)
    model[0]._hf_hook = type("Hook", (), {"execution_device": 1})()
    assert place.read(model, 0).device == model_device(model) == torch.device("cuda", 1)


def test_the_device_of_now() -> None:
    """A module that was replaced is not asked, whoever keeps it."""
    model = nn.Sequential(nn.Linear(2, 2))
    kept = model[0]
    model[0] = nn.Linear(2, 2, device="meta")
    assert model_device(model) == torch.device("meta") and kept.weight.device.type == "cpu"
