"""What one module costs: a table by class, which programs can extend.

In: a module, of which shapes, dtypes and storage of its parameters are read. Out: a :class:`Cost`, or ``None`` where nothing is known.
Classes are found by name, so that this needs no torch. Counted are matrix products, convolutions and attention, as torch's
``FlopCounterMode`` does; what is done element by element is no part of the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from inferspan.guard import read_attribute

__all__ = ["LARGEST", "Cost", "bytes_of", "cost_of", "features_of", "is_registered", "register_cost", "weight_of"]

OVER_LAST, OVER_OUTPUTS, OVER_INPUTS, OVER_ELEMENTS = "last", "outputs", "inputs", "elements"
"""What the positions of a call are: all but the last axis of the input; rows and space of the output or the input; each element."""
LARGEST = 2**63
"""Numbers from here on have no form in an attribute."""


class Cost(NamedTuple):
    """What a call of a module costs, for each position that goes through it.

    A position is one token of one row; of a convolution, one point of its output. All fields default to 0.

    Attributes:
        flops: floating point operations of a position; a multiply-add is 2.
        weights: bytes of the weights, which a pass reads once.
        gathered: bytes that a position reads of a table, such as a row of an embedding.
        moved: elements that a position reads as input and writes as output.
        attention: width of the queries of all heads together, ``heads * head_dim``; 0 for a module that computes no attention.
        keys: elements of keys and values of one position, ``2 * kv_heads * head_dim``.
        window: positions that a query sees at most, itself included; 0 for no limit.
        experts: number of experts that ``weights`` are of; 0 for none.
        chosen: experts that each position goes through.
        over: which axes of recorded shapes are positions: ``last``, ``outputs``, ``inputs`` or ``elements``.
        space: axes of space of ``outputs`` and ``inputs``, where an input may lack the axis of rows; 0 for one that has it always.
    """

    flops: int = 0
    weights: int = 0
    gathered: int = 0
    moved: int = 0
    attention: int = 0
    keys: int = 0
    window: int = 0
    experts: int = 0
    chosen: int = 0
    over: str = OVER_LAST
    space: int = 0

    def read(self, positions: int) -> float:
        """Bytes of the weights that so many positions read, with experts those that they reach if all are equally likely."""
        if not self.experts:
            return self.weights
        return self.weights * (1.0 - (1.0 - self.chosen / self.experts) ** positions)


CostFunction = Callable[[Any], "Cost | None"]
_registered: dict[type, CostFunction] = {}
_rules: WeakKeyDictionary[type, tuple[CostFunction, bool]] = WeakKeyDictionary()
"""What was found for each class, until something is registered."""


def register_cost(module_class: type, function: CostFunction) -> None:
    """Say what modules of a class cost, for the figures of the roofline.

    Args:
        module_class: class of modules; subclasses are meant as well, unless they are registered themselves.
        function: takes a module and returns its :class:`Cost`, or ``None`` if it is not known. It is called once for each module of a
            model, when the model is instrumented, and must not run the module. Modules inside are not looked at: the cost covers them.
            What it raises is logged, as is a field that is no whole number from 0 to 2^63 - 1; the model has no figures then.

    Raises:
        TypeError: the first argument is no class, or the second cannot be called.
    """
    if not isinstance(module_class, type):
        raise TypeError(f"inferspan.register_cost: a class of modules is needed, not {module_class!r}")
    if not callable(function):
        raise TypeError(f"inferspan.register_cost: a function of a module is needed, not {function!r}")
    _registered[module_class] = function
    _rules.clear()


def is_registered(module: Any) -> bool:
    """Whether the program, or the table, covers a module with all that is inside."""
    return _rule_of(type(module))[1]


def cost_of(module: Any) -> Cost | None:
    """The cost of a module without those inside, ``None`` if it is not known."""
    cost = _rule_of(type(module))[0](module)
    return None if cost is None else _checked(cost)


def _checked(cost: Any) -> Cost:
    """A cost of whole numbers, which a function of the program may have missed."""
    if not isinstance(cost, Cost) or cost.over not in (OVER_LAST, OVER_OUTPUTS, OVER_INPUTS, OVER_ELEMENTS):
        raise ValueError("a function of register_cost() has returned no inferspan.Cost, or one with a wrong value of over")
    if any(type(value) is not int or not 0 <= value < LARGEST for name, value in zip(cost._fields, cost, strict=True) if name != "over"):
        raise ValueError("a function of register_cost() has returned a field that is no whole number from 0 to 2^63 - 1")
    return cost


def _rule_of(kind: type) -> tuple[CostFunction, bool]:
    """What gives the cost of modules of a class, and whether that covers the modules inside."""
    known = _rules.get(kind)
    if known is None:
        known = _rules[kind] = _find_rule(kind)
    return known


def _find_rule(kind: type) -> tuple[CostFunction, bool]:
    for one in kind.__mro__:
        if (function := _registered.get(one)) is not None:
            return function, True
    names = [_name(one) for one in kind.__mro__]
    if "torch.jit._script.RecursiveScriptModule" in names or "torch.jit._script.ScriptModule" in names:
        return _unknown, True
    rule = next((_TABLE[name] for name in names if name in _TABLE), _by_parameters)
    return rule, any(name in _WHOLE for name in names)


def _unknown(_: Any) -> None:
    """The cost of a scripted module, into which nothing can look."""


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


# ------------------------------------------------------------------------------------------------------------- parameters
def bytes_of(module: Any) -> int:
    """Bytes in which a module keeps its own parameters and, if it is quantized, their scales."""
    tensors = [tensor for tensor in module._parameters.values() if tensor is not None]
    packed = any(not tensor.is_floating_point() for tensor in tensors) or (not tensors and features_of(module) is not None)
    if packed:
        tensors += [tensor for tensor in module._buffers.values() if tensor is not None]
        tensors += _quantization_state(tensors)
    return sum(_stored(tensor) for tensor in tensors)


def _stored(tensor: Any) -> int:
    """Bytes of a tensor; of a subclass that wraps others, such as torchao's, those of its parts."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        names, _ = flatten()
        return sum(_stored(getattr(tensor, name)) for name in names)
    return int(tensor.numel()) * int(tensor.element_size())


