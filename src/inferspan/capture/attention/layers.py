"""Layers of attention of a model: modules whose path holds ``attn`` or ``attention``, and why some of them gave no weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import nn

from inferspan.capture.modules.patterns import matches, paths_of
from inferspan.capture.modules.selection import walk
from inferspan.guard import read_attribute
from inferspan.records import ModuleInfo
from inferspan.setting_checks import brief
from inferspan.settings import SettingsError

__all__ = ["Layers", "has_window", "is_cross", "why_none"]

_WORDS = ("attn", "attention")
_CROSS = ("cross", "encdec", "enc_dec", "encoder_attn")
_OTHERS = ("norm", "rotary", "dropout", "linear")
"""In names of classes without modules inside: parts of a layer that compute no attention."""


def _holds(text: str) -> bool:
    return any(word in text.lower() for word in _WORDS)


def _candidates(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    paths = paths_of(root)
    for path, module in root.named_modules():
        kind = type(module)
        if not any(map(_holds, (path, *paths.get(id(module), ())))):
            continue
        if issubclass(type(module), nn.ModuleList | nn.ModuleDict | nn.Sequential):
            continue
        if kind.__module__.startswith("torch.nn.") and not _holds(kind.__name__):
            continue
        if module._modules or not any(word in kind.__name__.lower() for word in _OTHERS):
            yield path, module


class Layers:
    """The layers that a setting means.

    Args:
        root: the model.
        wanted: value of the setting ``attention``.

    Attributes:
        homes: names of the Python modules that the layers to hook are defined in.
        listed: paths of the layers that give weights or are said to have given none.
        unhooked: why some modules could not be hooked, by path.

    Raises:
        SettingsError: a pattern matches no layer.
    """

    def __init__(self, root: nn.Module, wanted: Any) -> None:
        self.homes: frozenset[str] = frozenset()
        self.listed: list[str] = []
        self._chosen: frozenset[str] = frozenset()
        self.unhooked: dict[str, str] = {}
        if wanted == "none":
            return
        found = dict(_candidates(root))
        chosen = set(found)
        if not isinstance(wanted, str):
            chosen, paths, where = set(), paths_of(root), "inferspan setting 'attention'"
            for pattern in wanted:
                matched = {path for path, module in found.items() if matches(path, module, pattern, where, paths)}
                if not matched:
                    names = ", ".join([*found][:6]) or "none: the model has no module with attn or attention in its path"
                    raise SettingsError(f"inferspan setting 'attention': pattern {brief(pattern)} matches no layer; there are {names}")
                chosen |= matched
        seen = {path for path, _, _ in walk(root)}
        named = [path for path, module in found.items() if path in chosen and _holds(path.rpartition(".")[2] + " " + type(module).__name__)]
        self.listed = [path for path in named if not any(other.startswith(f"{path}.") for other in named)]
        for path in found:
            if path in chosen and path not in seen:
                self.unhooked[path] = "compiled"
        self._chosen = frozenset(chosen & seen)
        self.homes = frozenset(type(found[path]).__module__ for path in self._chosen)

    def entries(self, root: nn.Module) -> list[tuple[nn.Module, ModuleInfo, nn.Module]]:
        """Modules to hook, as (module, facts, parent). They are not kept here, where they would outlive the model."""
        seen = {path: (module, parent) for path, module, parent in walk(root) if path in self._chosen}
        return [
            (module, ModuleInfo(path, type(module).__name__, None, path), seen[path][1])
            for path, module in _candidates(root)
            if path in seen
        ]

    def missing(self, gave: Collection[str], reasons: Mapping[str, str], *, compiled: bool) -> dict[str, str]:
        """Layers that gave no weights in a request, with the reason.

        Args:
            gave: paths of modules that gave some.
            reasons: of modules that were called and gave none.
            compiled: whether the request ran compiled code.
        """
        found = {}
        for path in self.listed:
            if any(one == path or one.startswith(f"{path}.") or path.startswith(f"{one}.") for one in gave):
                continue
            found[path] = self.unhooked.get(path) or reasons.get(path) or ("compiled" if compiled else "not called")
        return found


def is_cross(path: str, module: nn.Module, kwargs: Mapping[str, Any]) -> bool:
    """Whether a layer attends to another sequence."""
    if any(word in path.lower() for word in _CROSS) or read_attribute(module, "is_cross_attention", False) is True:
        return True
    return any(kwargs.get(name) is not None for name in ("key_value_states", "encoder_hidden_states"))


def has_window(module: nn.Module, kwargs: Mapping[str, Any]) -> bool:
    """Whether a layer may see the latest keys only, so that its cache may have no others."""
    return any(read_attribute(one, "sliding_window") for one in (module, read_attribute(module, "config"))) or bool(
        kwargs.get("sliding_window")
    )


def why_none(module: nn.Module, output: Any, *, patched: bool) -> str:
    """Why a layer that was called gave no weights, where nothing of its attention was seen."""
    implementation = read_attribute(read_attribute(module, "config"), "_attn_implementation")
    fused = implementation not in (None, "eager")
    if issubclass(type(module), nn.MultiheadAttention):
        fused = isinstance(output, tuple) and len(output) > 1 and output[1] is None
    if not fused:
        return "not returned"
    return "fused kernel" if patched else "fused kernel, and something was compiled"
