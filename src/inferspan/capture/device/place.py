"""Where a model is: device, dtype and shape of its first weights, which stand for the others."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import nn

from inferspan.guard import contain, read_attribute

__all__ = ["Place", "PlaceOfModel", "first_parameter", "model_device"]

_NAMED = frozenset({"parameters", "named_parameters", "_named_members"})
"""Methods that say what parameters a module has."""
MOST_WITHOUT_DTYPE = 64
"""Parameters that are looked at in search of one of floating point."""


class Place(NamedTuple):
    """Of the first parameter or buffer of a model."""

    device: torch.device | None
    dtype: str | None
    shape: Any


def _execution_device(module: nn.Module) -> torch.device | None:
    """Device to which accelerate's hook moves the weights of a module when it runs; ``None`` without a hook."""
    hook = module.__dict__.get("_hf_hook")
    if hook is None:
        return None
    for one in read_attribute(hook, "hooks") or (hook,):
        device = read_attribute(one, "execution_device")
        if isinstance(device, torch.device):
            return device
        if isinstance(device, int) and not isinstance(device, bool):
            return torch.device("cuda", device)
        if isinstance(device, str):
            return torch.device(device)
    return None


_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_FLOATING = {dtype for dtype in _NAMES if dtype.is_floating_point}


def _shape(tensor: Any) -> Any:
    # The usual class first: isinstance() is a function of torch's here.
    return tensor.shape if type(tensor) is nn.Parameter or not isinstance(tensor, nn.UninitializedParameter) else None


class PlaceOfModel:
    """The place of one model; it remembers which parameter stands for the others, until the structure is another one."""

    def __init__(self) -> None:
        self._known: tuple[Any, weakref.ref[nn.Module], str] | None = None
        """The structure, and the module and name of the parameter, if that is one of floating point."""

    def read(self, model: nn.Module, structure: Any) -> Place:
        """Its place now.

        Args:
            model: the model.
            structure: equal to that of the last call if its modules are the same.
        """
        known = self._known
        if known is not None and known[0] == structure:
            module = known[1]()
            tensor = None if module is None else module._parameters.get(known[2])
            dtype = None if tensor is None else tensor.dtype
            if module is not None and tensor is not None and dtype in _FLOATING:
                # Weights that are offloaded are elsewhere until they are needed.
                device = None
                if "_hf_hook" in module.__dict__ or "_hf_hook" in model.__dict__:
                    device = _execution_device(module) or _execution_device(model)
                return Place(device or tensor.device, _NAMES[dtype], _shape(tensor))
        found = _first(model)
        usual = found is not None and isinstance(found.module._parameters, dict) and found.tensor.is_floating_point()
        self._known = (structure, weakref.ref(found.module), found.name) if found is not None and usual else None
        return _place(model)


class _Found(NamedTuple):
    """A parameter, and where it is."""

    module: nn.Module
    name: str
    tensor: Any


def _first(model: nn.Module) -> _Found | None:
    """The first parameter, in the order of ``model.modules()``, whose generators and names take ten times as long as this."""
    left, seen = [model], set[int]()
    while left:
        module = left.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        for name, tensor in module._parameters.items():
            if tensor is not None:
                return _Found(module, name, tensor)
        left.extend(reversed([child for child in module._modules.values() if child is not None]))
    return None


def _place(model: nn.Module) -> Place:
    """Device, dtype and shape of the first weights; the walk ends at the first parameter of floating point."""
    device = dtype = shape = None
    seen = 0
    for module in model.modules():
        for tensor in module._parameters.values():
            if tensor is None:
                continue
            if device is None:
                device, shape = _execution_device(module) or _execution_device(model) or tensor.device, _shape(tensor)
            if tensor.is_floating_point():
                return Place(device, _NAMES.get(tensor.dtype), shape)
            seen += 1
        if seen > MOST_WITHOUT_DTYPE:
            break
    if device is None:
        device = next((buffer.device for buffer in model.buffers()), None)
    return Place(device, dtype, shape)


def model_device(model: nn.Module) -> torch.device | None:
    """Device that the model runs on: that of its first parameter or buffer, or where accelerate moves it; ``None`` if it has neither."""
    with contain("model device"):
        found = _first(model)
        if found is None:
            return next((buffer.device for buffer in model.buffers()), None)
        device: torch.device = _execution_device(found.module) or _execution_device(model) or found.tensor.device
        return device
    return None


def first_parameter(model: Any) -> Any:
    """What ``model.parameters()`` gives first, ``None`` if that is nothing."""
    kind = type(model)
    usual = all(getattr(kind, name, None) is getattr(nn.Module, name) for name in _NAMED)
    if not usual or _NAMED & model.__dict__.keys():
        return next(model.parameters(), None)
    found = _first(model)
    return None if found is None else found.tensor