def _quantization_state(tensors: list[Any]) -> list[Any]:
    """Scales that bitsandbytes keeps beside packed weights."""
    found = []
    for tensor in tensors:
        scales = getattr(getattr(tensor, "quant_state", None), "absmax", None)
        if scales is not None:
            found.append(scales)
    return found


def weight_of(module: Any) -> Any:
    """The weight of a module if it is a tensor there: one with a parametrization is computed when it is read, by code of the program."""
    weight = module._parameters.get("weight")
    return module.__dict__.get("weight") if weight is None else weight


def features_of(module: Any) -> tuple[int, int] | None:
    """Features that a linear module takes and gives; ``None`` if it is not one."""
    taken, given = read_attribute(module, "in_features"), read_attribute(module, "out_features")
    if isinstance(taken, int) and isinstance(given, int):
        return taken, given
    if type(module).__name__ == "Conv1D" and isinstance(read_attribute(module, "nf"), int):  # transposed, of transformers
        weight = weight_of(module)
        return None if weight is None else (int(weight.shape[0]), int(module.nf))
    return None


# ------------------------------------------------------------------------------------------------------------------ table
def _linear(module: Any) -> Cost | None:
    features = features_of(module)
    if features is None:
        return None
    taken, given = features
    return Cost(flops=2 * taken * given, weights=bytes_of(module), moved=taken + given)


def _embedding(module: Any) -> Cost | None:
    weight = weight_of(module)
    if weight is None:
        return None
    width = int(weight.shape[-1])
    return Cost(gathered=width * int(weight.element_size()), moved=width, over=OVER_ELEMENTS)


