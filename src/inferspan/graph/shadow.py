"""A copy of a model whose weights are fake: tracing works on it, so that nothing of the model itself can change."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .errors import TraceError

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def new_mode() -> FakeTensorMode:
    """A mode in which tensors have shape, dtype and device, and no values."""
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def fake_like(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A fake tensor of the same shape, strides and dtype; tensors on ``meta`` become CPU tensors, beside which constants can stand."""
    device = torch.device("cpu") if tensor.device.type == "meta" else tensor.device
    if tensor.layout != torch.strided:
        raise TraceError(f"weights of layout {tensor.layout} cannot be traced", "other")
    with mode:
        return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=device)


def shadow(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Copy a model with fake parameters and buffers. Hooks are shared, not copied: they may hold what cannot be copied.

    Raises:
        TraceError: something that the model holds cannot be copied.
    """
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) not in memo:
            fake = fake_like(tensor.detach(), mode)
            memo[id(tensor)] = nn.Parameter(fake, requires_grad=False) if isinstance(tensor, nn.Parameter) else fake
    for module in model.modules():
        for name in _HOOKS:
            memo.update({id(hook): hook for hook in getattr(module, name, {}).values()})
    try:
        return copy.deepcopy(model, dict(memo))
    except Exception:
        memo.update(_shared(model, memo))
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise TraceError(f"the model cannot be copied for tracing: {type(error).__name__}: {error}", "other") from error


def _shared(model: nn.Module, memo: dict[int, Any]) -> dict[int, Any]:
    """What modules hold and cannot be copied, such as operators and locks: the copy shares it."""
    found: dict[int, Any] = {}
    for module in model.modules():
        for name, value in module.__dict__.items():
            if name not in ("_modules", "_parameters", "_buffers"):
                try:
                    copy.deepcopy(value, dict(memo))
                except Exception:
                    found[id(value)] = value
    return found
