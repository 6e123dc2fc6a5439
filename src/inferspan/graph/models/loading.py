"""A model of transformers from its configuration alone: on the ``meta`` device, without weights."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

_HEADS = (
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForImageTextToText",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForImageClassification",
    "AutoModel",
)


def configuration(model_id: str) -> Any:
    """The configuration of a hub id or a folder.

    Raises:
        ImportError: transformers is not installed.
        OSError: there is no configuration of that name, or the hub cannot be reached.
    """
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise ImportError("a model id needs transformers: pip install transformers, or give the model itself") from error
    try:
        return AutoConfig.from_pretrained(model_id)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise OSError(f"there is no configuration of {model_id!r}: {first}") from error


def class_of(config: Any, model_class: type | str | None) -> type:
    """The class to make: as given, else the one that the configuration names, else that of its automatic model.

    Raises:
        ValueError: there is no such class, or none for the configuration.
    """
    import transformers

    if isinstance(model_class, type):
        return model_class
    if isinstance(model_class, str):
        module, _, name = model_class.rpartition(":")
        try:
            found = getattr(importlib.import_module(module) if module else transformers, name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"no class {model_class!r}: {error}. It is package.module:Class, or a class of transformers") from error
        if not isinstance(found, type):
            raise ValueError(f"{model_class!r} is no class")
        return found
    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, name, None)
        if isinstance(found, type):
            return found
    for name in _HEADS:
        mapping = getattr(getattr(transformers, name, None), "_model_mapping", {})
        if type(config) in mapping:
            entry = mapping[type(config)]
            first = entry[0] if isinstance(entry, (tuple, list)) else entry
            if isinstance(first, type):
                return first
    raise ValueError(f"{type(config).__name__} names no model class: give model_class")


def make(config: Any, cls: type) -> nn.Module:
    """A model without weights. Where its constructor needs values, it is made on the CPU, with weights that nothing has trained.

    Raises:
        Exception: what the constructor raised.
    """
    build = getattr(cls, "_from_config", cls)
    try:
        with torch.device("meta"):
            model = build(config)
    except (RuntimeError, NotImplementedError):
        model = build(config)
    if not isinstance(model, nn.Module):
        raise TypeError(f"{cls.__name__} is no torch.nn.Module")
    return model.eval()
