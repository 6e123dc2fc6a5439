"""Inputs by the signature of a model's forward: from a sample to names, from names to a call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def inputs_of(model: nn.Module, sample: Mapping[str, Any] | tuple[Any, ...] | torch.Tensor) -> dict[str, Any]:
    """A sample batch as keyword arguments of the model's forward; the cache is off unless the sample says otherwise.

    Raises:
        TypeError: the sample is neither a mapping nor a tuple, or does not fit forward's signature.
    """
    signature = inspect.signature(model.forward)
    if isinstance(sample, Mapping):
        given = dict(sample)
    else:
        values = (sample,) if isinstance(sample, torch.Tensor) else sample
        if not isinstance(values, (tuple, list)):
            raise TypeError(f"sample_inputs is a mapping of keyword arguments or a tuple, not {type(sample).__name__}")
        given = dict(signature.bind(*values).arguments)
    if _without_cache(signature, given):
        given.setdefault("use_cache", False)
    return given


def defaults(model: nn.Module, names: Mapping[str, Any]) -> dict[str, Any]:
    """What a call leaves to forward's own defaults where it gives these names, by parameter; the cache is off as in ``inputs_of``."""
    signature = inspect.signature(model.forward)
    found = {name: entry.default for name, entry in signature.parameters.items() if entry.default is not inspect.Parameter.empty}
    if _without_cache(signature, names):
        found["use_cache"] = False
    return found


def _without_cache(signature: inspect.Signature, names: Mapping[str, Any]) -> bool:
    """Whether the cache is off where the sample does not ask for it."""
    return "use_cache" in signature.parameters and "past_key_values" not in names
