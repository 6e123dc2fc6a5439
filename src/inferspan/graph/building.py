"""From a traced program to nodes and instructions: leaves become calls of modules, weights and constants attributes."""

from __future__ import annotations

import itertools
import linecache
import operator
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from .dtypes import conflict
from .errors import Place, TraceError
from .exporting import Exported
from .inputs.sizes import Sizes, sizes_of
from .leaves import _Slot
from .nodes import Instruction, Node, Ref, described, references

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_DROPPED = ("aten._assert_tensor_metadata.default",)


@dataclass
class Program:
    """What a graph is made of: nodes in order of execution, an instruction for each, and the shape of inputs and output."""

    nodes: dict[str, Node] = field(default_factory=dict)
    instructions: dict[str, Instruction] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    output: Any = None
    tracer: str = "torch.export"
    sizes: Sizes = field(default_factory=Sizes)

    def free(self, name: str) -> str:
        """This name, with a number where an input of the model has it."""
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        return next(one for one in itertools.chain((name,), numbered) if one not in self.nodes)

    def add(self, node: Node, instruction: Instruction) -> Ref:
        """Add a node, and the reference to its value."""
        self.nodes[node.name] = node
        self.instructions[node.name] = instruction
        return Ref(node.name)


def source_place(stack: str | None) -> tuple[str | None, int | None]:
    """File and line of the innermost frame that is neither torch's nor ours."""
    found: tuple[str | None, int | None] = (None, None)
    for frame in _FRAME.finditer(stack or ""):
        path = frame["file"].replace("\\", "/")
        if "/torch/" not in path and not path.startswith("torch/") and "/inferspan/graph/" not in path:
            found = frame["file"], int(frame["line"])
    return found


