"""Pipelines for models that cannot be traced: a chain of the targets, and the whole model as one subgraph. Both run the real model."""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .building import Program
from .errors import TraceError
from .inputs.signature import arguments
from .inputs.sizes import AGAIN
from .leaves import PLAIN
from .nodes import Instruction, Node, Ref, described, references
from .selection import Selection


class _Caught(Exception):
    """Ends a forward pass at the first target, with its inputs."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.args_caught = args
        self.kwargs_caught = kwargs


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers in which part of a pass each value was made, and which weights each part used; finds values that skip over targets."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stage = 0
        self.inside = False
        self.skips = False
        self.used: list[set[int]] = [set()]
        self.last: Any = None
        self._made: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()
        self._stages: dict[int, int] = {}

    def made(self, value: Any) -> None:
        """Note values of the present part."""
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                self._made[id(leaf)] = leaf
                self._stages[id(leaf)] = self.stage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        for leaf in pytree.tree_leaves((args, kwargs)):
            if not isinstance(leaf, torch.Tensor):
                continue
            self.used[self.stage].add(id(leaf))
            known = self._stages[id(leaf)] if self._made.get(id(leaf)) is leaf else None
            if known is not None and known < self.stage and leaf is not self.last and leaf.is_floating_point():
                self.skips = True
        result = func(*args, **kwargs)
        self.made(result)
        return result


def run_model(model: nn.Module, inputs: dict[str, Any]) -> Any:
    """What the model returns for these inputs, each by its name or, where forward wants that, by its position."""
    args, kwargs = arguments(inspect.signature(model.forward), inputs)
    return model(*args, **kwargs)


def _first(value: Any) -> torch.Tensor | None:
    """The only tensor of a target's output, None if it has none or several."""
    tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return tensors[0] if len(tensors) == 1 else None


def _needs_weights(model: nn.Module, pipeline: str) -> None:
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        raise TraceError(f"pipeline={pipeline!r} runs the model and needs its weights, and this model has none (device meta)", "other")


