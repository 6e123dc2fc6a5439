"""Shapes and dtypes of the inputs and outputs of a module, without touching anything unknown.

Only tensors, and tuples, lists, mappings, plain namespaces and dataclasses of them, are looked at: at most eight tensors, four levels
deep, sixteen entries a level; ``every_tensor`` goes further. Of a mapping that is no dict the dicts that it holds are looked at, past its
own methods.
Nothing is iterated, compared, printed or asked for its truth that is not one of these types. A tensor that cannot be described
(nested, symbolic, or a wrapper that refuses) is left out. Hot path: ``torch.Size`` and ``torch.dtype`` are kept as they are. Code that is
being compiled may call an observed module, so Dynamo skips every frame of this file.
"""

from __future__ import annotations

from collections import ChainMap, Counter, UserDict, deque
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from itertools import islice
from numbers import Number
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from inferspan.capture.compile.state import leave_frame
from inferspan.guard import pass_on

__all__ = ["Described", "all_tensors", "describe", "describe_like", "every_tensor", "first_tensor", "looks_into", "parts_of"]

Described = tuple[tuple[Any, Any], ...]
_known: dict[Described, Described] = {}
MOST_DESCRIPTIONS = 16_384

MAX_TENSORS = 8
MAX_ENTRIES = 16
MAX_DEPTH = 4
EVERY_TENSOR, EVERY_ENTRY, EVERY_DEPTH = 1024, 4096, 12
"""The same where nothing may be left out without a word."""
_UNORDERED = (set, frozenset, deque)
_VALUES = (
    str, bytes, bytearray, range, slice, Number, Enum, type(...), type(NotImplemented),
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator,
)  # fmt: skip
_CODE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, partial, torch.nn.Module)
_HOMES_OF_VALUES = frozenset({"_thread", "datetime", "pathlib", "pathlib._local", "re", "uuid"})

_PLAIN = (Tensor, torch.nn.Parameter)
_as_plain: Any = torch._C.DisableTorchFunctionSubclass
_SCALARS = frozenset({bool, int, float, str})


@leave_frame
def _tensor(value: Tensor) -> tuple[Any, Any] | None:
    try:
        if type(value) in _PLAIN:
            return value.shape, value.dtype
        # A subclass may run code of the program, such as logging or counting, at every access.
        with _as_plain():
            shape = value.shape
            # Symbolic sizes belong to a trace and must not leave it.
            return (shape, value.dtype) if not value.is_nested and all(type(size) is int for size in shape) else None
    except Exception as error:
        pass_on(error)
        return None


@leave_frame
def looks_into(kind: Any) -> bool:
    """Whether ``describe`` looks for tensors in objects of this class, which is none of the containers of Python."""
    return (
        kind is SimpleNamespace
        or kind is MappingProxyType
        or "__dataclass_fields__" in getattr(kind, "__dict__", ())
        or Mapping in getattr(kind, "__mro__", ())
    )


@leave_frame
def _held(value: Any, kind: Any, most: int) -> Any:
    """What an object holds, past its own methods: the values of a mapping, the fields of a dataclass, those of a namespace."""
    if not looks_into(kind):
        return ()
    names: Any = getattr(kind, "__dict__", ())
    mapping = Mapping in getattr(kind, "__mro__", ())
    if "__slots__" in names and "__dataclass_fields__" in names:
        return [getattr(value, name, None) for name in islice(names["__dataclass_fields__"], most)]
    inner = getattr(value, "__dict__", None)
    if type(inner) is not dict:
        return ()
    if mapping:
        inner = inner.get("data" if isinstance(value, UserDict) else "maps" if isinstance(value, ChainMap) else None, inner)
    return islice(dict.values(inner) if isinstance(inner, dict) else list.__iter__(inner) if isinstance(inner, list) else (), most)


@leave_frame
def parts_of(value: Any, most: int = MAX_ENTRIES) -> Any:
    """The entries of a container that is looked into, at most so many; empty for anything else."""
    kind = type(value)
    # The base classes' own iterators: a subclass may have put side effects into its overrides.
    if isinstance(value, dict):
        return islice(dict.values(value), most)
    if isinstance(value, tuple):
        return islice(tuple.__iter__(value), most)
    if isinstance(value, list):
        return islice(list.__iter__(value), most)
    return islice(value.values(), most) if kind is MappingProxyType else _held(value, kind, most)


@leave_frame
def _walk(value: Any, depth: int, found: list[tuple[Any, Any]]) -> None:
    kind = type(value)
    if kind in _PLAIN or isinstance(value, Tensor):
        described = _tensor(value)
        if described is not None:
            found.append(described)
        return
    if depth >= MAX_DEPTH:
        return
    for part in parts_of(value):
        if part is None or type(part) in _SCALARS:
            continue
        if len(found) >= MAX_TENSORS:
            return
        _walk(part, depth + 1, found)


@leave_frame
def _shared(described: Described) -> Described:
    """One object for all equal descriptions: thousands of separate ones would slow down the garbage collector."""
    known = _known.get(described)
    if known is None:
        if len(_known) >= MOST_DESCRIPTIONS:
            _known.clear()
        known = _known[described] = described
    return known


