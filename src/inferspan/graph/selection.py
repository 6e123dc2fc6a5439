"""Which modules are leaves of a trace: targets and ignored modules, by class name, path or ``re:`` pattern."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import nn

_LAYER = re.compile(r"(.*\.)?(layers?|blocks?|h|block)\.\d+")


@dataclass(frozen=True)
class Selection:
    """The leaves of a trace, by path.

    ``targets`` are the outermost matching modules; ``nested`` are matches inside them, ``covered`` those inside ignored modules.
    ``source`` says who chose the target names: ``given``, ``_no_split_modules`` or ``numbered layers``.
    """

    names: tuple[str, ...]
    source: str
    targets: tuple[str, ...]
    nested: tuple[str, ...]
    covered: tuple[str, ...]
    ignored: dict[str, tuple[str, ...]]

    @property
    def ignored_paths(self) -> tuple[str, ...]:
        """Paths of the ignored modules, those inside others left out."""
        return outermost({path for matched in self.ignored.values() for path in matched})

    def described(self, model: nn.Module) -> str:
        """``28 Qwen2VLDecoderLayer``: the targets by class, with their number."""
        modules = dict(model.named_modules(remove_duplicate=False))
        counts: dict[str, int] = {}
        for path in self.targets:
            name = type(modules[path]).__name__
            counts[name] = counts.get(name, 0) + 1
        return ", ".join(f"{count} {name}" for name, count in counts.items()) or "no targets"


def inside(path: str, parent: str) -> bool:
    """Whether ``path`` is ``parent`` or lies in it."""
    return path == parent or parent == "" or path.startswith(parent + ".")


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths that lie in no other, in their order."""
    kept: list[str] = []
    for path in sorted(paths, key=lambda path: (path.count("."), path)):
        if not any(inside(path, other) for other in kept):
            kept.append(path)
    return tuple(kept)


def matches(pattern: str, path: str, module: nn.Module) -> bool:
    """Whether a class name, an exact path or a ``re:`` pattern (from the start of the path) means this module."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], path) is not None
    return path == pattern or any(
        cls.__name__ == pattern for cls in type(module).__mro__ if issubclass(cls, nn.Module) and cls is not nn.Module
    )


def matching(model: nn.Module, pattern: str) -> tuple[str, ...]:
    """Paths of the modules that a pattern means, the model itself left out. Of a list of modules its entries are meant.

    Raises:
        ValueError: what follows ``re:`` is no regular expression.
    """
    if pattern.startswith("re:"):
        try:
            re.compile(pattern[3:])
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    found: dict[str, None] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if path and matches(pattern, path, module):
            found.update(dict.fromkeys(_called(path, module)))
    return tuple(found)


def _called(path: str, module: nn.Module) -> Iterator[str]:
    """The module, or for a list of modules, which nothing calls, its entries."""
    if not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        yield path
        return
    for name, child in module.named_children():
        yield from _called(f"{path}.{name}", child)


def own_blocks(model: nn.Module) -> tuple[tuple[str, ...], str]:
    """Class names of a model's own blocks: those it says must not be split, else those of its numbered layers."""
    said = getattr(model, "_no_split_modules", None) or ()
    present = {type(module).__name__ for module in model.modules()}
    names = tuple(sorted(name for name in said if name in present))
    if names:
        return names, "_no_split_modules"
    numbered = dict.fromkeys(
        type(module).__name__ for path, module in model.named_modules() if _LAYER.fullmatch(path) or _is_in_list(model, path)
    )
    return tuple(numbered), "numbered layers"


def _is_in_list(model: nn.Module, path: str) -> bool:
    """Whether a module is an entry of a list of modules that is not itself in one."""
    parent, _, number = path.rpartition(".")
    return (
        number.isdigit()
        and isinstance(model.get_submodule(parent), nn.ModuleList)
        and not any(part.isdigit() for part in parent.split("."))
    )


def names_of(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """Entries of a list of targets or ignored modules.

    Raises:
        TypeError: an entry is no string, or empty.
    """
    names = () if value is None else (value,) if isinstance(value, str) else tuple(value)
    if any(not isinstance(name, str) or not name for name in names):
        raise TypeError("targets and ignored modules are class names, paths or 're:' patterns: strings that are not empty")
    return names


def _closest(model: nn.Module, name: str) -> str:
    known = sorted({type(module).__name__ for module in model.modules()})
    lowered = {entry.lower(): entry for entry in known}
    close = [lowered[entry] for entry in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.3)]
    return f"the closest class names are {', '.join(close)}" if close else f"its classes are {', '.join(known[:12])}"


def _hint(model: nn.Module, pattern: str) -> str:
    """A pattern that would match, for one that does not."""
    bare = pattern[3:] if pattern.startswith("re:") else re.escape(pattern)
    wanted = f"re:.*{bare}"
    try:
        found = matching(model, wanted)
    except ValueError:
        found = ()
    start = ": paths are matched from their start" if pattern.startswith("re:") else ""
    return f"; {wanted!r} matches {', '.join(found[:3])}{start}" if found else f"; {_closest(model, pattern.removeprefix('re:'))}"


def _ignored(model: nn.Module, ignore: tuple[str, ...], warn: bool) -> dict[str, tuple[str, ...]]:
    found = {pattern: matching(model, pattern) for pattern in ignore}
    for pattern, paths in found.items():
        if warn and not paths:
            warnings.warn(f"ignore={pattern!r} matches no module{_hint(model, pattern)}", stacklevel=5)
    return found


def select(model: nn.Module, targets: str | Iterable[str] | None, ignore: str | Iterable[str] | None, warn: bool = True) -> Selection:
    """Match targets and ignored modules on a model. ``warn``: an ignored entry that matches nothing is a warning.

    Raises:
        ValueError: a target that was given matches nothing; the message has the closest class names.
        TypeError: an entry is no string.
    """
    ignored = _ignored(model, names_of(ignore), warn)
    away = outermost({path for paths in ignored.values() for path in paths})
    given = names_of(targets)
    names, source = (given, "given") if targets is not None else own_blocks(model)
    found: dict[str, None] = {}
    for name in names:
        paths = matching(model, name)
        if not paths and source == "given":
            raise ValueError(
                f"no module of {type(model).__name__} matches the target {name!r}: {_closest(model, name)}{_path_hint(model, name)}"
            )
        found.update(dict.fromkeys(paths))
    covered = tuple(path for path in found if any(inside(path, other) for other in away))
    wanted = [path for path in found if path not in set(covered)]
    outer = set(outermost(wanted))
    ordered = tuple(path for path in _paths(model) if path in outer)
    nested = tuple(path for path in wanted if path not in outer)
    return Selection(names, source, ordered, nested, covered, ignored)


def _path_hint(model: nn.Module, name: str) -> str:
    wanted = f"re:.*{re.escape(name.removeprefix('re:'))}"
    found = matching(model, wanted)
    return f"; {wanted!r} matches {', '.join(found[:3])}" if found else ""


def _paths(model: nn.Module) -> Iterator[str]:
    return (path for path, _ in model.named_modules(remove_duplicate=False))
