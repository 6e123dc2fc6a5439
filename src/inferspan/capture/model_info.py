"""Facts of a model: name, architecture, size, dtype, quantisation, attention, adapters, device, as they are at each call.

What may change between calls is compared with the last call by a few attribute reads; the parameters are counted again only if something
has. Only names and numbers are read, never the values of parameters, so meta, offloaded and sharded models are safe. A local path is
never reported whole: it may hold a user's name. Unknown facts are left out.
"""

from __future__ import annotations

import inspect
import re
import sys
import weakref
from dataclasses import replace
from pathlib import PurePath
from typing import Any, NamedTuple

import torch
from torch import nn

from inferspan import semconv
from inferspan.attribute_values import exportable_text
from inferspan.capture.compile.state import is_compiled, is_optimized
from inferspan.guard import ask, contain, has_attribute, read_attribute, read_attributes
from inferspan.records import AttributeValue, ModelInfo
from inferspan.settings import Settings

from .adapters import ActiveAdapters
from .device.costs import costs_of
from .device.place import Place, PlaceOfModel
from .generate.modalities import takes_modalities
from .ranks.group import RankGroup, group_of, has_process_group

__all__ = [
    "ModelFacts",
    "has_plain_generate",
    "is_text_only",
    "is_training",
    "model_info",
    "name_of",
    "sharded_vocabulary",
    "unwrapped",
]

DEEPEST = 8
"""Wrappers around wrappers."""
_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
_PACKED_BUFFERS = frozenset({"qweight", "W_q", "weight_packed"})
"""Buffers in which GPTQ, AWQ, HQQ and compressed-tensors keep packed weights."""

_HUGGINGFACE = frozenset({"transformers", "diffusers"})
"""Libraries whose models are Hugging Face's."""
_CACHED = re.compile(r"models--(?P<org>[^/\\]+?)--(?P<name>[^/\\]+)(?:[/\\]snapshots[/\\](?P<sha>[0-9a-f]{7,40}))?")
_HUB_ID = re.compile(r"^[\w.-]+(?:/[\w.-]+)?$")


def is_training(model: nn.Module | None) -> bool:
    """Whether a forward pass of ``model`` now would be one of a training loop: training mode, and gradients are on."""
    return model is not None and model.training and torch.is_grad_enabled()


def _name_and_revision(config: Any) -> tuple[str | None, str | None]:
    path = read_attribute(config, "_name_or_path")
    revision = read_attribute(config, "_commit_hash")
    revision = revision if isinstance(revision, str) else None
    if not isinstance(path, str) or not path:
        return None, revision
    name, cached = name_of(path)
    return name, revision or cached


def name_of(path: str) -> tuple[str | None, str | None]:
    """Name of the model that was loaded from ``path``, a hub id or a local path, and its revision if the path has it."""
    cached = _CACHED.search(path)
    if cached:
        return f"{cached['org']}/{cached['name']}", cached["sha"]
    if _HUB_ID.match(path) and not path.startswith("."):
        return path, None
    return PurePath(path.replace("\\", "/")).name or None, None


def _quantization(config: Any) -> dict[str, AttributeValue]:
    options = read_attribute(config, "quantization_config")
    if options is None:
        return {}
    values = options if isinstance(options, dict) else read_attribute(options, "__dict__", {})
    found: dict[str, AttributeValue] = {}
    method = values.get("quant_method")
    if method is not None:
        found[semconv.MODEL_QUANTIZATION_METHOD] = str(getattr(method, "value", method))
    bits = values.get("bits") or (4 if values.get("load_in_4bit") or values.get("_load_in_4bit") else None)
    bits = bits or (8 if values.get("load_in_8bit") or values.get("_load_in_8bit") else None)
    if isinstance(bits, int):
        found[semconv.MODEL_QUANTIZATION_BITS] = bits
    return found


def _is_packed(module: nn.Module) -> bool:
    """Whether a module keeps weights in another form than one element a parameter."""
    if issubclass(type(module), torch.jit.ScriptModule):
        return False
    # Quantised layers of torch.ao keep them in objects of TorchScript, those of other libraries in buffers or integers. A list is looked
    # through, because observers come and go on other threads.
    if any(issubclass(type(value), torch.ScriptObject) for value in [*module.__dict__.values()]):
        return True
    if any(not parameter.is_floating_point() and not parameter.is_complex() for parameter in module.parameters(recurse=False)):
        return True
    return any(name in _PACKED_BUFFERS for name, _ in module.named_buffers(recurse=False))


