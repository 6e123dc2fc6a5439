"""Where a model is: device, dtype and shape of its first weights, which stand for the others."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import nn

from inferspan.guard import read_attribute

__all__ = ["Place", "PlaceOfModel", "first_parameter"]

MOST_WITHOUT_DTYPE = 64
"""Parameters that are looked at in search of one of floating point."""
DEEPEST = 100
"""Modules that contain each other would be walked without end."""


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
        self._known = None if found is None else (structure, *found)
        return _place(model)


def _first(model: nn.Module) -> tuple[weakref.ref[nn.Module], str] | None:
    """Where the first parameter is, if that is one of floating point."""
    for module in model.modules():
        for name, tensor in module._parameters.items() if isinstance(module._parameters, dict) else ():
            if tensor is not None:
                return (weakref.ref(module), name) if tensor.is_floating_point() else None
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


def first_parameter(model: Any, depth: int = 0) -> Any:
    """What ``model.parameters()`` gives first, ``None`` if that is nothing. Its generators and names would take ten times as long."""
    own, inner = getattr(model, "_parameters", None), getattr(model, "_modules", None)
    if not isinstance(own, dict) or not isinstance(inner, dict) or depth > DEEPEST:
        return next(model.parameters(), None)
    for parameter in own.values():
        if parameter is not None:
            return parameter
    for module in inner.values():
        if module is not None and (found := first_parameter(module, depth + 1)) is not None:
            return found
    return None
