"""Whether a module computes products by itself, beside those of the modules inside it, as its code says.

In: a module, of which the code of ``forward`` and of the functions that it calls in the same file is looked at; nothing is run. Without
this a model that multiplies by functions, such as ``hidden @ self.embedding.weight.T``, would have too small figures.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from inferspan.guard import read_attribute

__all__ = ["computes_products"]

PRODUCTS = frozenset({
    "addbmm", "addmm", "addmv", "baddbmm", "bilinear", "bmm", "chain_matmul", "cdist", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "dot", "einsum", "inner", "linear", "matmul", "mm", "multi_dot",
    "multi_head_attention_forward", "mv", "scaled_dot_product_attention", "tensordot", "vdot", "_grouped_mm", "grouped_mm",
    "flex_attention", "gru", "gru_cell", "lstm", "lstm_cell", "rnn_relu", "rnn_relu_cell", "rnn_tanh", "rnn_tanh_cell",
})  # fmt: skip
"""Functions and methods of torch that multiply matrices."""
MOST = 64
"""Functions that are looked at for one class."""
_known: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def computes_products(module: Any) -> bool:
    """Whether the code of a module's ``forward`` multiplies matrices other than by calling modules."""
    kind = type(module)
    found = _known.get(kind)
    if found is None:
        found = _known[kind] = any(_multiplies(code, module._modules) for code in _codes(module))
    return found


def _multiplies(code: CodeType, inside: Mapping[str, Any]) -> bool:
    # Names are those of globals and attributes: a module inside may be called ``linear``.
    if any(name in PRODUCTS and name not in inside for name in code.co_names):
        return True
    return any(
        step.opname == "BINARY_MATRIX_MULTIPLY" or (step.opname == "BINARY_OP" and step.argrepr.startswith("@"))
        for step in dis.get_instructions(code)
    )


def _codes(module: Any) -> Iterator[CodeType]:
    """Code of ``forward``, and of what it names: methods, functions on the module, and functions of the same file."""
    pending: list[Any] = [module.__dict__.get("forward") or getattr(type(module), "forward", None)]
    seen = set[CodeType]()
    while pending and len(seen) < MOST:
        function = _plain(pending.pop())
        if function is None or function.__code__ in seen:
            continue
        inside = [function.__code__]
        while inside and len(seen) < MOST:
            code = inside.pop()
            seen.add(code)
            yield code
            inside += [one for one in code.co_consts if isinstance(one, CodeType)]
            for name in code.co_names:
                pending += _named(module, function, name)


def _named(module: Any, function: FunctionType, name: str) -> list[Any]:
    """What a name in the code of a function may call, without running anything of the program."""
    if name in ("forward", "__class__"):
        return []
    found = [module.__dict__.get(name)]
    found += [one.__dict__[name] for one in type(module).__mro__ if name in one.__dict__ and not one.__module__.startswith("torch.")][:1]
    other = function.__globals__.get(name)
    if read_attribute(other, "__module__") == function.__module__:
        found.append(other)
    return found


def _plain(function: Any) -> FunctionType | None:
    """The Python function in a method and in decorators that keep it."""
    for _ in range(16):
        function = read_attribute(function, "__func__", function)
        if issubclass(type(function), property):
            function = function.fget
        inner = getattr(function, "__wrapped__", None) if type(function) is FunctionType else None
        if inner is None:
            break
        function = inner
    return function if type(function) is FunctionType else None