def unwrapped(model: nn.Module) -> nn.Module:
    """The model in wrappers for parallel work and for adapters, which have no name of their own."""
    peft = getattr(sys.modules.get("peft"), "PeftModel", ())
    for _ in range(DEEPEST):
        # Not isinstance: a class may say that it is another one.
        if issubclass(type(model), _PARALLEL):
            model = model.module  # type: ignore[assignment]
        elif peft and issubclass(type(model), peft):
            inner = ask(model, "get_base_model")
            if not isinstance(inner, nn.Module):
                break
            model = inner
        elif is_optimized(model) and (compiled := model._modules.get("_orig_mod")) is not None:
            model = compiled
        else:
            break
    return model


def _class_of(model: nn.Module) -> type:
    """The class of a model; FSDP2 makes one of its own for each, before that of the model in the order of bases."""
    sharded = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    kinds = type(model).__mro__
    return kinds[kinds.index(sharded) + 1] if sharded in kinds else kinds[0]


def _parameter_count(model: nn.Module, quantized: bool) -> int | None:
    """Parameters, tied ones once; ``None`` if there are none, or if some cannot be counted."""
    if quantized or any(_is_packed(module) for module in model.modules()):
        return None
    count = 0
    for parameter in model.parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            return None
        count += parameter.numel()
    return count or None


def _compilation(model: nn.Module) -> dict[str, AttributeValue]:
    return {semconv.MODEL_COMPILE_MODE: "default" if is_compiled(model) or is_optimized(model) else "none"}


def is_text_only(model: nn.Module) -> bool:
    """Whether the configuration names neither a vision nor an audio part."""
    config = read_attribute(model, "config")
    return not any(has_attribute(config, name) for name in ("vision_config", "audio_config"))


def has_plain_generate(model: nn.Module) -> bool:
    """Whether ``model.generate()`` is that of transformers, wrapped or not, so that its result has the documented meaning."""
    inner = read_attribute(model, "_orig_mod", model)
    method = getattr(type(inner), "generate", None)
    mixin = getattr(sys.modules.get("transformers.generation.utils"), "GenerationMixin", None)
    if mixin is None or method is None or "generate" in inner.__dict__:
        return False
    return inspect.unwrap(method) is inspect.unwrap(mixin.generate)


def sharded_vocabulary(model: nn.Module) -> int:
    """Number of entries of whole logits, if the model is tensor-parallel, so that its logits may be parts; else 0."""
    parallel = read_attribute(model, "_tp_size") or 0
    config = read_attribute(model, "config")
    if not isinstance(parallel, int) or parallel < 2 or config is None:
        return 0
    size = read_attribute(ask(config, "get_text_config", decoder=True) or config, "vocab_size")
    return size if type(size) is int else 0


def _config_of(model: nn.Module) -> Any:
    """The configuration of a model, ``None`` without one, which is found without an exception in ``nn.Module.__getattr__``."""
    kind = type(model)
    usual = kind.__getattr__ is nn.Module.__getattr__ and kind.__getattribute__ is object.__getattribute__
    if usual and "config" not in model.__dict__ and not any("config" in one.__dict__ for one in kind.__mro__):
        return model._modules.get("config") if isinstance(model._modules, dict) else None
    return read_attribute(model, "config")


class _State(NamedTuple):
    """Facts that may change between two calls, cheap to read."""

    place: Place
    attention: Any
    config: int
    path: Any
    adapters: tuple[str, ...]
    structure: tuple[int, int]
    has_process_group: bool