@leave_frame
def describe(value: Any) -> Described:
    """Pairs (shape, dtype) of the tensors in ``value``, in order; empty if there are none to be described."""
    kind = type(value)
    # The input of nearly every module, and the output of many: one plain tensor in a tuple.
    one = value[0] if kind is tuple and len(value) == 1 else value
    if type(one) is Tensor:
        # As ``_tensor`` and ``_shared``, without calling them: every recorded call of a module comes here twice.
        try:
            shown: Described = ((one.shape, one.dtype),)
        except Exception as error:
            pass_on(error)
            return ()
        known = _known.get(shown)
        return _shared(shown) if known is None else known
    found: list[tuple[Any, Any]] = []
    if kind is tuple and len(value) <= MAX_TENSORS:
        # Several plain tensors, with ``None`` or numbers between them: what attention and decoder layers return.
        try:
            for part in value:
                if type(part) is Tensor:
                    found.append((part.shape, part.dtype))
                elif part is not None and type(part) not in _SCALARS:
                    break
            else:
                return _shared(tuple(found))
        except Exception as error:  # of a tensor without a shape, which the walk leaves out
            pass_on(error)
        found.clear()
    _walk(value, 0, found)
    return _shared(tuple(found))


@leave_frame
def first_tensor(value: Any, wanted: Callable[[Any], bool], depth: int = 0) -> Tensor | None:
    """The first tensor in ``value`` that is wanted, in the order of ``describe``; ``None`` if there is none."""
    if isinstance(value, Tensor):
        return value if wanted(value) else None
    if depth >= MAX_DEPTH:
        return None
    for part in parts_of(value):
        if part is None or type(part) in _SCALARS:
            continue
        found = first_tensor(part, wanted, depth + 1)
        if found is not None:
            return found
    return None


@leave_frame
def all_tensors(value: Any, wanted: Callable[[Any], bool], found: list[Tensor], depth: int = 0) -> list[Tensor]:
    """Add the tensors in ``value`` that are wanted to ``found``, in the order of ``describe``, up to ``MAX_TENSORS``."""
    if isinstance(value, Tensor):
        if wanted(value) and len(found) < MAX_TENSORS:
            found.append(value)
    elif depth < MAX_DEPTH:
        for part in parts_of(value):
            if part is not None and type(part) not in _SCALARS:
                all_tensors(part, wanted, found, depth + 1)
    return found


@leave_frame
def _may_hold(value: Any, kind: Any, inner: dict[str, Any] | None) -> bool:
    """Whether there may be tensors in an object that is not looked into: in its attributes, or, as in a generator, elsewhere.

    Values without parts, functions and modules have none that a module has returned.
    """
    if issubclass(kind, (*_VALUES, *_CODE)) or kind.__module__ in _HOMES_OF_VALUES or kind in (object, MappingProxyType):
        return False
    if str(kind.__module__).partition(".")[0] == "numpy":
        return bool(kind.__name__ == "ndarray")
    if isinstance(value, Mapping):
        return inner is None
    slots = [names["__slots__"] for one in kind.__mro__ if "__slots__" in (names := one.__dict__)]
    return bool(inner) or any(slots) or (inner is None and not slots)


@leave_frame
def every_tensor(value: Any, found: list[Tensor], left_out: Counter[str], depth: int = 0) -> list[Tensor]:
    """Add the tensors in ``value`` to ``found``, also those in sets and queues; ``left_out`` counts what is not looked into.

    A cache of keys and values of transformers is left out without a word: it is passed on in each call, and holds what modules have
    returned.
    """
    if value is None or type(value) in _SCALARS:
        return found
    if isinstance(value, Tensor):
        if len(found) < EVERY_TENSOR:
            found.append(value)
        else:
            left_out["too many"] += 1
        return found
    kind = type(value)
    inner = value.__dict__ if type(getattr(value, "__dict__", None)) is dict else None
    unordered: Any = next((base for base in _UNORDERED if issubclass(kind, base)), None)
    if unordered is not None:
        parts = list(islice(unordered.__iter__(value), EVERY_ENTRY))
    elif inner is not None and kind.__module__.startswith("transformers.") and not isinstance(value, dict | list | tuple):
        is_cache = any(one.__name__ == "Cache" for one in kind.__mro__)
        parts = [] if is_cache else list(islice(inner.values(), EVERY_ENTRY))
    else:
        parts = list(parts_of(value, EVERY_ENTRY))
        if not parts and not isinstance(value, dict | list | tuple) and _may_hold(value, kind, inner):
            left_out["other object"] += 1
    if parts and depth >= EVERY_DEPTH:
        left_out["too deep"] += 1
        return found
    if len(parts) >= EVERY_ENTRY:
        left_out["too many"] += 1
    for part in parts:
        every_tensor(part, found, left_out, depth + 1)
    return found


@leave_frame
def describe_like(known: Described, values: tuple[Any, ...]) -> Described:
    """``describe(values)``, cheaper if ``known``, the description of an earlier call, still holds."""
    if len(values) > MAX_ENTRIES:
        return describe(values)
    place = 0
    try:
        for value in values:
            kind = type(value)
            if kind is Tensor:
                shape, dtype = known[place]
                if value.dtype is not dtype or value.shape != shape:
                    break
                place += 1
            elif kind is tuple and len(value) <= MAX_ENTRIES:
                for part in value:
                    shape, dtype = known[place]
                    if type(part) is not Tensor or part.dtype is not dtype or part.shape != shape:
                        return describe(values)
                    place += 1
            elif value is not None and kind not in _SCALARS and (isinstance(value, (dict, list, tuple, Tensor)) or looks_into(kind)):
                break
        else:
            if place == len(known):
                return known
    except (IndexError, RuntimeError):
        pass  # more tensors than were known, or one without a shape
    return describe(values)
