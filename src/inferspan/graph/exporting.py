"""One trace by ``torch.export``: a copy of the model runs on fake tensors; nothing of the model itself is touched."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from .errors import Place, TraceError
from .failures import failure
from .inputs.signature import arguments, by_position
from .leaves import Leaves
from .nodes import size_hint
from .selection import Selection, inside
from .shadow import new_mode, shadow

OLDEST_TORCH = "2.6"
_LOGGERS = ("torch.export", "torch._export", "torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor", "torch._dynamo")


@dataclass
class Exported:
    """What a trace gave: the program, the calls of leaves, the copy on which it ran, and inputs that are part of the program."""

    program: torch.export.ExportedProgram
    leaves: Leaves
    copy: nn.Module
    fixed: dict[str, Any]


def check_torch() -> None:
    """Refuse a torch that lacks what tracing needs.

    Raises:
        TraceError: torch is older than 2.6.
    """
    if not hasattr(getattr(torch.export, "Dim", None), "AUTO"):
        raise TraceError(f"inferspan.graph needs torch {OLDEST_TORCH} or later (torch.export.Dim.AUTO), not {torch.__version__}", "other")


def fake_inputs(inputs: dict[str, Any], mode: FakeTensorMode) -> dict[str, Any]:
    """Inputs with fake tensors of the same shapes and dtypes; on ``meta`` they become CPU tensors."""

    def fake(value: torch.Tensor) -> torch.Tensor:
        device = torch.device("cpu") if value.device.type == "meta" else value.device
        with mode:
            return torch.empty(tuple(value.shape), dtype=value.dtype, device=device)

    return pytree.tree_map_only(torch.Tensor, fake, inputs)  # type: ignore[no-any-return]


def plain(model: nn.Module) -> nn.Module:
    """The model that ``torch.compile(model)`` has wrapped, or the model itself."""
    inner = model.__dict__.get("_modules", {}).get("_orig_mod")
    return inner if isinstance(inner, nn.Module) else model


def _fix(copy: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Let the copy take each input by its own name, without which torch.export has no free sizes; flags of ``**kwargs`` become part of it.

    Inputs without a name in the signature, and those that only go by position, have none.
    """
    signature = inspect.signature(copy.forward)
    named = signature.parameters
    fixed = {
        name: value
        for name, value in inputs.items()
        if name not in named and not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))
    }
    tensors = [name for name in inputs if name not in named and name not in fixed]
    takes_more = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in named.values())
    rename = by_position(signature, inputs) or bool(tensors and takes_more)
    if fixed or rename:
        forward = copy.forward

        @functools.wraps(forward)
        def with_names(**kwargs: Any) -> Any:
            args, others = arguments(signature, {**kwargs, **fixed})
            return forward(*args, **others)

        if rename:
            own = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in inputs if name not in fixed]
            with_names.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        copy.forward = with_names
    return fixed


def _dimensions(inputs: dict[str, Any], free: bool) -> Any:
    """Which sizes may differ: batch and length, of pictures and sound the batch."""

    def of(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        numbers = range(min(value.dim(), 2 if value.dim() <= 2 or not value.is_floating_point() else 1))
        return dict.fromkeys(numbers, torch.export.Dim.AUTO)

    return pytree.tree_map(of, inputs) if free and inputs else None


class _State:
    """Values that modules outside of leaves hold: those that change while a forward runs are state, which a graph cannot keep."""

    def __init__(self, model: nn.Module, leaves: tuple[str, ...]) -> None:
        self._modules = [(path, module) for path, module in model.named_modules() if not any(inside(path, leaf) for leaf in leaves)]
        self._before: dict[tuple[str, str], Any] = {}
        self._kept: list[Any] = []
        self.changed: dict[str, str] = {}
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end)

    def _values(self) -> dict[tuple[str, str], Any]:
        values: dict[tuple[str, str], Any] = {}
        for path, module in self._modules:
            for name, value in (*module.__dict__.items(), *module._buffers.items()):
                if name == "training" or (name.startswith("_") and isinstance(value, (dict, set))):
                    continue
                if isinstance(value, (bool, int, float, str)):
                    values[path, name] = value
                elif isinstance(value, (list, dict, set)):
                    values[path, name] = len(value)
                elif isinstance(value, torch.Tensor):
                    values[path, name] = id(value)
                    self._kept.append(value)
        return values

    def _begin(self, module: nn.Module, args: Any) -> None:
        self._before = self._values()

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        after = self._values()
        root = type(module).__name__
        self.changed.update(
            {f"{path or root}.{name}": path for (path, name), value in self._before.items() if after.get((path, name), value) != value}
        )


