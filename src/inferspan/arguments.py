"""Arguments that several public functions take: a model, and settings.

In: what the user passed. Out: the module with its tokenizer, and resolved settings. A wrong argument raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from inferspan.guard import read_attribute

from .settings import Settings, SettingsError

__all__ = ["resolve", "unwrap"]


def unwrap(model: Any, tokenizer: Any, what: str = "instrument") -> tuple[Any, Any]:
    """The module in ``model``, and the tokenizer that comes with it.

    Raises:
        TypeError: ``model`` is no module and holds none.
    """
    from torch import nn

    from inferspan.capture.diffusion.components import components_of

    if isinstance(model, nn.Module):
        return model, tokenizer
    inner: Any = None
    with suppress(Exception):  # a property may raise anything
        inner = components_of(model) or read_attribute(model, "model")
    if isinstance(inner, nn.Module):
        return inner, tokenizer if tokenizer is not None else read_attribute(model, "tokenizer")
    named = ", or the name of another engine's model as text" if what == "generation" else ""
    raise TypeError(
        f"inferspan.{what}() takes a torch.nn.Module or a pipeline of transformers or diffusers{named}, not {type(model).__name__}"
    )


def resolve(settings: Settings | None, overrides: Mapping[str, Any]) -> Settings:
    """Settings from an object and single ones.

    Raises:
        SettingsError: one of them cannot be used.
    """
    if settings is None:
        preset = overrides.get("preset")
        return Settings.resolve({name: value for name, value in overrides.items() if name != "preset"}, preset=preset)
    if not isinstance(settings, Settings):
        raise SettingsError(f"settings must be an inferspan.Settings, not {type(settings).__name__}; pass single options as keywords")
    return settings.override(overrides) if overrides else settings
