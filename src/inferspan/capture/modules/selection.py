"""Which submodules of a model get spans, and what they are called.

In: a module and the settings ``modules``, ``module_span_name`` and ``stages``. Out: (module, static facts, parent) of each chosen
submodule, every object once. Modules inside a compiled region and scripted ones are left out: no observer of ours may be there.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from inferspan.capture.compile.state import is_compiled, is_optimized
from inferspan.records import ModuleInfo
from inferspan.setting_checks import MODULE_GROUPS, brief
from inferspan.settings import SettingsError

from .patterns import matches, paths_of
from .routers import find_router
from .stages import Wanted, find_stages

__all__ = ["select", "select_stages", "walk"]

Entry = tuple[nn.Module, ModuleInfo, nn.Module]

_SMALL = 64
"""A model without numbered layers and of at most this many modules is shown whole under ``modules="layers"``."""


def walk(root: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    """Name, module and parent of each submodule that a hook can see, each object once."""
    seen: set[int] = {id(root)}
    pending: list[tuple[str, nn.Module]] = [("", root)]
    while pending:
        prefix, parent = pending.pop(0)
        if is_compiled(parent) or issubclass(type(parent), torch.jit.ScriptModule):
            continue
        # Inside an OptimizedModule everything is one compiled region; the module itself may be hooked.
        if is_optimized(parent):
            continue
        for name, child in parent._modules.items():
            if child is None or id(child) in seen:
                continue
            seen.add(id(child))
            path = f"{prefix}.{name}" if prefix else name
            if not issubclass(type(child), torch.jit.ScriptModule) and not is_compiled(child):
                yield path, child, parent
            pending.append((path, child))


def _outer_layer(path: str) -> tuple[str, int, str] | None:
    """Prefix, index and rest at the outermost numbered part of a path."""
    match = re.match(r"^(?:(.*?)\.)??(\d+)(?:\.(.*))?$", path)
    return (match[1] or "", int(match[2]), match[3] or "") if match else None


def _stacks(paths: Sequence[str]) -> dict[str, str]:
    """A short word for each list of layers, empty where the model has only one: it tells encoder from decoder layers."""
    prefixes = sorted({layer[0] for path in paths if (layer := _outer_layer(path)) is not None})
    if len(prefixes) < 2:
        return dict.fromkeys(prefixes, "")
    parts = [prefix.split(".") for prefix in prefixes]
    common = 0
    while all(len(one) > common + 1 for one in parts) and len({one[common] for one in parts}) == 1:
        common += 1
    words = [".".join(one[common:-1] or one[common:]) for one in parts]
    if len(set(words)) < len(words):
        words = prefixes
    return {prefix: f"{word} " if word else "" for prefix, word in zip(prefixes, words, strict=True)}


def _info(path: str, module: nn.Module, style: str, stacks: dict[str, str]) -> ModuleInfo:
    kind = type(module).__name__
    layer = _outer_layer(path)
    if style == "type":
        name = kind
    elif style == "path" or layer is None:
        name = path
    else:
        name = f"{stacks.get(layer[0], '')}layer {layer[1]}" + (f" {layer[2]}" if layer[2] else "")
    return ModuleInfo(path, kind, layer[1] if layer else None, name)


def _layers_and_blocks(found: list[tuple[str, nn.Module, nn.Module]]) -> list[tuple[str, nn.Module, nn.Module]]:
    """Layers, and in a layer its blocks (attention, MLP); leaves only of a layer that has no block."""
    placed = [(entry, _outer_layer(entry[0])) for entry in found]
    blocks = {layer[:2] for (_, module, _), layer in placed if layer and layer[2] and module._modules}
    chosen = []
    for entry, layer in placed:
        if layer is None:
            continue
        rest = layer[2]
        if not rest or (re.fullmatch(r"[^.]+(?:\.\d+)?", rest) and (entry[1]._modules or layer[:2] not in blocks)):
            chosen.append(entry)
    return chosen


def _inner(root: nn.Module) -> nn.Module:
    """The model in what ``torch.compile(model)`` returns: its own calls are compiled, and generate() runs that model as it is."""
    return (root._modules["_orig_mod"] or root) if is_optimized(root) else root


def select_stages(root: nn.Module, wanted: Wanted) -> tuple[list[Entry], bool]:
    """Modules that are stages, as for ``select``, and whether there are others in compiled code.

    Args:
        root: the instrumented model.
        wanted: ``Settings.stages``.
    """
    root = _inner(root)
    stages = find_stages(root, wanted)
    if not stages:
        return [], False
    chosen = [
        (module, ModuleInfo(path, type(module).__name__, None, stages[path].name, stages[path]), parent)
        for path, module, parent in walk(root)
        if path in stages
    ]
    return chosen, len(chosen) < len(stages)


def select(
    root: nn.Module, modules: str | Sequence[Any], style: str, stages: Container[int] = (), *, routers: bool = False,
    setting: str = "modules",
) -> list[Entry]:
    """Modules that get spans, as (module, static facts, parent).

    Args:
        root: the instrumented model; it is not part of the result.
        modules: ``"layers"``, ``"all"``, ``"none"``, or patterns as for ``patterns.matches``.
        style: ``Settings.module_span_name``.
        stages: identities of modules that are stages, which are observed as those.
        routers: whether the routers of experts are among them in any case.
        setting: the name of the setting that selects them.

    Raises:
        SettingsError: a pattern matches no module, or a function among them raised.
    """
    if modules == "none" and not routers:
        return []
    root = _inner(root)
    found = [entry for entry in walk(root) if not issubclass(type(entry[1]), nn.ModuleList | nn.ModuleDict)]
    everything = found
    if modules == "none":
        found = []
    elif isinstance(modules, tuple):
        chosen, paths = [], paths_of(root)
        for pattern in modules:
            matched = [entry for entry in found if matches(entry[0], entry[1], pattern, f"inferspan setting {setting!r}", paths)]
            if not matched:
                names = ", ".join(path for path, _, _ in found[:6]) or "none: the model has no submodule that can be observed"
                kind = "group" if isinstance(pattern, str) and pattern in MODULE_GROUPS else "pattern"
                raise SettingsError(f"inferspan setting {setting!r}: {kind} {brief(pattern)} matches no module; names look like {names}")
            chosen.extend(matched)
        kept = {id(module): (path, module, parent) for path, module, parent in chosen}
        found = [entry for entry in found if id(entry[1]) in kept]
    elif modules == "layers":
        if any(_outer_layer(path) for path, _, _ in found):
            found = _layers_and_blocks(found)
        elif len(found) > _SMALL:
            found = [entry for entry in found if "." not in entry[0]]
    if routers:
        kept_ids = {id(module) for _, module, _ in found}
        found = [entry for entry in everything if id(entry[1]) in kept_ids or find_router(entry[0].rpartition(".")[2], *entry[1:])]
    stacks = _stacks([path for path, _, _ in found])
    found = [entry for entry in found if id(entry[1]) not in stages]
    return [(module, _info(path, module, style, stacks), parent) for path, module, parent in found]