class _OtherThreads:
    """Standard error without what this thread writes: torch prints the whole graph of a failed trace there."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() == self._thread or self._stream is None:
            return len(text)
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Tracers write to logs and warn; what matters of it is in the exception."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(_OtherThreads(sys.stderr)):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Tracing moves neither random state nor grad mode, also when it fails."""
    states = torch.get_rng_state()
    grad = torch.is_grad_enabled()
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_rng_state(states)
        torch.set_grad_enabled(grad)


def _oblivious() -> contextlib.AbstractContextManager[Any]:
    """A batch of 1 does not fix the batch size, where torch can do that."""
    config = getattr(torch.fx.experimental, "_config", None)
    if config is None or not hasattr(config, "backed_size_oblivious"):
        return contextlib.nullcontext()
    return config.patch(backed_size_oblivious=True)  # type: ignore[no-any-return]


def _without_cache(copy: nn.Module) -> None:
    """Turn the cache off in every configuration of the copy: parts of a model have their own."""
    for module in copy.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", False):
            config.use_cache = False


def _export(model: nn.Module, inputs: dict[str, Any], selection: Selection, free: bool) -> Exported:
    mode = new_mode()
    copy = shadow(model, mode)
    leaves = Leaves(inputs)
    paths = (*selection.targets, *selection.ignored_paths)
    leaves.attach(copy, paths)
    if not inputs.get("use_cache", False) and inputs.get("past_key_values") is None:
        _without_cache(copy)
    state = _State(copy, paths)
    fixed = _fix(copy, inputs)
    inputs = {name: value for name, value in inputs.items() if name not in fixed}
    try:
        with quiet(), _oblivious():
            program = torch.export.export(
                copy, (), fake_inputs(inputs, mode), dynamic_shapes=_dimensions(inputs, free), strict=False
            )
    except Exception as error:
        raise failure(error, copy) from error.__cause__ if isinstance(error, TraceError) else error
    if free and _drops_free_sizes(program):
        raise TraceError("squeeze() drops a dimension that is 1 in the sample, and keeps it where the size is free", "shape")
    changed = state.changed | {name: name.rpartition(".")[0] for name in program.graph_signature.buffers_to_mutate.values()}
    if changed:
        where = _owner(next(iter(changed.values())), copy)
        raise TraceError(f"the forward pass changes {', '.join(changed)}, which a graph cannot do", "state", where)
    return Exported(program, leaves, copy, fixed)


def _drops_free_sizes(program: torch.export.ExportedProgram) -> bool:
    """Whether the sample has a size of 1 where ``squeeze()`` drops it: a trace with free sizes takes none of them for 1."""
    for node in program.graph.nodes:
        if getattr(node.target, "overloadpacket", None) is torch.ops.aten.squeeze:
            shape = node.args[0].meta["val"].shape
            dims = node.args[1] if len(node.args) > 1 else range(len(shape))
            sizes = [shape[dim] for dim in (dims if not isinstance(dims, int) else (dims,))] if shape else []
            if any(not isinstance(size, int) and size_hint(size) == 1 for size in sizes):
                return True
    return False


def _owner(path: str, model: nn.Module) -> Place:
    """The place of a state: the forward of the module that holds it."""
    modules = dict(model.named_modules())
    parts = path.split(".") if path else []
    chain = tuple(parent for parent in ("", *(".".join(parts[: end + 1]) for end in range(len(parts)))) if parent in modules)
    forward = inspect.unwrap(type(modules[path]).forward)
    code = getattr(forward, "__code__", None)
    return Place(code.co_filename if code else None, code.co_firstlineno if code else None, None, chain, forward.__qualname__)


def export(model: nn.Module, inputs: dict[str, Any], selection: Selection, free: bool = True) -> Exported:
    """Trace a model with batch and length free; with the sample's sizes fixed where only that works, or if ``free`` is false.

    Raises:
        TraceError: it cannot be traced, with the failure of the attempt with fixed sizes.
    """
    check_torch()
    with undisturbed():
        if free:
            try:
                return _export(model, inputs, selection, free=True)
            except TraceError as error:
                if error.reason in ("state", "input"):
                    raise
        return _export(model, inputs, selection, free=False)
