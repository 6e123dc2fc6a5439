"""Targets and ignored modules while tracing: each call is one operation, whose inside runs beside the trace, for shapes only.

The operation is ``inferspan_graph::leaf``. Its implementation for fake tensors calls the module's own forward. If that needs values that
fake tensors do not have, the module runs once on zeros in place of its weights and on those inputs that come from the sample unchanged.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from .errors import TraceError
from .failures import reason
from .nodes import size_hint

PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum, type(None))
_MOST_BYTES = 2**30

_library: Any = torch.library.Library("inferspan_graph", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("leaf(Tensor[] tensors, SymInt[] sizes, str key) -> Tensor[]")
_open: dict[str, Callable[[list[torch.Tensor], list[Any]], list[torch.Tensor]]] = {}


@dataclass
class LeafCall:
    """One call of a leaf: its arguments, with a place for each tensor and size, and how its result is put together."""

    path: str
    flat: list[Any]
    spec: Any
    result: list[Any] = field(default_factory=list)
    result_spec: Any = None
    materialized: bool = False

    def arguments(self, tensors: list[Any], sizes: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments with these tensors and sizes in their places."""
        takes = {_TENSOR: iter(tensors), _SIZE: iter(sizes)}
        flat = [next(takes[entry]) if isinstance(entry, _Slot) else entry for entry in self.flat]
        args, kwargs = pytree.tree_unflatten(flat, self.spec)
        return args, kwargs


class _Slot(enum.Enum):
    TENSOR = "tensor"
    SIZE = "size"


_TENSOR, _SIZE = _Slot.TENSOR, _Slot.SIZE