@contextlib.contextmanager
def _replaced(modules: dict[str, nn.Module], make: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Modules with another forward, for as long as the context is open."""
    own = {path: module.__dict__.get("forward") for path, module in modules.items()}
    try:
        for path, module in modules.items():
            module.forward = make(path, module.forward)
        yield
    finally:
        for path, module in modules.items():
            if own[path] is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = own[path]


def _placeholders(program: Program, inputs: dict[str, Any]) -> dict[str, Any]:
    """Nodes for the tensors of the inputs. Sizes of each may differ from the sample's."""

    def add(path: Any, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        name = program.free("_".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path))
        dims = tuple(f"{name}.{number}" for number in range(value.dim()))
        node = Node(name, "placeholder", name, (), **{**described(value), "dims": dims})
        return program.add(node, Instruction("placeholder"))

    structure: dict[str, Any] = pytree.tree_map_with_path(add, inputs)
    program.inputs = structure
    return structure


def _finish(program: Program, result: Ref) -> Program:
    program.output = (result, None)
    program.add(Node(program.free("output"), "output", "output", (result.name,)), Instruction("output", args=result))
    return program


def basic(model: nn.Module, inputs: dict[str, Any]) -> Program:
    """The whole model as one operation.

    Raises:
        TraceError: the model has no weights, or its forward does not take the inputs.
    """
    _needs_weights(model, "basic")
    signature = inspect.signature(model.forward)
    args, kwargs = arguments(signature, inputs)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TraceError(f"forward of {type(model).__name__} does not take the sample: {error}", "input") from error
    program = Program(tracer="none")
    structure = _placeholders(program, inputs)
    name = type(model).__name__
    node = Node(program.free("model"), "call_module", "", references(structure), module="", module_class=name)
    parameters = tuple(path for path, _ in model.named_parameters())
    call = Instruction("function", call=lambda **given: run_model(model, given), kwargs=structure, parameters=parameters)
    return _finish(program, program.add(node, call))


class _Chain:
    """The chain of a model's targets, found in one real pass on the sample."""

    def __init__(self, model: nn.Module, inputs: dict[str, Any], selection: Selection) -> None:
        self.model = model
        self.modules = {path: model.get_submodule(path) for path in selection.targets}
        self.order: list[str] = []
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.output: Any = None
        self.values: list[torch.Tensor] = []
        self.watch = _Watch()
        with torch.no_grad(), torch.random.fork_rng(), self.watch, _replaced(self.modules, self._noted):
            self.watch.made(inputs)
            self.result = run_model(model, inputs)
        if not self.order:
            raise TraceError("no target was called", "other")
        if self.watch.skips:
            raise TraceError("a value skips over a target, so the targets are no plain chain", "other")

    def _noted(self, path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not args:
                raise TraceError(f"{path} is called without positional arguments, so the targets are no plain chain", "other")
            if not self.order:
                self.args, self.kwargs = args, kwargs
            else:
                self._check(path, args, kwargs)
            self.watch.inside = True
            try:
                output = forward(*args, **kwargs)
            finally:
                self.watch.inside = False
            tensor = _first(output)
            if tensor is None:
                raise TraceError(f"{path} does not give exactly one tensor, so the targets are no plain chain", "other")
            self.order.append(path)
            self.output = output
            self.values.append(tensor)
            self.watch.last = tensor
            self.watch.stage += 1
            self.watch.used.append(set())
            self.watch.made(tensor)
            return output

        return call

    def _check(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a target whose first input is not the output of the one before, or whose other arguments are new."""
        if args[0] is not self.values[-1]:
            raise TraceError(f"{path} does not take the output of {self.order[-1]} first, so the targets are no plain chain", "other")
        first, spec = pytree.tree_flatten((self.args[1:], self.kwargs))
        here, own = pytree.tree_flatten((args[1:], kwargs))
        if spec != own or any(_differ(a, b) for a, b in zip(first, here, strict=True)):
            raise TraceError(f"{path} takes other arguments than {self.order[0]}, so the targets are no plain chain", "other")

    def parameters(self, stage: int) -> tuple[str, ...]:
        """Weights that were used outside of the targets, before the first one (0) or after the last one (-1)."""
        return tuple(path for path, value in self.model.named_parameters() if id(value) in self.watch.used[stage])

    def before(self, **inputs: Any) -> list[Any]:
        """What the first target takes: its tensors, in their order."""

        def stop(path: str, _: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                raise _Caught(args, kwargs)

            return call

        with _replaced({self.order[0]: self.modules[self.order[0]]}, stop):
            try:
                run_model(self.model, inputs)
            except _Caught as caught:
                return self._tensors(caught.args_caught, caught.kwargs_caught)
        raise TraceError(f"{self.order[0]} was not called", "other")

    def _tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """Those among the arguments of the first target; the others are part of the graph, and must be those of the sample."""
        wanted, spec = pytree.tree_flatten((self.args, self.kwargs))
        found, own = pytree.tree_flatten((args, kwargs))
        if spec != own or any(_other(one, value) for one, value in zip(wanted, found, strict=True)):
            raise TraceError(f"{self.order[0]} takes other arguments than with the sample, which are part of the graph: {AGAIN}", "shape")
        return [leaf for leaf in found if isinstance(leaf, torch.Tensor)]

    def after(self, last: torch.Tensor, **inputs: Any) -> Any:
        """What the model returns, with the output of the last target."""
        given = pytree.tree_map_only(torch.Tensor, lambda _: last, self.output)

        def replace(path: str, _: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *args, **kwargs: given

        with _replaced(self.modules, replace):
            return run_model(self.model, inputs)


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is not other
    return one is not other and one != other


def _other(one: Any, value: Any) -> bool:
    """Whether an argument is another one than with the sample. Tensors may differ, and objects that cannot say whether they are equal."""
    if isinstance(one, torch.Tensor) or isinstance(value, torch.Tensor):
        return isinstance(one, torch.Tensor) is not isinstance(value, torch.Tensor)
    return type(one) is not type(value) or (isinstance(one, PLAIN) and one != value)


def layer(model: nn.Module, inputs: dict[str, Any], selection: Selection) -> Program:
    """The targets as a chain, between what comes before the first and after the last one.

    Raises:
        TraceError: the model has no weights, or its targets are no plain chain.
    """
    _needs_weights(model, "layer")
    if not selection.targets:
        raise TraceError("there are no targets to run as a chain", "other")
    try:
        chain = _Chain(model, inputs, selection)
    except TraceError:
        raise
    except Exception as error:
        raise TraceError(f"the model fails on the sample: {type(error).__name__}: {error}", "other") from error
    program = Program(tracer="none")
    structure = _placeholders(program, inputs)
    root = type(model).__name__
    start = program.add(
        Node(program.free("before"), "call_function", "before the first target", references(structure), module="", module_class=root),
        Instruction("function", call=chain.before, kwargs=structure, parameters=chain.parameters(0)),
    )
    flat, spec = pytree.tree_flatten((chain.args, chain.kwargs))
    tensors = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
    refs = [
        program.add(
            Node(
                program.free(f"argument_{number}"),
                "call_function",
                "_operator.getitem",
                (start.name,),
                module_class=root,
                **described(tensor),
            ),
            Instruction("function", call=operator.getitem, args=(start, number)),
        )
        for number, tensor in enumerate(tensors)
    ]
    remaining = iter(refs)
    args, kwargs = pytree.tree_unflatten([next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat], spec)
    value = args[0]
    for number, path in enumerate(chain.order):
        taken = (value, *args[1:])
        node = Node(
            program.free(f"target_{number}"),
            "call_module",
            path,
            references(taken, kwargs),
            module=path,
            module_class=type(chain.modules[path]).__name__,
            **described(chain.values[number]),
        )
        value = program.add(node, Instruction("module", path=path, args=taken, kwargs=kwargs, result="first"))
    node = Node(program.free("after"), "call_function", "after the last target", references(value, structure), module="", module_class=root)
    end = Instruction("function", call=chain.after, args=(value,), kwargs=structure, parameters=chain.parameters(-1))
    return _finish(program, program.add(node, end))


def same(one: Any, other: Any) -> bool:
    """Whether two outputs have the same values, up to rounding."""
    first, second = pytree.tree_leaves(one), pytree.tree_leaves(other)
    if len(first) != len(second):
        return False
    for a, b in zip(first, second, strict=True):
        if isinstance(a, torch.Tensor):
            try:
                torch.testing.assert_close(a, b, equal_nan=True)
            except AssertionError:
                return False
    return True
