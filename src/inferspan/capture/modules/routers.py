"""Routers of experts: which modules are some, and what their outputs say of the choice.

In: the modules of a model; outputs of its routers. Out: a ``Router`` for each, and the ``Choice`` in an output, as tensors on its device.
Outputs that are read: logits, weights and indices (transformers 5); a mask without the tokens beyond a capacity, weights and logits
(Switch, NLLB-MoE); scores that are zero for experts not chosen, and logits (Llama 4) or indices (GPT-OSS of transformers 4); indices and
weights (DeepSeek of transformers 4); what JetMoE needs to sort its tokens, and logits; logits only (DBRX, linear layers of transformers 4).
Anything else gives ``None``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from inferspan.guard import read_attribute

from .device_rows import is_plain

__all__ = ["UNREADABLE", "Choice", "Router", "Routing", "choice_of", "find_router", "has_experts"]

NAMES = ("gate", "router")
"""Names of routers beside the experts that they choose from."""
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
CHOSEN = ("top_k", "num_experts_per_tok", "moe_top_k", "moe_topk")
"""Of these a configuration may have the first one for another purpose, sampling."""
GROUPS = ("n_group", "num_expert_group")
UNREADABLE = "experts: choice not known"
"""Value of ``inferspan.unobserved``."""


class Router(NamedTuple):
    """What is known of a router besides its outputs."""

    experts: int | None
    """How many it chooses from; ``None`` if it does not say."""
    top_k: int | None
    """Experts of a token, if the block takes those with the largest logits; ``None`` if that is not known."""


class Choice(NamedTuple):
    """What a router has chosen, one row for each token, on the device of its output."""

    logits: Tensor | None
    """``[tokens, experts]``, or probabilities; ``None`` where the output has none."""
    indices: Tensor | None
    """Of the chosen experts, any shape; ``None`` where there is a mask."""
    mask: Tensor | None
    """``[tokens, experts]``, not zero for a chosen expert."""
    capacity: bool
    """Whether experts have a capacity, so that tokens may have none."""
    experts: int


class Routing:
    """The routers of a model.

    Args:
        routers: by the name of the module.
        hidden: whether the model has experts that none of them chooses from.
    """

    def __init__(self, routers: Mapping[str, Router], *, hidden: bool) -> None:
        self.routers = routers
        self.unread = hidden
        """Whether some choices cannot be read; also set by the collector of a request."""


def _number(module: object, names: Sequence[str]) -> int | None:
    for name in names:
        number = read_attribute(module, name)
        if type(number) is int and number > 0:
            return number
    return None


def experts_of(router: nn.Module) -> int | None:
    """How many experts a router chooses from; ``None`` if it does not say."""
    weight = read_attribute(router, "weight")
    width = int(weight.shape[0]) if isinstance(weight, Tensor) and weight.dim() == 2 else None
    return _number(router, EXPERTS) or width


def find_router(name: str, module: nn.Module, parent: nn.Module) -> Router | None:
    """What a module is as a router of its parent's experts; ``None`` if it is none.

    Args:
        name: of the module in the parent.
        module: that may be a router.
        parent: the block that has the experts.
    """
    if name not in NAMES:
        return None
    number = experts_of(module)
    # JetMoE has no list of experts: its two layers know how many they hold.
    beside = "experts" in parent._modules or any(
        number is not None and other is not module and _number(other, EXPERTS) == number for other in parent._modules.values()
    )
    return Router(number, _largest_of(name, module, parent)) if beside else None


def _largest_of(name: str, module: nn.Module, parent: nn.Module) -> int | None:
    """How many experts of the largest logits a block takes; ``None`` if a correction or groups of experts may change its choice."""
    if (_number(parent, GROUPS) or 1) > 1:
        return None
    beside = (other for key, other in parent._modules.items() if key not in (name, "experts") and "shared" not in key and other is not None)
    corrections = (*parent._parameters.values(), *parent._buffers.values(), *(one for other in beside for one in other.parameters()))
    if any(one is not None for one in corrections):
        return None
    return _number(parent, CHOSEN) or _number(module, CHOSEN) or _number(read_attribute(parent, "config"), CHOSEN[1:])


def has_experts(root: nn.Module) -> bool:
    """Whether something in a model holds several experts."""
    return any("experts" in module._modules or (_number(module, EXPERTS) or 0) > 1 for module in root.modules())


def choice_of(output: Any, router: Router) -> Choice | None:
    """The choice in the output of a router; ``None`` if it cannot be read. Nothing here waits for the device."""
    if is_plain(output):
        return _of_logits(output, router.top_k)
    if not isinstance(output, tuple | list) or not 2 <= len(output) <= 6:
        return None
    parts = [one.detach() if isinstance(one, Tensor) else None for one in output]
    first, second, third, last = parts[0], parts[1], parts[2] if len(parts) > 2 else None, parts[-1]
    if first is None:
        return None
    if is_plain(first):
        if third is not None and _is_integer(third):
            return _of_indices(first, third)
        if len(parts) == 2 and second is not None and first.dim() == 2:
            if _is_integer(second):
                return Choice(None, second, None, False, first.shape[-1]) if _fits(first, second) else None
            return Choice(_rows(second), None, first != 0, False, first.shape[-1]) if first.shape == second.shape else None
        return None
    if not _is_integer(first):
        return None
    if len(parts) > 2 and last is not None and is_plain(last) and last.dim() >= 2:
        if first.numel() == last.numel() and first.dim() >= 2:
            return _of_mask(first, second, last)
        return _of_logits(last, first.numel() // _tokens(last)) if first.dim() == 1 else None
    if second is None or not is_plain(second) or second.shape != first.shape or router.experts is None or first.dim() < 2:
        return None
    # One column for each expert, or one for each choice.
    masked = first.shape[-1] == router.experts
    return _of_mask(first, second, None) if masked else Choice(None, first, None, False, router.experts)


def _is_integer(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.dtype in (torch.int64, torch.int32, torch.bool) and not tensor.is_meta


def _tokens(logits: Tensor) -> int:
    return max(1, logits.numel() // max(1, logits.shape[-1]))


def _rows(logits: Tensor) -> Tensor:
    return logits.reshape(-1, logits.shape[-1])


def _fits(logits: Tensor, indices: Tensor) -> bool:
    return indices.dim() >= 2 and indices.numel() > 0 and _tokens(logits) * indices.shape[-1] == indices.numel()


def _of_logits(logits: Tensor, chosen: int | None) -> Choice | None:
    if chosen is None or logits.dim() < 2 or not 0 < chosen <= logits.shape[-1] or not logits.numel():
        return None
    rows = _rows(logits.detach())
    return Choice(rows, rows.topk(chosen, dim=-1).indices, None, False, rows.shape[-1])


def _of_indices(logits: Tensor, indices: Tensor) -> Choice | None:
    if logits.dim() < 2 or not _fits(logits, indices):
        return None
    return Choice(_rows(logits), indices, None, False, logits.shape[-1])


def _of_mask(mask: Tensor, weights: Tensor | None, logits: Tensor | None) -> Choice | None:
    if not mask.numel():
        return None
    chosen = _rows(mask)
    if weights is not None and weights.shape == mask.shape:
        # The mask has the first choice of each token; the second one has a weight as well.
        chosen = (chosen != 0) | (_rows(weights) != 0)
    return Choice(None if logits is None else _rows(logits), None, chosen, True, mask.shape[-1])
