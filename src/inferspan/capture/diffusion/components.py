"""A diffusion pipeline as a module: its components together, each with the stage that it runs.

A pipeline of diffusers is no ``nn.Module``, but everything else here is about modules. ``Components`` holds the components of one, is never
called, and lives as long as its pipeline. diffusers is only looked up, never imported.
"""

from __future__ import annotations

import sys
import weakref
from types import SimpleNamespace
from typing import Any

from torch import nn

from inferspan import semconv
from inferspan.guard import read_attribute

__all__ = ["Components", "components_of", "is_diffusion_pipeline"]

_TEXT = ("text_encoder", "text_model", "prompt_encoder", "language_model")
_DENOISERS = ("unet", "transformer", "prior", "dit", "denoiser", "decoder")
"""How the names of components begin that predict the noise."""
_NO_DENOISERS = ("controlnet", "adapter", "connector", "projection", "upsampler", "upscaler")
_known: weakref.WeakKeyDictionary[Any, Components] = weakref.WeakKeyDictionary()


def is_diffusion_pipeline(thing: object) -> bool:
    """Whether ``thing`` is a pipeline of diffusers."""
    module = sys.modules.get("diffusers.pipelines.pipeline_utils")
    kind = getattr(module, "DiffusionPipeline", None)
    return isinstance(kind, type) and isinstance(thing, kind)


def _components(pipeline: Any) -> dict[str, nn.Module]:
    """The modules of a pipeline by name; an optional component may be missing."""
    # A component's entry names its library and class; other entries are values, which diffusers warns of when they are read as attributes.
    names = [name for name, value in pipeline.config.items() if isinstance(value, list | tuple) and not name.startswith("_")]
    found = {name: vars(pipeline).get(name) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, nn.Module)}


def _plain(module: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` has wrapped."""
    inner = read_attribute(module, "_orig_mod")
    return inner if isinstance(inner, nn.Module) else module


def _is_autoencoder(module: nn.Module) -> bool:
    module = _plain(module)
    return all(callable(getattr(type(module), name, None)) for name in ("encode", "decode"))


def _is_denoiser(name: str, module: nn.Module) -> bool:
    if name.startswith(_TEXT) or _is_autoencoder(module):
        return False
    if name.startswith(_DENOISERS):
        return True
    kind = type(_plain(module))
    mixin = getattr(sys.modules.get("diffusers.models.modeling_utils"), "ModelMixin", None)
    return mixin is not None and issubclass(kind, mixin) and not any(word in name for word in _NO_DENOISERS)


class Components(nn.Module):
    """The components of one pipeline.

    Args:
        pipeline: the pipeline; held weakly.

    Attributes:
        stages: stage that a component runs when it is called, by name of the component.
        denoisers: names of the components that a denoising step calls.
        autoencoders: names of those that encode and decode.
    """

    def __init__(self, pipeline: Any) -> None:
        super().__init__()
        self._pipeline = weakref.ref(pipeline)
        # Facts of a model are read from a configuration.
        name = read_attribute(pipeline.config, "_name_or_path") or pipeline.config.get("_name_or_path")
        self.config = SimpleNamespace(_name_or_path=name if isinstance(name, str) else None)
        self.stages: dict[str, str] = {}
        self.denoisers: tuple[str, ...] = ()
        self.autoencoders: tuple[str, ...] = ()
        self.look(pipeline)

    @property
    def pipeline(self) -> Any:
        """The pipeline, while it lives."""
        return self._pipeline()

    def look(self, pipeline: Any) -> bool:
        """Take the components as they are now; whether another one has come since."""
        components = _components(pipeline)
        if list(components.items()) == list(self._modules.items()):
            return False
        self._modules.clear()
        self._modules.update(components)
        self.denoisers = tuple(name for name, module in components.items() if _is_denoiser(name, module))
        self.autoencoders = tuple(name for name, module in components.items() if _is_autoencoder(module) and name not in self.denoisers)
        self.stages = {}
        for name in components:
            if name.startswith(_TEXT):
                self.stages[name] = semconv.STAGE_TEXT_ENCODE
            elif name.startswith("image_encoder"):
                self.stages[name] = semconv.STAGE_VISION_ENCODE
            elif name == "vocoder":
                self.stages[name] = semconv.STAGE_VOCODE
        return True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Not for use: a pipeline is called, its parts together are not."""
        raise NotImplementedError("call the pipeline")


def components_of(pipeline: Any) -> Components | None:
    """The parts of a pipeline, the same object as long as the pipeline lives; ``None`` for anything else."""
    if not is_diffusion_pipeline(pipeline):
        return None
    parts = _known.get(pipeline)
    if parts is None:
        # A class of its own, because telemetry shows the name of a model's class.
        kind = type(type(pipeline).__name__, (Components,), {"__module__": type(pipeline).__module__})
        # Without a lock, which a forked child could find held: of two threads, the first one's is taken by both.
        parts = _known.setdefault(pipeline, kind(pipeline))
    return parts
