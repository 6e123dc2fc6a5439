"""A trace by ``torch.fx``, for models that call functions which ``torch.export`` cannot look into and ``torch.fx.wrap`` made opaque."""

from __future__ import annotations

import inspect
import operator
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from .building import Program, source_place
from .errors import TraceError
from .exporting import fake_inputs, quiet, undisturbed
from .nodes import Instruction, Node, described, references
from .selection import Selection, inside
from .shadow import new_mode, shadow

_CHECKS = frozenset(("_assert", "_assert_is_none"))


class _Unknown:
    """The value of an opaque function, of which shape and dtype are not known."""


_UNKNOWN = _Unknown()


class _Tracer(fx.Tracer):
    record_stack_traces = True

    def __init__(self, selection: Selection) -> None:
        super().__init__()
        self._leaves = (*selection.targets, *selection.ignored_paths)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self._leaves:
            return True
        holds = any(inside(leaf, module_qualified_name) for leaf in self._leaves)
        return not holds and super().is_leaf_module(m, module_qualified_name)


class _Shapes(fx.Interpreter):
    """Runs the graph on fake tensors. What an opaque function gives is unknown, and so is what is made of it."""

    def __init__(self, module: fx.GraphModule, root: nn.Module) -> None:
        super().__init__(module)
        self._root = root
        self.values: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        given = [self.env[node] for node in n.all_input_nodes]
        try:
            value = _UNKNOWN if any(entry is _UNKNOWN for entry in given) else super().run_node(n)
        except Exception:
            if not _is_opaque(n):
                raise
            value = _UNKNOWN
        self.values[n.name] = value
        return value


def _is_opaque(node: fx.Node) -> bool:
    """Whether a node calls a function of the user, or an operator of another library than torch."""
    if node.op != "call_function":
        return False
    operator_name = str(getattr(node.target, "_qualified_op_name", "") or "")
    if operator_name or isinstance(node.target, torch._ops.OpOverload):
        return not (operator_name or str(node.target)).startswith(("aten", "prims", "inferspan"))
    home = getattr(node.target, "__module__", None) or ""
    return home.partition(".")[0] not in ("torch", "operator", "_operator", "builtins", "math", "")


def trace_by_fx(model: nn.Module, inputs: dict[str, Any], selection: Selection) -> Program:
    """Trace a model by ``torch.fx``, and find shapes on fake tensors.

    Raises:
        Exception: torch.fx cannot trace the model, or an operation that is not opaque fails on the sample's shapes.
    """
    mode = new_mode()
    copy = shadow(model, mode)
    fake = fake_inputs(inputs, mode)
    signature = inspect.signature(copy.forward)
    tensors = {name for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    others = {name: inputs.get(name, entry.default) for name, entry in signature.parameters.items() if name not in tensors}
    concrete = {name: value for name, value in others.items() if value is not inspect.Parameter.empty}
    kinds = {entry.kind for entry in signature.parameters.values()}
    if kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}:
        raise TraceError("torch.fx traces no forward that takes any number of arguments", "other")
    with undisturbed(), quiet(), mode:
        tracer = _Tracer(selection)
        graph = tracer.trace(copy, concrete_args=concrete)
        module = fx.GraphModule(tracer.root, graph)
        shapes = _Shapes(module, copy)
        arguments = [fake[name] if name in tensors else concrete.get(name) for name in signature.parameters]
        shapes.run(*arguments, enable_io_processing=False)
    return _Builder(graph, copy, shapes.values, tensors, concrete, mode).program


class _Builder:
    def __init__(
        self, graph: fx.Graph, root: nn.Module, shapes: dict[str, Any], tensors: set[str], concrete: dict[str, Any], mode: FakeTensorMode
    ) -> None:
        self.program = Program(tracer="torch.fx")
        self._shapes = shapes
        self._concrete = concrete
        self._tensors = tensors
        self._mode = mode
        self._classes = {path: type(module).__name__ for path, module in root.named_modules(remove_duplicate=False)}
        self._values: dict[fx.Node, Any] = {}
        self.program.inputs = {name: value for name, value in concrete.items()}
        for node in graph.nodes:
            self._values[node] = getattr(self, f"_{node.op}")(node)

    def _filled(self, structure: Any) -> Any:
        return fx.node.map_arg(structure, lambda node: self._values[node])

    def _facts(self, node: fx.Node) -> dict[str, Any]:
        value = self._shapes.get(node.name)
        facts = described(value)
        if isinstance(value, torch.Tensor) and node.op == "placeholder":
            facts["dims"] = tuple(f"{node.name}.{number}" for number in range(value.dim()))
        return facts

    def _place(self, node: fx.Node) -> dict[str, Any]:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = stack[-1][0] if stack else ""
        file, line = source_place(node.meta.get("stack_trace"))
        return {"module": path, "module_class": self._classes.get(path, ""), "file": file, "line": line}

    def _placeholder(self, node: fx.Node) -> Any:
        name = str(node.target)
        if name not in self._tensors:
            return self._concrete.get(name)
        ref = self.program.add(Node(node.name, "placeholder", name, (), **self._facts(node)), Instruction("placeholder"))
        self.program.inputs[name] = ref
        return ref

    def _get_attr(self, node: fx.Node) -> Any:
        path = str(node.target)
        home = path.rpartition(".")[0]
        made = Node(node.name, "get_attr", path, (), module=home, module_class=self._classes.get(home, ""), **self._facts(node))
        return self.program.add(made, Instruction("weight", path=path))

    def _call_module(self, node: fx.Node) -> Any:
        path = str(node.target)
        args, kwargs = self._filled(node.args), self._filled(node.kwargs)
        place = {**self._place(node), "module": path, "module_class": self._classes.get(path, "")}
        made = Node(node.name, "call_module", path, references(args, kwargs), **place, **self._facts(node))
        return self.program.add(made, Instruction("module", path=path, args=args, kwargs=kwargs))

    def _call_function(self, node: fx.Node) -> Any:
        args, kwargs = self._filled(node.args), self._filled(node.kwargs)
        name = str(getattr(node.target, "__name__", node.target))
        if name in _CHECKS:
            return None
        if node.target is operator.eq and not references(args, kwargs):
            return True
        home = getattr(node.target, "__module__", None) or "torch"
        made = Node(node.name, "call_function", f"{home}.{name}", references(args, kwargs), **self._place(node), **self._facts(node))
        return self.program.add(made, Instruction("function", call=node.target, args=args, kwargs=kwargs))  # type: ignore[arg-type]

    def _call_method(self, node: fx.Node) -> Any:
        args, kwargs = self._filled(node.args), self._filled(node.kwargs)
        method = str(node.target)

        def call(value: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(value, method)(*args, **kwargs)

        made = Node(
            node.name, "call_function", f"torch.Tensor.{method}", references(args, kwargs), **self._place(node), **self._facts(node)
        )
        return self.program.add(made, Instruction("function", call=call, args=args, kwargs=kwargs))

    def _output(self, node: fx.Node) -> Any:
        result = self._filled(node.args[0])
        self.program.output = (result, None)
        name = self.program.free("output")
        return self.program.add(Node(name, "output", "output", references(result)), Instruction("output", args=result))
