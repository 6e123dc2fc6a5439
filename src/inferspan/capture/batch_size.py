"""The number of rows of a plain forward pass, by the layers of the model and the names of its arguments.

A layer of ``torch.nn`` says where its batch is, and so does an argument such as ``input_ids``. Any other argument counts only where its
layout leaves no other reading; otherwise the number is not known. Nothing is read from a tensor but its shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from inferspan.guard import read_attribute

from .modules.shapes import describe
from .signatures import positional_names

__all__ = ["Layout", "batch_rows", "layout_of"]

MOST_ARGUMENTS = 16
_NAMED = {
    "input_ids": (2, 3),
    "inputs_embeds": (3,),
    "decoder_input_ids": (2,),
    "decoder_inputs_embeds": (3,),
    "input_features": (3,),
    "input_values": (2, 3),
    "pixel_values": (4, 5),
    "pixel_values_videos": (5,),
}
"""Arguments of transformers whose first axis is the batch, in order of preference, with the numbers of axes for which that holds."""
_SHARED = frozenset({"position_ids", "cache_position", "attention_mask", "token_type_ids", "labels"})
"""Arguments of transformers that need not have the batch's number of rows."""
_WRAPPED = ("_orig_mod", "module")
"""Attributes under which wrappers such as ``DataParallel`` and compiled modules hold the module that they call."""
_ATTENTION = (
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.Transformer,
)
_SEQUENCES = (nn.RNNBase, *_ATTENTION)


class Layout(NamedTuple):
    """Position of the batch among the inputs of a model.

    Attributes:
        names: of the positional parameters of ``forward``.
        axis: of the batch, if the model begins with a layer that defines it.
        axes: number of axes of a batch for such a layer.
        documented: names of arguments that transformers defines for this model; empty for another model.
        sequences: whether layers inside take sequences, with or without a batch.
        sequence_first: whether some of these take the batch as their second axis, or do not say.
        spatial: most axes that a batch of the convolutions inside has, 0 without convolutions.
    """

    names: tuple[str, ...] = ()
    axis: int | None = None
    axes: int = 0
    documented: frozenset[str] = frozenset()
    sequences: bool = False
    sequence_first: bool = False
    spatial: int = 0


def _names(module: nn.Module) -> tuple[str, ...]:
    return positional_names(type(module))


def _batch_first(layer: Any) -> bool:
    """Whether a recurrent or attention layer takes its batch first; false if it does not say."""
    for holder in (layer, read_attribute(layer, "self_attn")):
        value = read_attribute(holder, "batch_first")
        if isinstance(value, bool):
            return value
    layers = read_attribute(layer, "layers")
    return isinstance(layers, nn.ModuleList) and len(layers) > 0 and _batch_first(layers[0])


def _is_of_torch(layer: nn.Module) -> bool:
    """Whether torch's own ``forward`` runs, so that the arguments have the documented meaning."""
    owner = next((kind for kind in type(layer).__mro__ if "forward" in kind.__dict__), None)
    return owner is not None and owner.__module__.startswith("torch.") and "forward" not in layer.__dict__


def _unwrapped(model: nn.Module) -> nn.Module:
    for name in _WRAPPED:
        inner = read_attribute(model, name)
        if isinstance(inner, nn.Module) and not _names(model):
            return _unwrapped(inner)
    return model


def _first_layer(model: nn.Module) -> nn.Module:
    """The module that takes the arguments as they are given."""
    found: Any = _unwrapped(model)
    while issubclass(type(found), nn.Sequential) and _is_of_torch(found) and len(found):
        found = found[0]
    return found  # type: ignore[no-any-return]