class Leaves:
    """The leaves of one trace, on the copy of the model."""

    def __init__(self, sample: dict[str, Any]) -> None:
        self.calls: dict[str, LeafCall] = {}
        self._sample = [leaf for leaf in pytree.tree_leaves(sample) if isinstance(leaf, torch.Tensor)]
        self._inputs: list[Any] = []
        self._busy: set[str] = set()

    def attach(self, model: nn.Module, paths: tuple[str, ...]) -> None:
        """Make each of these modules of the copy a leaf. Their hooks go: they run when the module is called on replay."""
        for path in paths:
            module = model.get_submodule(path)
            for hooks in (module._forward_hooks, module._forward_pre_hooks):
                hooks.clear()
            module.forward = self._replacement(module, path, module.forward)

        def remember(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]

        model.register_forward_pre_hook(remember, with_kwargs=True)

    def _replacement(self, module: nn.Module, path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def leaf(*args: Any, **kwargs: Any) -> Any:
            if path in self._busy:
                return forward(*args, **kwargs)
            flat, spec = pytree.tree_flatten((args, kwargs))
            tensors = [value for value in flat if isinstance(value, torch.Tensor)]
            sizes = [value for value in flat if isinstance(value, torch.SymInt)]
            call = LeafCall(path, [_slot(value, path) for value in flat], spec)
            key = str(len(self.calls))
            self.calls[key] = call
            known = [self._known(tensor) for tensor in tensors]
            _open[key] = lambda tensors, sizes: self._shapes(call, module, forward, tensors, sizes, known)
            try:
                results = torch.ops.inferspan_graph.leaf(tensors, sizes, key)
            finally:
                del _open[key]
            remaining = iter(results)
            return pytree.tree_unflatten([next(remaining) if entry is _TENSOR else entry for entry in call.result], call.result_spec)

        return leaf

    def _known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The sample's value of a tensor that is one of the model's inputs, unchanged."""
        for given, sample in zip(self._inputs, self._sample, strict=False):
            if given is tensor and sample.device.type != "meta":
                return sample
        return None

    def _shapes(
        self,
        call: LeafCall,
        module: nn.Module,
        forward: Callable[..., Any],
        tensors: list[torch.Tensor],
        sizes: list[Any],
        known: list[torch.Tensor | None],
    ) -> list[torch.Tensor]:
        args, kwargs = call.arguments(tensors, sizes)
        self._busy.add(call.path)
        try:
            with _plain_calls():
                output = self._inside(call, module, forward, (args, kwargs), tensors, sizes, known)
        finally:
            self._busy.discard(call.path)
        flat, call.result_spec = pytree.tree_flatten(output)
        call.result = [_slot(value, call.path) for value in flat]
        found = [value for value in flat if isinstance(value, torch.Tensor)]
        return [_apart(value, tensors) for value in found]

    def _inside(
        self,
        call: LeafCall,
        module: nn.Module,
        forward: Callable[..., Any],
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        tensors: list[torch.Tensor],
        sizes: list[Any],
        known: list[torch.Tensor | None],
    ) -> Any:
        try:
            with _no_guards(tensors):
                output = forward(*arguments[0], **arguments[1])
            _check_sizes(output)
        except TraceError:
            raise
        except Exception as error:
            output = self._on_zeros(call, module, tensors, sizes, known, error)
            call.materialized = True
        return output

    def _on_zeros(
        self,
        call: LeafCall,
        module: nn.Module,
        tensors: list[torch.Tensor],
        sizes: list[Any],
        known: list[torch.Tensor | None],
        cause: Exception,
    ) -> Any:
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        size = sum(value.numel() * value.element_size() for value in state.values())
        if size > _MOST_BYTES:
            raise TraceError(
                f"the shape of the result of {call.path!r} depends on values, and its weights of {size:,} bytes "
                f"are too many to run it on zeros: {cause}",
                reason(cause, None),
            ) from cause
        try:
            shapes = {id(value): _shape_of(value) for value in (*state.values(), *tensors)}
            numbers = [_known_size(size) for size in sizes]
        except ValueError:
            raise TraceError(f"{type(cause).__name__}: {cause}", reason(cause, None)) from cause
        with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            zeros = {name: torch.zeros(shapes[id(value)], dtype=value.dtype) for name, value in state.items()}
            inputs = [
                torch.zeros(shapes[id(value)], dtype=value.dtype) if sample is None else sample.detach().cpu().clone()
                for value, sample in zip(tensors, known, strict=True)
            ]
            args, kwargs = call.arguments(inputs, numbers)
            try:
                output = torch.func.functional_call(module, zeros, args, kwargs)
            except Exception as error:
                raise TraceError(f"the shape of the result of {call.path!r} cannot be found: {error}", reason(cause, None)) from cause
        device = tensors[0].device if tensors else torch.device("cpu")
        return pytree.tree_map_only(torch.Tensor, lambda value: torch.empty(value.shape, dtype=value.dtype, device=device), output)


def _known_size(size: Any) -> int:
    known = size_hint(size)
    if known is None:
        raise ValueError(f"{size} depends on values")
    return known


def _shape_of(value: torch.Tensor) -> list[int]:
    return [_known_size(size) for size in value.shape]


def _apart(value: torch.Tensor, tensors: list[torch.Tensor]) -> torch.Tensor:
    """The result as a tensor of its own: operators must not return what they were given."""
    storages = {tensor.untyped_storage()._cdata for tensor in tensors}
    if any(value is tensor for tensor in tensors) or value.untyped_storage()._cdata in storages:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return value


def _check_sizes(output: Any) -> None:
    """Refuse sizes that values decided: the graph cannot name them."""
    for value in pytree.tree_leaves(output):
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if size_hint(size) is None:
                raise ValueError(f"a size of the result, {size}, depends on values")


def _slot(value: Any, path: str) -> Any:
    if isinstance(value, torch.Tensor):
        return _TENSOR
    if isinstance(value, torch.SymInt):
        return _SIZE
    if isinstance(value, PLAIN) or callable(value):
        return value
    if type(value).__module__.startswith("transformers.") and "cache" not in type(value).__module__:
        return value
    raise TraceError(f"{path!r} takes or gives a {type(value).__name__}, an object that keeps state between calls", "state")


@contextlib.contextmanager
def _plain_calls() -> Iterator[None]:
    """Modules inside of a leaf are called without torch.export's wrapper, whose stack of modules does not outlive an exception."""
    wrapped = nn.Module.__call__
    nn.Module.__call__ = nn.Module._wrapped_call_impl  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = wrapped  # type: ignore[method-assign]


@contextlib.contextmanager
def _no_guards(tensors: list[torch.Tensor]) -> Iterator[None]:
    """What happens inside a leaf fixes no dimension of the graph."""
    modes = (getattr(tensor, "fake_mode", None) for tensor in tensors)
    environment = next((mode.shape_env for mode in modes if mode is not None), None)
    if environment is None:
        yield
        return
    with environment.suppress_guards(), environment.ignore_fresh_unbacked_symbols():
        yield


def _fake_leaf(tensors: list[torch.Tensor], sizes: list[Any], key: str) -> list[torch.Tensor]:
    return _open[key](tensors, sizes)


torch.library.register_fake("inferspan_graph::leaf", _fake_leaf, lib=_library)
