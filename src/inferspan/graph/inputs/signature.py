"""Inputs by the signature of a model's forward: from a sample to names, from names to a call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..errors import TraceError

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


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
    for name, entry in signature.parameters.items():
        if entry.kind is inspect.Parameter.VAR_POSITIONAL and not isinstance(given.get(name, ()), tuple):
            raise TypeError(f"{name} is a tuple of all that forward takes by *{name}, not {type(given[name]).__name__}")
    if _without_cache(signature, given):
        given.setdefault("use_cache", False)
    return given


def defaults(model: nn.Module, names: Mapping[str, Any]) -> dict[str, Any]:
    """What a call leaves to forward's own defaults where it gives these names, by parameter; the cache is off as in ``inputs_of``."""
    signature = inspect.signature(model.forward)
    found = {name: entry.default for name, entry in signature.parameters.items() if entry.default is not inspect.Parameter.empty}
    found.update({name: () for name, entry in signature.parameters.items() if entry.kind is inspect.Parameter.VAR_POSITIONAL})
    if _without_cache(signature, names):
        found["use_cache"] = False
    return found


def _without_cache(signature: inspect.Signature, names: Mapping[str, Any]) -> bool:
    """Whether the cache is off where the sample does not ask for it."""
    return "use_cache" in signature.parameters and "past_key_values" not in names


def by_position(signature: inspect.Signature, names: Mapping[str, Any]) -> bool:
    """Whether a call must give some of these names by position: parameters before ``/``, and ``*args``."""
    return any(name in names and entry.kind in _BY_POSITION for name, entry in signature.parameters.items())


def arguments(signature: inspect.Signature, inputs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call of forward that gives these inputs, in which ``*args`` is one tuple under its name.

    Raises:
        TraceError: a parameter before one that only goes by position is missing and has no default.
    """
    named = dict(inputs)
    positional: list[Any] = []
    if by_position(signature, inputs):
        entries = [*signature.parameters.values()]
        last = max(number for number, entry in enumerate(entries) if entry.name in inputs and entry.kind in _BY_POSITION)
        for entry in entries[: last + 1]:
            if entry.kind is inspect.Parameter.VAR_POSITIONAL:
                positional.extend(named.pop(entry.name))
                continue
            value = named.pop(entry.name, entry.default)
            if value is inspect.Parameter.empty:
                raise TraceError(f"{entry.name} is missing: {entries[last].name} goes by position and comes after it", "input")
            positional.append(value)
    return tuple(positional), named