def layout_of(model: nn.Module) -> Layout:
    """Position of the batch among the inputs of ``model``; looks at every module once."""
    called = _unwrapped(model)
    names = _names(called)
    documented: frozenset[str] = frozenset()
    if any(base.__module__.split(".")[0] == "transformers" for base in type(called).__mro__):
        documented = frozenset({*_NAMED, str(read_attribute(called, "main_input_name", "input_ids"))})
    first: Any = _first_layer(model)
    if _is_of_torch(first):
        if issubclass(type(first), _SEQUENCES):
            return Layout(names, 0 if _batch_first(first) else 1, 3)
        if issubclass(type(first), nn.modules.rnn.RNNCellBase):
            return Layout(names, 0, 2)
        if issubclass(type(first), nn.modules.conv._ConvNd):
            return Layout(names, 0, len(first.kernel_size) + 2)
    sequences = [_batch_first(module) for module in called.modules() if issubclass(type(module), _SEQUENCES)]
    convolutions: Iterator[Any] = (module for module in called.modules() if issubclass(type(module), nn.modules.conv._ConvNd))
    spatial = max((len(module.kernel_size) + 2 for module in convolutions), default=0)
    return Layout(names, None, 0, documented, bool(sequences), not all(sequences), spatial)


def _rows_of_layer(layout: Layout, value: Any) -> int | None:
    """Rows of the first argument of a layer that says where its batch is."""
    if isinstance(value, nn.utils.rnn.PackedSequence):
        sizes = value.batch_sizes
        return int(sizes[0]) if type(sizes) is Tensor and sizes.device.type == "cpu" and len(sizes) else None
    shape = _shape(value)
    return shape[layout.axis] if shape is not None and layout.axis is not None and len(shape) == layout.axes else None


def _shape(value: Any) -> tuple[int, ...] | None:
    described = describe(value) if isinstance(value, Tensor) else ()
    return tuple(described[0][0]) if described else None


def _plain_rows(layout: Layout, value: Tensor) -> int | None:
    """Rows of an argument whose name says nothing, where its layout leaves no other reading."""
    shape = _shape(value)
    if shape is None or len(shape) < 2 or layout.sequence_first:
        return None
    if layout.spatial:
        return shape[0] if len(shape) == layout.spatial else None
    if layout.sequences:
        # With and without a batch, features and token ids differ by one axis each.
        return shape[0] if len(shape) == (3 if value.is_floating_point() else 2) else None
    # Three axes may be those of a batch, of a sequence, or of one image.
    return shape[0] if len(shape) != 3 else None


def _given(layout: Layout, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name; those that have none are numbered."""
    if args and isinstance(args[0], Mapping):
        # Sentence encoders take one mapping instead of keyword arguments.
        mapping = args[0]
        return {key: mapping[key] for key in itertools.islice(mapping, MOST_ARGUMENTS) if isinstance(key, str)}
    names = itertools.chain(layout.names, map(str, itertools.count()))
    return {**dict(zip(names, args[:MOST_ARGUMENTS], strict=False)), **kwargs}


def batch_rows(layout: Layout, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """The number of rows of a forward pass, ``None`` if that is not known.

    Args:
        layout: of the model.
        args: positional arguments of the pass.
        kwargs: its keyword arguments.
    """
    if layout.axis is not None:
        return _rows_of_layer(layout, args[0] if args else kwargs.get(layout.names[0] if layout.names else ""))
    if len(args) == 1 and not kwargs and type(args[0]) is Tensor and not layout.documented:
        # One tensor, as most models of the user's own take: what follows would come to the same.
        name = layout.names[0] if layout.names else ""
        if name not in _NAMED and name not in _SHARED:
            return _plain_rows(layout, args[0])
    given = _given(layout, args, kwargs)
    if layout.documented or not layout.sequence_first:
        for name, axes in _NAMED.items():
            shape = _shape(given[name]) if name in given else None
            if shape is not None and len(shape) in axes:
                return shape[0]
    if layout.documented:
        shapes = [_shape(given[name]) for name in sorted(layout.documented - _NAMED.keys()) if name in given]
        return next((shape[0] for shape in shapes if shape is not None and len(shape) > 1), None)
    unnamed = [value for name, value in given.items() if name not in _SHARED and isinstance(value, Tensor)]
    found = {_plain_rows(layout, value) for value in unnamed if len(_shape(value) or ()) > 1}
    return found.pop() if len(found) == 1 else None