class ModelFacts:
    """The facts of one model as they are now.

    Args:
        settings: names that the user gives.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._adapters = ActiveAdapters()
        self._known: tuple[_State | None, ModelInfo] | None = None
        self._structure = 0
        self._ranks: RankGroup | None = None
        self._place = PlaceOfModel()
        self._plain: weakref.ref[type] | None = None
        """The class of the model, if it is no wrapper's."""

    def forget(self) -> None:
        """Read everything again at the next call: the structure of the model has changed."""
        self._structure += 1

    def read(self, model: nn.Module, adapters: tuple[str, ...] | None = None, structure: int = 0) -> ModelInfo:
        """The facts of ``model`` as they are now; nothing raises; unreadable ones are left out.

        Args:
            model: the model.
            adapters: those that the call names itself, instead of the active ones.
            structure: another number if modules have been added, taken out or replaced.
        """
        state: _State | None = None
        with contain("model facts"):
            # A look that fails takes ten times as long on a module as in its dictionary. A scripted one has another kind of it.
            parts: Any = model.__dict__.get("_modules")
            inner = (parts.get("_orig_mod") or model) if isinstance(parts, dict) else read_attribute(model, "_orig_mod", model)
            config = _config_of(self._unwrapped(inner))
            if adapters is None:
                adapters = self._adapters.read(inner)
            attention, path = (None, None) if config is None else read_attributes(config, "_attn_implementation", "_name_or_path")
            versions = (self._structure, structure)
            state = _State(self._place.read(model, versions), attention, id(config), path, adapters, versions, has_process_group())
        known = self._known
        if known is not None and state is not None and known[0] == state:
            return known[1]
        info = _collect(model, self._settings, state)
        self._ranks = group_of(unwrapped(model), self._settings.ranks, self._ranks)
        if self._ranks is not None:
            info = replace(info, ranks=self._ranks)
        self._known = state, info
        return info

    def _unwrapped(self, model: nn.Module) -> nn.Module:
        """As ``unwrapped``, which looks at a class once."""
        kind, plain = type(model), self._plain
        if plain is not None and plain() is kind:
            return model
        inner = unwrapped(model)
        self._plain = weakref.ref(kind) if inner is model else None
        return inner


def model_info(model: nn.Module, settings: Settings) -> ModelInfo:
    """Collect the facts of ``model`` once; nothing raises; facts that cannot be read are left out."""
    return ModelFacts(settings).read(model)


def _collect(model: nn.Module, settings: Settings, state: _State | None) -> ModelInfo:
    attributes: dict[str, AttributeValue] = {}
    architecture = type(model).__name__
    name = revision = None
    config = None
    with contain("model facts"):
        inner = read_attribute(model, "_orig_mod", model)
        inner = unwrapped(inner)
        architecture = _class_of(inner).__name__
        config = read_attribute(inner, "config")
        name, revision = _name_and_revision(config)
    with contain("model facts"):
        attributes |= {semconv.MODEL_ARCHITECTURE: architecture}
        if revision:
            attributes[semconv.MODEL_REVISION] = revision
        for key, attribute in ((semconv.MODEL_TYPE, "model_type"), (semconv.MODEL_ATTENTION, "_attn_implementation")):
            value = read_attribute(config, attribute)
            if isinstance(value, str) and value:
                attributes[key] = value
        attributes |= _quantization(config)
        taken = takes_modalities(inner)
        if taken:
            attributes[semconv.MODEL_MODALITIES] = taken
    with contain("model facts"):
        attributes |= _compilation(model)
    with contain("model facts"):
        count = _parameter_count(model, semconv.MODEL_QUANTIZATION_METHOD in attributes)
        if count is not None:
            attributes[semconv.MODEL_PARAMETERS] = count
    costs: Any = None
    if state is not None:
        attributes |= _of_state(state)
        with contain("roofline"):
            costs = costs_of(unwrapped(read_attribute(model, "_orig_mod", model)), state.place.device, state.place.dtype, settings)
    kind = type(unwrapped(model))
    libraries = {base.__module__.partition(".")[0] for base in kind.__mro__}
    huggingface = bool(libraries & _HUGGINGFACE) or hasattr(kind, "generate")
    provider = settings.provider_name or (semconv.PROVIDER_HUGGINGFACE if huggingface else semconv.PROVIDER_PYTORCH)
    known = settings.model_name or name or (architecture if config is None else None)
    # Of a folder whose name is no UTF-8, it would cost the spans of a whole batch.
    known = None if known is None else exportable_text(known)
    return ModelInfo(known, exportable_text(provider), exportable_text(architecture), attributes, costs)


def _of_state(state: _State) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    device, dtype, _ = state.place
    if dtype is not None:
        attributes[semconv.MODEL_DTYPE] = dtype
    if device is not None:
        attributes |= {semconv.DEVICE: str(device), semconv.DEVICE_TYPE: device.type}
    if state.adapters:
        attributes |= {semconv.MODEL_ADAPTERS: list(state.adapters), semconv.ADAPTER: "+".join(state.adapters)}
    return attributes
