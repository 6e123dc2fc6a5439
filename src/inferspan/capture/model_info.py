"""Static facts of a model, read once: name, architecture, size, dtype, quantisation, attention, adapters, device.

Only names and numbers are read, never the values of parameters, so meta, offloaded and sharded models are safe. A local path is
never reported whole: it may hold a user's name. What is not known is left out.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import PurePath
from typing import Any

from torch import nn

from inferspan import semconv
from inferspan.capture.compile.state import is_compiled, is_optimized
from inferspan.guard import contain
from inferspan.records import AttributeValue, ModelInfo
from inferspan.settings import Settings

__all__ = ["has_plain_generate", "is_text_only", "model_device", "model_info", "sharded_vocabulary"]

_CACHED = re.compile(r"models--(?P<org>[^/\\]+?)--(?P<name>[^/\\]+)(?:[/\\]snapshots[/\\](?P<sha>[0-9a-f]{7,40}))?")
_HUB_ID = re.compile(r"^[\w.-]+(?:/[\w.-]+)?$")


def _name_and_revision(config: Any) -> tuple[str | None, str | None]:
    path = getattr(config, "_name_or_path", None)
    revision = getattr(config, "_commit_hash", None)
    revision = revision if isinstance(revision, str) else None
    if not isinstance(path, str) or not path:
        return None, revision
    cached = _CACHED.search(path)
    if cached:
        return f"{cached['org']}/{cached['name']}", revision or cached["sha"]
    if _HUB_ID.match(path) and not path.startswith("."):
        return path, revision
    return PurePath(path.replace("\\", "/")).name or None, revision


def _quantization(config: Any) -> dict[str, AttributeValue]:
    options = getattr(config, "quantization_config", None)
    if options is None:
        return {}
    values = options if isinstance(options, dict) else getattr(options, "__dict__", {})
    found: dict[str, AttributeValue] = {}
    method = values.get("quant_method")
    if method is not None:
        found[semconv.MODEL_QUANTIZATION_METHOD] = str(getattr(method, "value", method))
    bits = values.get("bits") or (4 if values.get("load_in_4bit") or values.get("_load_in_4bit") else None)
    bits = bits or (8 if values.get("load_in_8bit") or values.get("_load_in_8bit") else None)
    if isinstance(bits, int):
        found[semconv.MODEL_QUANTIZATION_BITS] = bits
    return found


def _parameters(model: nn.Module, quantized: bool) -> dict[str, AttributeValue]:
    count, dtype = 0, None
    for parameter in model.parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            return {}
        count += parameter.numel()
        if dtype is None and parameter.is_floating_point():
            dtype = str(parameter.dtype).removeprefix("torch.")
    found: dict[str, AttributeValue] = {}
    # Packed weights hold several parameters in an element, so their number would be wrong.
    if count and not quantized:
        found[semconv.MODEL_PARAMETERS] = count
    if dtype:
        found[semconv.MODEL_DTYPE] = dtype
    return found


def _adapters(model: nn.Module) -> dict[str, AttributeValue]:
    if "peft_config" not in dir(type(model)) and "peft_config" not in model.__dict__:
        return {}
    active = getattr(model, "active_adapters", None)
    active = active() if callable(active) else active
    names = [active] if isinstance(active, str) else list(active or ())
    return {semconv.MODEL_ADAPTERS: [str(name) for name in names]} if names else {}


def _compilation(model: nn.Module) -> dict[str, AttributeValue]:
    return {semconv.MODEL_COMPILE_MODE: "default" if is_compiled(model) or is_optimized(model) else "none"}


def model_device(model: nn.Module) -> Any:
    """Device of the first parameter or buffer (a ``torch.device``), ``None`` for a model that has neither."""
    with contain("model device"):
        for tensor in (*model.parameters(), *model.buffers()):
            return tensor.device
    return None


def is_text_only(model: nn.Module) -> bool:
    """Whether the configuration names neither a vision nor an audio part."""
    config = getattr(model, "config", None)
    return not any(hasattr(config, name) for name in ("vision_config", "audio_config"))


def has_plain_generate(model: nn.Module) -> bool:
    """Whether ``model.generate()`` is that of transformers, wrapped or not, so that its result has the documented meaning."""
    inner = getattr(model, "_orig_mod", model)
    method = getattr(type(inner), "generate", None)
    mixin = getattr(sys.modules.get("transformers.generation.utils"), "GenerationMixin", None)
    if mixin is None or method is None or "generate" in inner.__dict__:
        return False
    return inspect.unwrap(method) is inspect.unwrap(mixin.generate)


def sharded_vocabulary(model: nn.Module) -> int:
    """Number of entries of whole logits, if the model is tensor-parallel, so that its logits may be parts; else 0."""
    parallel = getattr(model, "_tp_size", None) or 0
    config = getattr(model, "config", None)
    if not isinstance(parallel, int) or parallel < 2 or config is None:
        return 0
    text = getattr(config, "get_text_config", None)
    size = getattr(text(decoder=True) if callable(text) else config, "vocab_size", None)
    return size if type(size) is int else 0


def model_info(model: nn.Module, settings: Settings) -> ModelInfo:
    """Collect the facts of ``model``; nothing raises; facts that cannot be read are left out."""
    attributes: dict[str, AttributeValue] = {}
    architecture = type(model).__name__
    name = revision = None
    config = None
    with contain("model facts"):
        inner = getattr(model, "_orig_mod", model)
        architecture = type(inner).__name__
        config = getattr(inner, "config", None)
        name, revision = _name_and_revision(config)
    with contain("model facts"):
        attributes |= {semconv.MODEL_ARCHITECTURE: architecture}
        if revision:
            attributes[semconv.MODEL_REVISION] = revision
        for key, attribute in ((semconv.MODEL_TYPE, "model_type"), (semconv.MODEL_ATTENTION, "_attn_implementation")):
            value = getattr(config, attribute, None)
            if isinstance(value, str) and value:
                attributes[key] = value
        attributes |= _quantization(config)
    for part in (_adapters, _compilation):
        with contain("model facts"):
            attributes |= part(model)
    with contain("model facts"):
        attributes |= _parameters(model, semconv.MODEL_QUANTIZATION_METHOD in attributes)
    with contain("model facts"):
        device = model_device(model)
        if device is not None:
            attributes |= {semconv.DEVICE: str(device), semconv.DEVICE_TYPE: device.type}
    transformers_model = any(base.__module__.split(".")[0] == "transformers" for base in type(model).__mro__) or hasattr(
        type(model), "generate"
    )
    provider = settings.provider_name or (semconv.PROVIDER_HUGGINGFACE if transformers_model else semconv.PROVIDER_PYTORCH)
    return ModelInfo(settings.model_name or name or (architecture if config is None else None), provider, architecture, attributes)