class _Builder:
    def __init__(self, exported: Exported) -> None:
        self.exported = exported
        self.graph_module = exported.program.graph_module
        self.classes = {path: type(module).__name__ for path, module in exported.copy.named_modules(remove_duplicate=False)}
        self.program = Program()
        self.values: dict[fx.Node, Any] = {}
        self.whole: set[fx.Node] = set()

    def build(self) -> Program:
        signature = self.exported.program.graph_signature
        specs = {spec.arg.name: spec for spec in signature.input_specs}
        placeholders = [node for node in self.graph_module.graph.nodes if node.op == "placeholder"]
        given: list[Any] = []
        for node in placeholders:
            spec = specs[node.name]
            if spec.kind is InputKind.USER_INPUT:
                given.append(self._input(node, spec))
            else:
                self.values[node] = self._attribute(node, spec)
        in_spec = self.exported.program.call_spec.in_spec
        assert in_spec is not None
        _, kwargs = pytree.tree_unflatten(given, in_spec)
        self.program.inputs = {**kwargs, **self.exported.fixed}
        tensors = {node.name: node.meta["val"] for node in placeholders if specs[node.name].kind is InputKind.USER_INPUT}
        self.program.sizes = sizes_of(
            self.exported.program, {name: value for name, value in tensors.items() if isinstance(value, torch.Tensor)}
        )
        for node in self.graph_module.graph.nodes:
            if node.op not in ("placeholder", "output") and str(node.target) not in _DROPPED:
                self.values[node] = self._operation(node)
        self._output(next(node for node in self.graph_module.graph.nodes if node.op == "output"))
        used = {name for node in self.program.nodes.values() for name in node.inputs}
        for name, made in [*self.program.nodes.items()]:
            if made.op == "get_attr" and name not in used:
                del self.program.nodes[name], self.program.instructions[name]
        return self.program

    def _input(self, node: fx.Node, spec: Any) -> Any:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            self.values[node] = value
            return value
        ref = self.program.add(Node(node.name, "placeholder", node.name, (), **described(value)), Instruction("placeholder"))
        self.values[node] = ref
        return ref

    def _attribute(self, node: fx.Node, spec: Any) -> Any:
        value = node.meta.get("val")
        path, _, _ = (spec.target or "").rpartition(".")
        instruction = Instruction("weight", path=spec.target)
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER):
            instruction = Instruction("constant", value=self.exported.program.constants[spec.target])
            path = ""
        made = Node(node.name, "get_attr", spec.target, (), module=path, module_class=self.classes.get(path, ""), **described(value))
        return self.program.add(made, instruction)

    def _filled(self, structure: Any) -> Any:
        return fx.node.map_arg(structure, lambda node: self.values[node])

    def _operation(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return _attribute_of(self.graph_module, str(node.target))
        if node.target is torch.ops.inferspan_graph.leaf.default:
            return self._leaf(node)
        if node.target is operator.getitem and node.args[0] in self.whole:
            return self.values[node.args[0]]  # type: ignore[index]
        args, kwargs = self._filled(node.args), self._filled(node.kwargs)
        module, cls, file, line = self._place(node)
        hidden = _leaf_inside(args)
        if hidden is not None:
            path = self.exported.leaves.calls[hidden].path
            raise TraceError(
                f"{path!r} is called inside {node.target}, one operation of the graph, where it cannot be cut or called whole",
                "untraceable_call",
                self._broken(node, file, line),
            )
        problem = conflict(node)
        if problem is not None:
            raise TraceError(problem, "dtype", self._broken(node, file, line))
        instruction = Instruction("function", call=node.target, args=args, kwargs=kwargs)  # type: ignore[arg-type]
        made = Node(
            node.name,
            "call_function",
            str(node.target),
            references(args, kwargs),
            module=module,
            module_class=cls,
            file=file,
            line=line,
            **described(node.meta.get("val")),
        )
        return self.program.add(made, instruction)

    def _leaf(self, node: fx.Node) -> Any:
        tensors, sizes, key = node.args
        call = self.exported.leaves.calls[str(key)]
        args, kwargs = call.arguments(self._filled(tensors), self._filled(sizes))
        _, _, file, line = self._place(node)
        values = node.meta.get("val")
        value = values
        if isinstance(values, (list, tuple)) and len(values) == 1:
            value = values[0]
            self.whole.add(node)
        if any(entry is _Slot.SIZE for entry in call.result):
            raise TraceError(f"the result of {call.path!r} has a size that depends on the inputs", "shape")
        made = Node(
            self._name(call.path),
            "call_module",
            call.path,
            references(args, kwargs),
            module=call.path,
            module_class=self.classes[call.path],
            file=file,
            line=line,
            **described(value),
        )
        return self.program.add(
            made, Instruction("module", path=call.path, args=args, kwargs=kwargs, result="first" if node in self.whole else "all")
        )

    def _name(self, path: str) -> str:
        """A name for the call of a module: its path, with a number where that is taken."""
        base = re.sub(r"\W", "_", path)
        taken = {node.name for node in self.graph_module.graph.nodes} | self.program.nodes.keys()
        return next(name for name in (base, *(f"{base}_call_{number}" for number in range(2, len(taken) + 3))) if name not in taken)

    def _place(self, node: fx.Node) -> tuple[str, str, str | None, int | None]:
        stack = node.meta.get("nn_module_stack") or {}
        entries = [entry for key, entry in stack.items() if not key.startswith("_empty")]
        path = entries[-1][0] if entries else ""
        path = path.split("@")[0]
        return (path, self.classes.get(path, ""), *source_place(node.meta.get("stack_trace")))

    def _broken(self, node: fx.Node, file: str | None, line: int | None) -> Place:
        stack = node.meta.get("nn_module_stack") or {}
        chain = tuple(entry[0].split("@")[0] for key, entry in stack.items() if not key.startswith("_empty"))
        source = linecache.getline(file, line).strip() if file and line else None
        return Place(file, line, source, tuple(dict.fromkeys(("", *chain))))

    def _output(self, node: fx.Node) -> None:
        flat = list(self._filled(node.args[0]))
        spec = self.exported.program.call_spec.out_spec
        assert spec is not None
        self.program.output = (flat, spec)
        name = self.program.free("output")
        self.program.add(Node(name, "output", "output", references(flat)), Instruction("output", args=flat))


def _leaf_inside(values: Any) -> str | None:
    """The key of a leaf in a part of the graph that an operation runs, as ``torch.autocast`` does."""
    for value in pytree.tree_leaves(values):
        for node in value.graph.nodes if isinstance(value, fx.GraphModule) else ():
            if node.target is torch.ops.inferspan_graph.leaf.default:
                return str(node.args[2])
            if node.op == "get_attr" and (inner := _leaf_inside(_attribute_of(value, str(node.target)))) is not None:
                return inner
    return None


def _attribute_of(root: Any, path: str) -> Any:
    for part in path.split("."):
        root = getattr(root, part)
    return root


def build(exported: Exported) -> Program:
    """The program of a trace.

    Raises:
        TraceError: a leaf gives what cannot be replayed.
    """
    return _Builder(exported).build()