def _convolution(module: Any) -> Cost | None:
    weight = weight_of(module)
    if weight is None:
        return None
    taken, given = int(module.in_channels), int(module.out_channels)
    # As torch counts: of each point of the output, of a transposed one of each point of the input.
    over = OVER_INPUTS if module.transposed else OVER_OUTPUTS
    strides = prod(module.stride)
    moved = taken + given * strides if module.transposed else given + taken * strides
    return Cost(flops=2 * prod(weight.shape), weights=bytes_of(module), moved=moved, over=over, space=len(module.kernel_size))


def _multihead(module: Any) -> Cost | None:
    width = int(module.embed_dim)
    if module._parameters.get("in_proj_weight") is None:  # keys and values of other widths, or a parametrization
        return None
    weights = bytes_of(module) + bytes_of(module._modules["out_proj"])
    return Cost(flops=8 * width * width, weights=weights, moved=8 * width, attention=width, keys=2 * width)


def _by_parameters(module: Any) -> Cost | None:
    """A class that is not in the table: experts and routers by their parameters, what has vectors alone costs no products."""
    parameters = {name: tensor for name, tensor in module._parameters.items() if tensor is not None}
    if features_of(module) is not None and not module._modules and set(parameters) <= {"weight", "bias"}:
        return _linear(module)  # also one whose weights are packed in buffers
    if _name(type(module)).startswith(_QUANTIZED):
        return _quantized(module)
    widest = max((tensor.dim() for tensor in parameters.values()), default=0)
    if widest <= 1:
        return Cost(weights=bytes_of(module))
    experts, chosen = read_attribute(module, "num_experts"), read_attribute(module, "top_k")
    if isinstance(experts, int) and widest == 3 and all(tensor.shape[0] == experts for tensor in parameters.values()):
        matrices = [tensor for tensor in parameters.values() if tensor.dim() == 3]
        each = sum(2 * int(tensor.shape[1]) * int(tensor.shape[2]) for tensor in matrices)
        moved = sum(int(tensor.shape[1]) + int(tensor.shape[2]) for tensor in matrices)
        # How many of them a position goes through, its parent or the configuration knows.
        return Cost(flops=each, weights=bytes_of(module), moved=moved, experts=experts)
    weight = parameters.get("weight")
    if isinstance(chosen, int) and weight is not None and widest == 2 and weight.shape[0] == experts:
        return Cost(flops=2 * weight.numel(), weights=bytes_of(module), moved=sum(map(int, weight.shape)))
    if all(tensor.dim() <= 1 or tensor.shape[0] == 1 == prod(tensor.shape[:-2]) for tensor in parameters.values()):
        return Cost(weights=bytes_of(module))  # learned tokens and positions that are added
    return None


_QUANTIZED = ("torch.ao.nn.quantized.", "torch.ao.nn.intrinsic.quantized.")
_OF_LINEAR = frozenset({"LinearPackedParams", "Quantize", "DeQuantize", "FloatFunctional", "QFunctional"})
"""Modules of torch's quantization that compute no products, or whose weights the linear module around them counts."""


def _quantized(module: Any) -> Cost | None:
    """Modules of torch that keep their weights in a packed form, which is no parameter and has no shape."""
    features, packed = features_of(module), module._modules.get("_packed_params")
    if features is None or packed is None:
        return Cost() if type(module).__name__ in _OF_LINEAR else None
    taken, given = features
    return Cost(flops=2 * taken * given, weights=taken * given * packed.dtype.itemsize, moved=taken + given)


_TABLE: dict[str, CostFunction] = {
    "torch.nn.modules.linear.Linear": _linear,
    "transformers.pytorch_utils.Conv1D": _linear,
    "bitsandbytes.nn.modules.Linear4bit": _linear,
    "bitsandbytes.nn.modules.Linear8bitLt": _linear,
    "torch.nn.modules.sparse.Embedding": _embedding,
    "torch.nn.modules.conv._ConvNd": _convolution,
    "torch.nn.modules.activation.MultiheadAttention": _multihead,
}
_WHOLE = frozenset({"torch.nn.modules.activation.MultiheadAttention"})
"""Classes whose cost covers the modules inside."""
